"""Differences between bodies and documents are exact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.recording.delta import (
    MAX_ALIGNED_LINES,
    DeltaError,
    apply_body_delta,
    apply_json_delta,
    body_delta,
    json_delta,
)

STEMS = st.sampled_from(["", " ", "a ", "b ", 'vllm:x{a="1"} ', 'vllm:x{a="2 3"} ', "# HELP a b ", "ü "])
LINES = st.builds(lambda stem, value: stem + value, STEMS, st.sampled_from(["", "0", "1.0", "NaN", "12", "x{}"]))
BODIES = st.lists(LINES, max_size=25)
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 0.0, -0.0, 1.0, 0.5, "", "a"]),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(BODIES, BODIES)
def test_any_two_bodies_round_trip(old: list[str], new: list[str]) -> None:
    """Applying the difference to the old body, after a trip through JSON, gives the new one line for line."""
    delta = body_delta(old, new)
    assert delta is not None
    lines = list(old)
    apply_body_delta(lines, json.loads(json.dumps(delta)))
    assert lines == new


def test_only_changed_values_are_kept() -> None:
    """A changed value costs its line number and its text, an unchanged body nothing."""
    old = ["# HELP a", "a 1.0", "b 2.0", "c 3.0"]
    assert body_delta(old, old) == {}
    assert body_delta(old, ["# HELP a", "a 1.5", "b 2.0", "c 4.0"]) == {"i": [1, 2], "v": ["1.5", "4.0"]}


def test_a_new_series_is_one_edit() -> None:
    """A series that appears is inserted; the lines behind it are not written again."""
    old = ["a 1.0", "c 3.0", "d 4.0"]
    new = ["a 1.0", "b 2.0", "c 3.5", "d 4.0"]
    assert body_delta(old, new) == {"edit": [[1, 0, ["b 2.0"]]], "i": [2], "v": ["3.5"]}


def test_a_body_that_changed_altogether_is_stored_in_full() -> None:
    """Aligning is bounded: a huge, entirely different body gets no difference."""
    old = [f"a{i} 1" for i in range(MAX_ALIGNED_LINES)]
    assert body_delta(old, [f"b{i} 1" for i in range(5)]) is None


@pytest.mark.parametrize(
    "delta",
    [
        {"i": [9], "v": ["1"]},
        {"i": [-1], "v": ["1"]},
        {"i": [0], "v": []},
        {"edit": [[0, 9, []]]},
        {"edit": [["x", 0, []]]},
        {"edit": 7},
        {"i": [0], "v": [1]},
    ],
)
def test_a_difference_that_does_not_fit_is_an_error(delta: dict[str, Any]) -> None:
    """Nothing is guessed from a damaged difference."""
    with pytest.raises(DeltaError):
        apply_body_delta(["a 1", "b 2"], delta)


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_any_two_documents_round_trip(old: Any, new: Any) -> None:
    """The document after the difference is written exactly like the new one (1, 1.0, true and -0.0 stay apart)."""
    delta = json.loads(json.dumps(json_delta(old, new)))
    assert json.dumps(apply_json_delta(old, delta), sort_keys=True) == json.dumps(new, sort_keys=True)


def test_a_small_change_of_a_document_is_small() -> None:
    """Only the changed leaf is written."""
    old = {"gpus": [{"name": "x", "processes": [{"pid": 1, "used": 5}]}], "up": True}
    new = {"gpus": [{"name": "x", "processes": [{"pid": 1, "used": 6}]}], "up": True}
    process = {"@": {"0": {"~": {"used": {"=": 6}}}}}
    assert json_delta(old, new) == {"~": {"gpus": {"@": {"0": {"~": {"processes": process}}}}}}
    assert json_delta(new, new) == {}


@pytest.mark.parametrize("delta", [{"@": {"5": {"=": 1}}}, {"~": {"a": 3}}, {"~": 4}, 3, {"-": 3}])
def test_a_document_difference_that_does_not_fit_is_an_error(delta: Any) -> None:
    """Nothing is guessed from a damaged difference."""
    with pytest.raises(DeltaError):
        apply_json_delta([1], delta)
