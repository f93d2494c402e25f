"""Durations and sizes as people write them in the configuration: ``1s``, ``500ms``, ``4.5GiB``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?")
_BYTES = {
    None: 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


_LONGEST: Final = 7 * 86400.0
_LARGEST: Final = 2**50


def parse_duration(value: object) -> float:
    """Seconds from ``1s``, ``500ms``, ``2m``, ``1h`` or a bare number of seconds.

    :raises ValueError: with what is accepted, when the value is none of these or not positive.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no duration; write for example 1s, 500ms or 2m")
    if isinstance(value, int | float):
        seconds = min(max(value, -1), 2 * _LONGEST) + 0.0  # a whole number may be larger than any float
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
    else:
        raise ValueError(f"{value!r} is no duration; write for example 1s, 500ms or 2m")
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"a duration must be more than 0 and at most a week, not {str(value)[:40]}")
    return seconds


def format_duration(seconds: float) -> str:
    """Shortest text that :func:`parse_duration` reads back: 60 -> ``60s``, 0.5 -> ``500ms``."""
    if seconds == int(seconds):
        return f"{int(seconds)}s"
    texts = (f"{seconds * 1000:.{digits}g}ms" for digits in range(6, 17))
    plain = (text for text in texts if "e" not in text and parse_duration(text) == seconds)
    return next(plain, f"{Decimal(repr(seconds)):f}s")


def parse_size(value: object) -> int:
    """Bytes from ``4.5GiB``, ``512MiB``, ``2GB`` or a bare number of bytes.

    :raises ValueError: with what is accepted.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no size; write for example 4.5GiB, 512MiB or a number of bytes")
    if isinstance(value, int):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = int(min(float(match[1]) * _BYTES[match[2]], 2.0 * _LARGEST))
    else:
        raise ValueError(f"{value!r} is no size; write for example 4.5GiB, 512MiB or a number of bytes")
    if not 0 < size <= _LARGEST:
        raise ValueError(f"a size must be more than 0 and at most 1024TiB, not {str(value)[:40]}")
    return size


def no_truth_value(value: Any) -> Any:
    """The value itself; ``yes`` or ``true`` where a number belongs would otherwise be read as 1.

    :raises ValueError: it is a truth value.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is a truth value, a number is wanted")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Number = BeforeValidator(no_truth_value)
