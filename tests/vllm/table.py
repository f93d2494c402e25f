"""What was checked, with the numbers on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One comparison."""

    subject: str
    expected: str
    seen: str
    right: bool


ROWS: list[Row] = []
"""Everything that :func:`check` was asked, in order."""


def check(subject: str, seen: object, right: bool, expected: object) -> None:
    """Keeps a comparison for the table, and fails when it is wrong."""
    ROWS.append(Row(subject, text(expected), text(seen), right))
    assert right, f"{subject}: expected {text(expected)}, seen {text(seen)}"


def same(subject: str, seen: object, expected: object) -> None:
    """Both sides must be equal."""
    check(subject, seen, seen == expected, expected)


def text(value: object) -> str:
    """Numbers short enough for a table."""
    if isinstance(value, float):
        if value == int(value):
            return f"{value:.0f}"
        return f"{value:.2f}" if abs(value) >= 1e6 else f"{value:.4g}"
    return str(value)


def render(rows: Sequence[Row]) -> str:
    """A Markdown table that also reads well as text."""
    head = Row("checked", "expected", "seen", True)
    cells = [[row.subject, row.expected, row.seen + ("" if row.right else "  WRONG")] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    wrong = sum(not row.right for row in rows)
    return "\n".join([*lines, "", f"{len(rows)} comparisons, {wrong} wrong"])
