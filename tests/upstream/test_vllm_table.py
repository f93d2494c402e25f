"""The name table against the catalogue, against the list of known names, and within itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllmeter import catalogue
from vllmeter.upstream.vllm import BY_NAME, KNOWN_STEMS, PREFIXES, ROWS, Row, lived, parse_version, split_prefix

_FACTS = [
    line.split()
    for line in (Path(__file__).parent / "known_names.txt").read_text().splitlines()
    if not line.startswith("#")
]
_FED = [row for row in ROWS if row.family is not None]


def _first(row: Row) -> tuple[int, int, int]:
    found = [parse_version(span.split("-")[0]) for span in (row.v0, row.v1) if span]
    return min(version for version in found if version is not None)


@pytest.mark.parametrize(("name", "kind", "first", "last"), _FACTS)
def test_every_known_name_has_a_row(name: str, kind: str, first: str, last: str) -> None:
    """Each name of the fact list is in the table with its kind and its first and last release."""
    row = BY_NAME[name][0]
    assert row.kind == kind or (row.kind == "info" and kind == "gauge")
    assert _first(row) == parse_version(first)
    spans = [span for span in (row.v0, row.v1) if span]
    ends = [parse_version(span.split("-")[1]) for span in spans]
    if last == "-":
        assert None in ends
    else:
        assert max(end for end in ends if end is not None) == parse_version(last)
        assert None not in ends


def test_table_holds_no_name_beyond_the_list() -> None:
    """A name in the table comes from the fact list; vllm_config_info was only in nightly builds."""
    assert set(BY_NAME) - {name for name, *_ in _FACTS} == {"vllm_config_info"}


@pytest.mark.parametrize("row", _FED, ids=lambda row: f"{row.name}->{row.family}")
def test_rows_fit_the_catalogue(row: Row) -> None:
    """A row's family exists, is made by the engine, has the row's type, and gets all labels it has."""
    assert row.family is not None
    family = catalogue.BY_NAME[row.family]
    assert family.origin == "engine"
    assert family.kind == row.kind or (family.kind == "stateset" and row.kind == "gauge")
    for label in family.labels:
        if label not in ("server", "engine"):
            assert row.rename.get(label, label) in row.labels
    assert set(row.rename) <= set(family.labels)
    assert set(row.where) <= set(row.labels)


def test_every_engine_family_has_a_row() -> None:
    """A family that the catalogue says comes from the engine is fed by some name."""
    engine = {family.name for family in catalogue.CATALOGUE if family.origin == "engine"}
    assert engine == {row.family for row in _FED}


def test_every_hidden_name_says_why() -> None:
    """A name that is known and not exposed has a reason."""
    assert all(row.note for row in ROWS if row.family is None)
    assert all(KNOWN_STEMS.values())


def test_chains_are_ordered() -> None:
    """Names that feed one family have different ranks, and all but the first say what they are."""
    chains: dict[str, list[Row]] = {}
    for row in _FED:
        chains.setdefault(row.family or "", []).append(row)
    for rows in chains.values():
        assert sorted(row.rank for row in rows) == list(range(len(rows)))
        assert all(row.note for row in rows if row.rank > 0)


@pytest.mark.parametrize(
    ("family", "refused"),
    [
        ("requests_waiting_by_reason", "num_requests_waiting"),
        ("prompt_tokens_by_source_total", "prompt_tokens_total"),
        ("time_per_output_token_seconds", "inter_token_latency_seconds"),
        ("time_per_output_token_seconds", "time_per_output_token_seconds"),
        ("prefix_cache_hits_tokens_total", "gpu_prefix_cache_hit_rate"),
        ("generation_tokens_total", "avg_generation_throughput_toks_per_s"),
    ],
)
def test_chains_only_rename(family: str, refused: str) -> None:
    """A stand-in with another meaning never feeds a family."""
    assert all(row.family != family for row in BY_NAME[refused])


def test_percent_names_are_fractions() -> None:
    """Upstream ``_perc`` names carry fractions: they feed ratios and nothing is divided by 100."""
    for row in _FED:
        assert row.name.endswith("_perc") == (row.family or "").endswith("_ratio")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.26.0", (0, 26, 0)),
        ("v0.33.0rc1", (0, 33, 0)),
        ("0.6.4.post1", (0, 6, 4)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.11", (0, 11, 0)),
        ("0.11rc1", (0, 11, 0)),
        ("", None),
        ("dev", None),
        ("1", None),
    ],
)
def test_versions(text: str, version: tuple[int, int, int] | None) -> None:
    """Version texts of releases, candidates and builds are read; anything else is not known."""
    assert parse_version(text) == version


def test_spans() -> None:
    """A span holds its ends; one that begins at the oldest release read holds what was before it too."""
    assert lived("0.4.1-0.9.0", (0, 4, 0))
    assert lived("0.4.1-0.9.0", (0, 9, 0))
    assert not lived("0.4.1-0.9.0", (0, 9, 1))
    assert not lived("0.9.2-", (0, 9, 1))
    assert lived("0.9.2-", (0, 99, 0))
    assert not lived("", (0, 9, 2))


def test_prefixes_do_not_shadow_each_other() -> None:
    """The three spellings are told apart, and other metrics have no prefix."""
    assert [split_prefix(prefix + "x") for prefix in PREFIXES] == [(prefix, "x") for prefix in PREFIXES]
    assert split_prefix("lmcache:x") is None
    assert split_prefix("process_cpu_seconds_total") is None
