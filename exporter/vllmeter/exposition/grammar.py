"""One line of Prometheus text 0.0.4 / 1.0.0 or OpenMetrics 1.0 text: the grammar, nothing remembered.

Where the two formats differ in how strict they are about blanks, the looser rule holds for both, because no number
can become wrong by it.  What is refused is listed in :mod:`vllmeter.exposition.parse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = (
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[+-]?[iI][nN][fF](?:[iI][nN][iI][tT][yY])?|[nN][aA][nN]"
)
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED: Final = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'

is_number: Final = re.compile(_NUMBER).fullmatch
"""Match exactly one number as both formats write it (no hexadecimal, no underscores, ASCII digits only)."""

simple_line: Final = re.compile(rf"({_NAME})(?:\{{(.*)\}})? ({_NUMBER})").fullmatch
"""Name, text between the braces and value of a line that is exactly ``series SP value``.

The text between the braces must still be read by :func:`simple_labels`; only if that succeeds the match was right.
"""

_simple_label: Final = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)=({_QUOTED})(?:,|$)").match
_blank: Final = re.compile(r"[ \t]*").match
_bare_name: Final = re.compile(_NAME).match
_quoted: Final = re.compile(_QUOTED).match
_token: Final = re.compile(r"[^ \t]+").match
_label_name: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*").fullmatch
_metric_name: Final = re.compile(_NAME).fullmatch
_label_escape: Final = re.compile(r'\\([\\n"])')
_help_escape: Final = re.compile(r"\\([\\n])")
_comment: Final = re.compile(rf"#[ \t]*(TYPE|HELP|UNIT)[ \t]+({_NAME}|{_QUOTED})(?:[ \t]+(.*))?").fullmatch


class LineError(ValueError):
    """The line breaks the grammar; the text says where."""


@dataclass(frozen=True, slots=True)
class SampleLine:
    """A sample as written, its labels sorted by name.

    ``prefix`` is the text before the value when the line is exactly ``series SP value``, else None.
    Timestamps and exemplars are checked and dropped: readings go by the clock of the scrape.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    prefix: str | None
    timestamp: float | None = None


@dataclass(frozen=True, slots=True)
class CommentLine:
    """A TYPE, HELP or UNIT line."""

    word: str
    name: str
    text: str


def _replace(match: re.Match[str]) -> str:
    character = match.group(1)
    return "\n" if character == "n" else character


def unescape_label(text: str) -> str:
    r"""Undo ``\\``, ``\n`` and ``\"``; any other backslash stays as it is (so does prometheus_client)."""
    return _label_escape.sub(_replace, text) if "\\" in text else text


def unescape_help(text: str, *, openmetrics: bool) -> str:
    r"""Undo ``\\`` and ``\n``; OpenMetrics escapes ``"`` in help text too."""
    if "\\" not in text:
        return text
    return (_label_escape if openmetrics else _help_escape).sub(_replace, text)


def parse_comment(line: str, *, openmetrics: bool) -> CommentLine | None:
    """Read a line that starts with ``#``; None for an ordinary comment.

    Raises:
        LineError: a TYPE, HELP or UNIT line without a proper name, or TYPE without a type.
    """
    match = _comment(line)
    if match is None:
        words = line[1:].split(None, 2)
        if words and words[0] in ("TYPE", "HELP", "UNIT"):
            raise LineError(f"# {words[0]} needs a metric name, got {line[:80]!r}")
        return None
    word, name, text = match.groups()
    if name.startswith('"'):
        name = unescape_label(name[1:-1])
    text = text or ""
    if word == "TYPE":
        text = text.strip().lower()
        if not text or " " in text or "\t" in text:
            raise LineError(f"# TYPE {name} needs one type, got {text!r}")
    elif word == "HELP":
        text = unescape_help(text.rstrip(" \t"), openmetrics=openmetrics)
    else:
        text = text.strip()
    return CommentLine(word, name, text)


def parse_sample(line: str, *, openmetrics: bool) -> SampleLine:
    """Read a sample line.

    Raises:
        LineError: the line breaks the grammar.
    """
    match = simple_line(line)
    if match is not None:
        labels = simple_labels(match.group(2) or "")
        if labels is not None:
            return SampleLine(match.group(1), labels, float(match.group(3)), line[: match.start(3)])
    return _any_sample(line, openmetrics=openmetrics)


def simple_labels(text: str) -> tuple[tuple[str, str], ...] | None:
    """Labels written without blanks, as every known client writes them; None when it is not that simple."""
    if not text:
        return ()
    out = []
    position = 0
    end = len(text)
    while position < end:
        match = _simple_label(text, position)
        if match is None:
            return None
        value = match.group(2)[1:-1]
        if "\\" in value:
            value = unescape_label(value)
        out.append((match.group(1), value))
        position = match.end()
    if text[-1] == "," or len({name for name, _ in out}) < len(out):
        return None
    out.sort()
    return tuple(out)


def _skip_blank(line: str, position: int) -> int:
    match = _blank(line, position)
    return match.end() if match else position


def _any_sample(line: str, *, openmetrics: bool) -> SampleLine:
    position = _skip_blank(line, 0)
    name = ""
    match = _bare_name(line, position)
    if match is not None:
        name = match.group()
        position = _skip_blank(line, match.end())
    labels: tuple[tuple[str, str], ...] = ()
    if line[position : position + 1] == "{":
        quoted_name, labels, position = _labels(line, position + 1, with_name=not name)
        name = name or quoted_name
    elif match is not None and position == match.end() and position < len(line):
        raise LineError(f"bad character {line[position]!r} in metric name {line[:80]!r}")
    if not name:
        raise LineError(f"a sample must start with a metric name, got {line[:80]!r}")
    tokens, position = _tokens(line, position)
    if not tokens:
        raise LineError(f"no value after {name}")
    if is_number(tokens[0]) is None:
        raise LineError(f"value {tokens[0][:40]!r} of {name} is no number")
    timestamp: float | None = None
    if len(tokens) > 1:
        if is_number(tokens[1]) is None or not _finite(tokens[1]):
            raise LineError(f"timestamp {tokens[1][:40]!r} of {name} is no finite number")
        timestamp = float(tokens[1]) / (1 if openmetrics else 1000)
    if len(tokens) > 2:
        raise LineError(f"unexpected text {tokens[2][:40]!r} after the value of {name}")
    if position < len(line):
        if not openmetrics:
            raise LineError(f"unexpected text after the value of {name} (exemplars exist only in OpenMetrics)")
        _exemplar(line, position + 1, name)
    return SampleLine(name, labels, float(tokens[0]), None, timestamp)


def _tokens(line: str, position: int) -> tuple[list[str], int]:
    """Words up to the end of the line or to a ``#``; the position is the end or that of the ``#``."""
    tokens: list[str] = []
    while True:
        position = _skip_blank(line, position)
        if position >= len(line) or line[position] == "#":
            return tokens, position
        match = _token(line, position)
        if match is None:  # pragma: no cover - a non-blank character always matches
            return tokens, position
        tokens.append(match.group())
        position = match.end()


def _finite(token: str) -> bool:
    value = float(token)
    return value - value == 0


def _labels(line: str, position: int, *, with_name: bool) -> tuple[str, tuple[tuple[str, str], ...], int]:
    """Labels from behind ``{`` to behind ``}``.  A quoted term without ``=`` is the metric name (format 1.0.0)."""
    name = ""
    out: list[tuple[str, str]] = []
    seen: set[str] = set()
    while True:
        position = _skip_blank(line, position)
        if line[position : position + 1] == "}":
            out.sort()
            return name, tuple(out), position + 1
        match = _quoted(line, position) or _bare_name(line, position)
        if match is None:
            raise LineError(f"bad label at {line[position : position + 40]!r}")
        term = match.group()
        is_quoted = term.startswith('"')
        if is_quoted:
            term = unescape_label(term[1:-1])
        position = _skip_blank(line, match.end())
        if line[position : position + 1] == "=":
            position = _skip_blank(line, position + 1)
            match = _quoted(line, position)
            if match is None:
                raise LineError(
                    f"value of label {term} is not a closed quoted text: {line[position : position + 40]!r}"
                )
            if not is_quoted and _label_name(term) is None:
                raise LineError(f"bad label name {term!r}")
            if term in seen:
                raise LineError(f"label {term} stands twice in one series")
            seen.add(term)
            out.append((term, unescape_label(match.group()[1:-1])))
            position = _skip_blank(line, match.end())
        elif is_quoted and with_name and not name and not out and term:
            name = term
        else:
            raise LineError(f"label {term} has no value")
        following = line[position : position + 1]
        if following == ",":
            position += 1
        elif following != "}":
            raise LineError(f"expected ',' or '}}' at {line[position : position + 40]!r}")


def _exemplar(line: str, position: int, name: str) -> None:
    """Check ``{labels} value [timestamp]`` behind the ``#``; nothing of it is kept."""
    position = _skip_blank(line, position)
    if line[position : position + 1] != "{":
        raise LineError(f"exemplar of {name} must start with '{{'")
    _, _, position = _labels(line, position + 1, with_name=False)
    tokens, position = _tokens(line, position)
    if position < len(line) or not 1 <= len(tokens) <= 2 or any(is_number(token) is None for token in tokens):
        raise LineError(f"exemplar of {name} needs a value and at most a timestamp")
