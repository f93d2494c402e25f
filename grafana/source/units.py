"""Numbers as Grafana shows them, for preview.py."""

from __future__ import annotations

import math
import time

_SI = ((1e12, "T"), (1e9, " Bil"), (1e6, " Mil"), (1e3, " K"))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "Inf"
    if unit == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"), decimals)
    if unit == "Bps":
        return _scaled(value, 1000, ("B/s", "kB/s", "MB/s", "GB/s"), decimals)
    if unit == "s":
        return _duration(value, decimals)
    if unit == "percentunit":
        return f"{_number(value * 100, decimals)}%"
    if unit == "reqps":
        return f"{_number(value, decimals)} req/s"
    if unit == "watt":
        return f"{_number(value, decimals)} W"
    if unit == "celsius":
        return f"{_number(value, decimals)} °C"
    if unit == "dateTimeAsIso":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
    if unit == "short":
        for factor, sign in _SI:
            if abs(value) >= factor:
                return f"{_number(value / factor, decimals)}{sign}"
    return _number(value, decimals)


def _number(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, factor: float, names: tuple[str, ...], decimals: int | None) -> str:
    step = 0
    while abs(value) >= factor and step < len(names) - 1:
        value /= factor
        step += 1
    return f"{_number(value, decimals)} {names[step]}"


def _duration(value: float, decimals: int | None) -> str:
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{_number(value * 1e6, decimals)} µs"
    if size < 1:
        return f"{_number(value * 1e3, decimals)} ms"
    if size < 120:
        return f"{_number(value, decimals)} s"
    if size < 7200:
        return f"{_number(value / 60, decimals)} mins"
    return f"{_number(value / 3600, decimals)} hours"
