"""Configuration files: what is accepted, and what a person reads when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.config.load import ConfigError, load_config, parse_config
from vllmeter.config.values import format_duration, parse_duration, parse_size

INVALID = Path(__file__).parent / "invalid"

GOOD = """
listen: 127.0.0.1:9877
interval: 1s
windows: [30s]
servers:
  - name: vllm-qwen3
    url: http://127.0.0.1:8002/
    budget: {fraction: 0.57}
    match: {container: vllm-qwen3}
    log: {docker: vllm-qwen3}
  - name: bge-m3
    url: https://m3.internal:8443/gen
    interval: 2s
    budget: {bytes: 1.5GiB}
    auth: {bearer_token_env: M3_TOKEN}
    tls: {ca_file: /etc/ca.pem}
    expose: {without: [iteration_tokens]}
nvml: {processes_every: 2s}
"""


def test_a_full_file_is_read_into_base_units() -> None:
    """Durations become seconds, sizes bytes, and a trailing slash of a URL is dropped."""
    got = parse_config(GOOD)
    first, second = got.servers
    assert first.url == "http://127.0.0.1:8002"
    assert first.budget is not None
    assert first.budget.fraction == 0.57
    assert second.interval == 2.0
    assert second.budget is not None
    assert second.budget.bytes == 1610612736
    assert got.all_windows() == (("15s", 15.0), ("60s", 60.0), ("30s", 30.0))
    assert (got.listen_host, got.listen_port) == ("127.0.0.1", 9877)


def test_an_empty_file_means_defaults() -> None:
    """Defaults work without configuration."""
    got = parse_config("")
    assert got.servers == ()
    assert got.interval == 1.0
    assert got.listen == "127.0.0.1:9877"


def test_anchors_and_merge_keys_are_understood() -> None:
    """YAML anchors save people from repeating themselves."""
    got = parse_config(
        """
servers:
  - &base
    name: a
    url: http://127.0.0.1:1
    timeout: {read: 3s}
  - <<: *base
    name: b
    url: http://127.0.0.1:2
"""
    )
    assert [s.timeout.read for s in got.servers] == [3.0, 3.0]
    assert got.servers[1].name == "b"


@pytest.mark.parametrize("path", sorted(INVALID.glob("*.yaml")), ids=lambda p: p.stem)
def test_each_invalid_file_gives_exactly_its_message(path: Path) -> None:
    """Every mistake names file, line, key and what is accepted; the expected text stands beside the file."""
    with pytest.raises(ConfigError) as caught:
        parse_config(path.read_text(encoding="utf-8"), path.name)
    assert str(caught.value) + "\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    """The message points to init and to discovery."""
    with pytest.raises(ConfigError, match=r"no such file\. `vllmeter init` writes one"):
        load_config(tmp_path / "none.yaml")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    """The message names the file that was probably meant, without an error number."""
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    wanted = f"{tmp_path}: is a folder; give the configuration file itself, such as {tmp_path}/vllmeter.yaml"
    assert str(caught.value) == wanted


def test_a_file_that_is_no_text_is_one_clear_error(tmp_path: Path) -> None:
    """Binary content is reported, not raised through."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_any_text_gives_settings_or_a_config_error(text: str) -> None:
    """No text, however broken, raises anything but ConfigError."""
    try:
        parse_config(text)
    except ConfigError as error:
        assert error.problems
        assert all(p.startswith("vllmeter.yaml:") for p in error.problems)


_KEYS = st.sampled_from(["servers", "listen", "name", "url", "budget", "nvml", "timeout", "x", "windows", "match"])
_LEAVES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=8))


@given(st.recursive(_LEAVES, lambda c: st.lists(c, max_size=3) | st.dictionaries(_KEYS, c, max_size=4), max_leaves=12))
@settings(max_examples=200)
def test_any_structure_gives_settings_or_a_config_error(data: object) -> None:
    """Structure-aware fuzzing with our own keys in wrong places."""
    import yaml

    try:
        parse_config(yaml.safe_dump(data))
    except ConfigError as error:
        assert error.problems


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1s", 1.0), ("2m", 120.0), ("1.5s", 1.5), ("1h", 3600.0), (3, 3.0)]
)
def test_durations(text: object, seconds: float) -> None:
    """Every documented form of a duration."""
    assert parse_duration(text) == seconds


@given(st.integers(1, 10**6).map(lambda n: n / 1000))
def test_a_formatted_duration_reads_back(seconds: float) -> None:
    """Window labels are made with format_duration: they must be unambiguous."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1", "-1s", "0s", "fast", True, None, "1 week", float("inf"), float("nan")])
def test_bad_durations_are_refused(text: object) -> None:
    """Nothing that is no positive time passes."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4.5GiB", 4831838208), ("2GB", 2 * 10**9), (1024, 1024), ("512MiB", 2**29)]
)
def test_sizes(text: object, size: int) -> None:
    """Binary and decimal units are told apart."""
    assert parse_size(text) == size
