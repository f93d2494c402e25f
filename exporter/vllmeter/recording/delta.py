"""Exact differences between successive bodies and successive JSON documents (pure).

Bodies of one server differ from second to second in a few dozen values, so a recording keeps one full text and
then only what changed.  Both schemes are exact: applying a difference gives back the new document byte for byte.

A body difference is a JSON object with up to three keys:

``edit``  list of ``[start, count, [line, …]]`` in terms of the old lines, ascending, not overlapping: ``count`` lines
          from ``start`` on are replaced by the given ones;
``i``     line numbers (after ``edit``) whose value changed, as gaps: the first number, then the distance to the next;
``v``     the new values, one per number in ``i``: the text after the last space of the line.

A document difference is ``{"=": new}`` (replace), ``{"~": {key: difference, …}, "-": [key, …]}`` (object) or
``{"@": {"3": difference, …}}`` (list of the same length).  An empty object means "unchanged".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

Json = Any
"""What ``json.loads`` returns."""

MAX_ALIGNED_LINES: Final = 4000
"""Aligning costs up to the square of the region that changed: larger ones are stored as plain text."""


class DeltaError(ValueError):
    """A difference does not fit the document it is applied to."""


def _cut(line: str) -> int:
    """Where the value of a line begins (0 when the line has no space)."""
    return line.rfind(" ") + 1


def _stem(line: str) -> str:
    return line[: _cut(line)]


def body_delta(old: Sequence[str], new: Sequence[str]) -> dict[str, Json] | None:
    """The difference between two bodies as lists of lines; None when the full text is the better choice."""
    edits: list[list[Json]] = []
    if len(old) == len(new) and all(a == b or _stem(a) == _stem(b) for a, b in zip(old, new, strict=True)):
        middle: list[str] = list(old)
    else:
        before, after = [_stem(line) for line in old], [_stem(line) for line in new]
        head = 0
        while head < min(len(before), len(after)) and before[head] == after[head]:
            head += 1
        tail = 0
        while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
            tail += 1
        left, right = before[head : len(before) - tail], after[head : len(after) - tail]
        if len(left) + len(right) > MAX_ALIGNED_LINES:
            return None
        middle = list(old[:head])
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if tag == "equal":
                middle.extend(old[head + i1 : head + i2])
            else:
                lines = list(new[head + j1 : head + j2])
                edits.append([head + i1, i2 - i1, lines])
                middle.extend(lines)
        middle.extend(old[len(before) - tail :])
    gaps: list[int] = []
    values: list[str] = []
    last = 0
    for number, (a, b) in enumerate(zip(middle, new, strict=True)):
        if a != b:
            gaps.append(number - last)
            values.append(b[_cut(b) :])
            last = number
    out: dict[str, Json] = {}
    if edits:
        out["edit"] = edits
    if gaps:
        out["i"] = gaps
        out["v"] = values
    return out


def apply_body_delta(lines: list[str], delta: Mapping[str, Json]) -> list[int] | None:
    """Change ``lines`` in place.  Returns the changed line numbers, or None when lines moved.

    :raises DeltaError: the difference does not fit.
    """
    try:
        edits = delta.get("edit")
        if edits:
            for start, count, replacement in reversed(edits):
                _fits(0 <= start <= start + count <= len(lines), start, lines)
                lines[start : start + count] = replacement
        changed: list[int] = []
        number = 0
        for gap, value in zip(delta.get("i", ()), delta.get("v", ()), strict=True):
            number += gap
            _fits(0 <= number < len(lines), number, lines)
            line = lines[number]
            lines[number] = line[: _cut(line)] + value
            changed.append(number)
    except DeltaError:
        raise
    except (TypeError, ValueError) as exc:
        raise DeltaError(f"not a body difference: {exc}") from exc
    return None if edits else changed


def _fits(condition: bool, number: int, lines: list[str]) -> None:
    if not condition:
        raise DeltaError(f"line {number} of a body of {len(lines)} lines")


def json_delta(old: Json, new: Json) -> dict[str, Json]:
    """The difference between two JSON documents; {} when they are equal."""
    if type(old) is type(new):
        if old == new and _same_types(old, new):
            return {}
        if isinstance(new, dict):
            changed = {}
            for key, value in new.items():
                if key not in old:
                    changed[key] = {"=": value}
                elif part := json_delta(old[key], value):
                    changed[key] = part
            gone = [key for key in old if key not in new]
            return {**({"~": changed} if changed else {}), **({"-": gone} if gone else {})}
        if isinstance(new, list) and len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            return {"@": {str(i): part for i, (a, b) in pairs if (part := json_delta(a, b))}}
    return {"=": new}


def apply_json_delta(old: Json, delta: Mapping[str, Json]) -> Json:
    """The document after the difference; ``old`` is left as it is.

    :raises DeltaError: the difference does not fit.
    """
    if not isinstance(delta, dict):
        raise DeltaError("not a document difference")
    if "=" in delta:
        return delta["="]
    try:
        if "@" in delta:
            items = list(old)
            for index, part in delta["@"].items():
                items[int(index)] = apply_json_delta(items[int(index)], part)
            return items
        if "~" in delta or "-" in delta:
            out = {key: value for key, value in old.items() if key not in delta.get("-", ())}
            for key, part in delta.get("~", {}).items():
                out[key] = apply_json_delta(old.get(key), part)
            return out
    except DeltaError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise DeltaError(f"not a difference of this document: {exc}") from exc
    return old


def _same_types(old: Json, new: Json) -> bool:
    """1 == 1.0 == True in Python, not in JSON text: equal documents must also be written alike."""
    if isinstance(new, dict):
        return all(_same_types(old[key], value) for key, value in new.items())
    if isinstance(new, list):
        return all(_same_types(a, b) for a, b in zip(old, new, strict=True))
    return type(old) is type(new) and (not isinstance(new, float) or repr(old) == repr(new))
