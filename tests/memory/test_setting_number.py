"""Settings as numbers: what can be drawn, and what must stay absent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.memory.effective import setting_number


@pytest.mark.parametrize(
    "value, number",
    [
        ("8192", 8192.0),
        ("0.06", 0.06),
        ("1e-3", 0.001),
        ("0", 0.0),
        (" 64 ", 64.0),
        ("True", 1.0),
        ("False", 0.0),
        ("4k", 4000.0),
        ("4K", 4096.0),
        ("1.5g", 1.5e9),
        ("1G", 2.0**30),
    ],
)
def test_numbers_switches_and_sizes(value: str, number: float) -> None:
    """Sizes are read as vLLM reads them: lower case is decimal, upper case is binary."""
    assert setting_number(value) == number


@pytest.mark.parametrize(
    "value", ["auto", "fp8", "", "-1", "nan", "inf", "1e999", "1 2 4", "4GiB", "1.5G", '{"a": 1}', "0x10", "1_000", "٣"]
)
def test_what_is_no_number_is_absent(value: str) -> None:
    """Words, lists, JSON, what vLLM refuses, and codes below 0 ("work it out") give no number, never 0."""
    assert setting_number(value) is None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12))
def test_any_text_gives_a_finite_number_or_none(value: str) -> None:
    """Nothing from outside makes it fail, or makes a value that no graph can hold."""
    number = setting_number(value)
    assert number is None or 0 <= number < float("inf")
