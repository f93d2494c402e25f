"""What the fraction means, release by release."""

from __future__ import annotations

import pytest

from vllmeter.memory.regimes import parse_version, regime_of


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.26.0", (0, 26, 0, 0)),
        ("v0.6.4.post1", (0, 6, 4, 1)),
        ("0.11.0rc2.dev12+gabc123", (0, 11, 0, 0)),
        ("0.9", (0, 9, 0, 0)),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_versions(text: str | None, version: tuple[int, int, int, int] | None) -> None:
    """Release texts as vLLM prints them; anything else is no version."""
    assert parse_version(text) == version


# (version, engine, whole card, start check, context inside, NCCL inside, graphs inside, default, kv bytes flag)
ROWS = [
    ("0.3.0", None, True, False, True, True, False, 0.9, False),
    ("0.4.0", None, False, False, False, True, False, 0.9, False),
    ("0.5.5", None, False, False, False, True, False, 0.9, False),
    ("0.6.3", None, False, False, False, True, False, 0.9, False),
    ("0.6.4.post1", None, True, False, True, True, False, 0.9, False),
    ("0.6.6.post1", None, False, False, False, True, False, 0.9, False),
    ("0.7.3", "V1", True, False, True, True, False, 0.9, False),
    ("0.8.5", None, True, False, True, True, False, 0.9, False),
    ("0.8.5", "V0", False, False, False, True, False, 0.9, False),
    ("0.9.0", None, True, False, True, True, False, 0.9, False),
    ("0.9.1", None, False, True, False, True, False, 0.9, False),
    ("0.10.1", None, False, True, False, True, False, 0.9, False),
    ("0.10.2", None, False, True, False, True, False, 0.9, True),
    ("0.11.0", None, False, True, False, False, False, 0.9, True),
    ("0.17.0", None, False, True, False, False, False, 0.9, True),
    ("0.19.0", None, False, True, False, False, False, 0.9, True),
    ("0.20.0", None, False, True, False, False, True, 0.92, True),
    ("0.26.0", None, False, True, False, False, True, 0.92, True),
    ("0.33.0", None, False, True, False, False, True, 0.92, True),
]


@pytest.mark.parametrize(("version", "engine", "whole", "check", "context", "nccl", "graphs", "default", "flag"), ROWS)
def test_every_regime(
    version: str,
    engine: str | None,
    whole: bool,
    check: bool,
    context: bool,
    nccl: bool,
    graphs: bool,
    default: float,
    flag: bool,
) -> None:
    """One row per change of meaning in the released sources."""
    found = regime_of(version, engine=engine)
    assert (found.whole_device, found.start_check) == (whole, check)
    assert (found.context_inside, found.nccl_inside, found.graphs_inside) == (context, nccl, graphs)
    assert (found.default_fraction, found.kv_bytes_flag) == (default, flag)
    assert found.assumed is None


def test_unknown_and_newer_releases_are_assumed() -> None:
    """No version or a newer one: the newest regime, and it says so."""
    assert regime_of(None).assumed
    assert "0.99.0" in (regime_of("0.99.0").assumed or "")
    assert regime_of("0.99.0").default_fraction == 0.92
