"""Lists of target groups, good and hostile."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.discovery.targets import MOST_SERVERS, ListError, Skips, parse_targets, server_name


def test_a_group_becomes_servers_with_its_labels() -> None:
    """Name, scheme, path, budget and container come from labels; other labels are Prometheus' business."""
    found = parse_targets(
        [
            {
                "targets": ["10.0.0.1:8000"],
                "labels": {
                    "server": "chat",
                    "__scheme__": "https",
                    "__metrics_path__": "/stats",
                    "__vllmeter_budget_fraction__": "0.4",
                    "__vllmeter_container__": "vllm-chat",
                    "team": "search",
                },
            },
            {"targets": ["[fd00::1]:8001", "host.example:8002"]},
        ]
    )
    chat, six, plain = found.servers
    assert (chat.name, chat.url, chat.metrics_path) == ("chat", "https://10.0.0.1:8000", "/stats")
    assert chat.budget is not None
    assert chat.budget.fraction == 0.4
    assert chat.match is not None
    assert chat.match.container == "vllm-chat"
    assert (six.name, six.url) == ("fd00::1:8001", "http://[fd00::1]:8001")
    assert (plain.name, plain.url) == ("host.example:8002", "http://host.example:8002")
    assert found.skipped == ()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"targets": ["http://10.0.0.1:8000/metrics"]}, "no HOST:PORT"),
        ({"targets": [17]}, "no HOST:PORT"),
        ({"targets": ["x" * 400]}, "no HOST:PORT"),
        ({"targets": ["169.254.169.254:80"]}, "link-local"),
        ({"targets": ["[fe80::1]:80"]}, "link-local"),
        ({"targets": ["0.0.0.0:8000"]}, "no address of a host"),
        ({"targets": ["224.0.0.1:8000"]}, "no address of a host"),
        ({"targets": ["host:99999"]}, "no valid port"),
        ({"targets": ["user:secret@host:8000"]}, "no credentials"),
        ({"targets": ["host:1"], "labels": {"__scheme__": "file"}}, "url"),
        ({"targets": ["host:1"], "labels": {"__metrics_path__": "x"}}, "metrics_path"),
        ({"targets": ["host:1"], "labels": {"__vllmeter_budget_fraction__": "7"}}, "budget"),
        ({"labels": {}}, "no `targets` list"),
        ("text", "no `targets` list"),
    ],
)
def test_a_bad_entry_costs_itself_only(entry: object, why: str) -> None:
    """The entry is left out with its reason; its neighbours stay."""
    found = parse_targets([entry, {"targets": ["good:8000"]}])
    assert [server.name for server in found.servers] == ["good:8000"]
    assert why in found.skipped[0]


@pytest.mark.parametrize("document", [None, {}, "x", 3, {"targets": ["a:1"]}])
def test_another_form_is_an_error(document: object) -> None:
    """What is no list is never read as an empty one: known servers would vanish."""
    with pytest.raises(ListError, match="expected a list"):
        parse_targets(document)


def test_the_number_of_servers_is_bounded() -> None:
    """Of a long list the first 500 are taken, and a sentence says so."""
    found = parse_targets([{"targets": [f"host-{number}:8000" for number in range(2000)]}])
    assert len(found.servers) == MOST_SERVERS
    assert "the rest is left out" in found.skipped[-1]


def test_a_short_file_with_a_million_entries_is_bounded() -> None:
    """Anchors make ten thousand bad entries of one; they are not all looked at."""
    bomb = "- &a {targets: &t [" + ", ".join(["1"] * 1000) + "]}\n" + "- *a\n" * 5000
    found = parse_targets(yaml.safe_load(bomb))
    assert found.servers == ()
    assert len(found.skipped) <= 20


def test_the_same_target_twice_is_one_server() -> None:
    """Two groups may name one address."""
    assert len(parse_targets([{"targets": ["a:1", "a:1"]}, {"targets": ["a:1"]}]).servers) == 1


def test_a_sentence_is_said_once() -> None:
    """The same complaint is not logged again every five seconds."""
    skips = Skips()
    assert skips.new(["a", "b"]) == ["a", "b"]
    assert skips.new(["b"]) == []
    assert skips.new(["a", "b"]) == ["a"]


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["targets", "labels", "server", "__scheme__", "x"]), inner, max_size=4)
        ),
        max_leaves=15,
    )
)
def test_any_json_is_a_list_or_an_error(document: object) -> None:
    """Nothing that JSON can hold ends in another exception."""
    try:
        found = parse_targets(json.loads(json.dumps(document)))
    except ListError:
        return
    assert all(server.url.startswith(("http://", "https://")) for server in found.servers)


@given(st.text(max_size=200))
def test_every_name_is_one_that_the_configuration_accepts(text: str) -> None:
    """Names from outside are made fit, never refused."""
    from vllmeter.config.settings import Server

    name = server_name(text)
    assert Server(name=name, url="http://x:1").name == name
