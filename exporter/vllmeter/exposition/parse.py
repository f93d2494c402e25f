"""Bodies of ``/metrics`` in Prometheus text (0.0.4, 1.0.0) and OpenMetrics 1.0 text.

Successive bodies of one server differ in few lines, so a :class:`Parser` keeps the lines of the last body and what
they mean.  A line that is the same text has the same value; a line that differs must start with the remembered text
of its series and go on with one number and nothing else.  If any line breaks that, the whole body is read anew by
the grammar (with the series texts that were already verified looked up instead of parsed again).

What makes a body unusable (:class:`ParseError`; the scrape counts as failed with reason ``parse``):

* bytes that are not UTF-8;
* a line that breaks the grammar, a duplicate label name, a value that is no number;
* the same series twice, in whatever order its labels stand (which of the two would be right?);
* two TYPE lines of one family that disagree, or a TYPE line after the first sample of its family;
* a body that was cut off: text without a final line feed, OpenMetrics without ``# EOF`` or with lines after it;
* more lines than ``max_lines``.

What does not: negative or non-finite counters and inconsistent histograms (``upstream.normalise`` leaves those
series out and says so), unknown type words, families that are interleaved, blank lines, unknown comments.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import compress, count
from operator import ne
from typing import Final

from vllmeter.exposition.grammar import (
    CommentLine,
    LineError,
    is_number,
    parse_comment,
    parse_sample,
    simple_labels,
    simple_line,
)
from vllmeter.exposition.model import Exposition, FamilyMeta, ParseError, Series, Shape

__all__ = ["Exposition", "FamilyMeta", "ParseError", "Parser", "Series", "Shape"]

MAX_LINES: Final = 200_000
"""Lines that a body may have; a vLLM server has 700 to 1,500."""

MAX_REMEMBERED_LINES: Final = 20_000
"""Bodies with more lines are parsed, but nothing of them is kept (about 200 bytes a line)."""

Labels = tuple[tuple[str, str], ...]

_KINDS: Final = frozenset(("counter", "gauge", "histogram", "summary", "info", "stateset", "gaugehistogram", "unknown"))

# Sample suffixes by type, both formats together: text declares `x_total counter`, OpenMetrics `x counter`.
_SUFFIXES: Final = {
    "counter": ("_total", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "summary": ("_sum", "_count", "_created"),
    "info": ("_info",),
}


def is_openmetrics(text: str, content_type: str | None) -> bool:
    """Whether ``text`` is OpenMetrics, by its Content-Type; without a telling one, by its last line."""
    media = (content_type or "").split(";", 1)[0].strip().lower()
    if media == "application/openmetrics-text":
        return True
    if media == "text/plain":
        return False
    # 0.8.5 answers application/json (vllm-metrics, section 1), old proxies drop the header.
    return text.rstrip("\n").endswith("\n# EOF") or text.rstrip("\n") == "# EOF"


class Parser:
    """Parses the bodies of one target.  Not for use by several threads at once.

    Args:
        max_lines: bodies with more lines are refused.
        max_remembered_lines: bodies with more lines leave nothing in memory.
    """

    __slots__ = (
        "_cuts",
        "_lines",
        "_max_lines",
        "_max_remembered",
        "_openmetrics",
        "_shape",
        "_slots",
        "_values",
    )

    def __init__(self, *, max_lines: int = MAX_LINES, max_remembered_lines: int = MAX_REMEMBERED_LINES) -> None:
        self._max_lines = max_lines
        self._max_remembered = max_remembered_lines
        self.forget()

    def forget(self) -> None:
        """Drop what is known of earlier bodies."""
        self._shape: Shape | None = None
        self._openmetrics = False
        self._lines: list[str] = []
        # Parallel to _lines: where the value begins (0 for comments and for lines that are not exactly
        # `series SP value`), and the position of the line's value in _values (-1 for none).
        self._cuts: list[int] = []
        self._slots: list[int] = []
        self._values: list[float] = []

    def parse(self, body: bytes | str, content_type: str | None = None) -> Exposition:
        """Parse one body.

        Args:
            body: the decompressed body.
            content_type: the response's Content-Type header; it decides between the two formats.

        Raises:
            ParseError: the body cannot be used; what was remembered is dropped.
        """
        if isinstance(body, bytes):
            try:
                text = body.decode("utf-8")
            except UnicodeDecodeError as error:
                self.forget()
                line = body.count(b"\n", 0, error.start) + 1
                raise ParseError(line, f"not UTF-8 at byte {error.start}; is this a /metrics endpoint?") from None
        else:
            text = body
        openmetrics = is_openmetrics(text, content_type)
        lines = text.split("\n")
        shape = self._shape
        if shape is not None and openmetrics == self._openmetrics and len(lines) == len(self._lines):
            values = self._update(lines)
            if values is not None:
                return Exposition(shape, values)
        try:
            return self._read(lines, openmetrics=openmetrics)
        except ParseError:
            self.forget()
            raise

    def _update(self, lines: list[str]) -> list[float] | None:
        """Values of a body whose shape is the remembered one; None when it is not (then nothing was changed)."""
        known = self._lines
        cuts = self._cuts
        changed = list(compress(count(), map(ne, lines, known)))
        fresh = []
        # The buckets of a histogram above its largest observation all have one value.
        numbers: dict[str, float] = {}
        for i in changed:
            cut = cuts[i]
            line = lines[i]
            if not cut or line[:cut] != known[i][:cut]:
                return None
            token = line[cut:]
            value = numbers.get(token)
            if value is None:
                if is_number(token) is None:
                    return None
                value = numbers[token] = float(token)
            fresh.append(value)
        values = self._values.copy()
        slots = self._slots
        for i, value in zip(changed, fresh, strict=True):
            known[i] = lines[i]
            values[slots[i]] = value
        self._values = values
        return values

    def _read(self, lines: list[str], *, openmetrics: bool) -> Exposition:
        """Read a body by the grammar and remember it."""
        self._check_end(lines, openmetrics=openmetrics)
        known = self._known_series()
        read_labels: dict[str, Labels | None] = {}
        declared = _Declared()
        cuts: list[int] = []
        slots: list[int] = []
        values: list[float] = []
        names: list[tuple[str, Labels]] = []
        number = 0
        try:
            for line in lines:
                number += 1
                if line.startswith("#"):
                    cuts.append(0)
                    slots.append(-1)
                    comment = _comment(line, openmetrics)
                    if comment is not None:
                        declared.take(comment, names)
                    continue
                cut = line.rfind(" ") + 1
                found = known.get(line[:cut])
                if found is not None and is_number(line[cut:]) is not None:
                    value = float(line[cut:])
                elif not line or line.isspace():
                    cuts.append(0)
                    slots.append(-1)
                    continue
                else:
                    found = None
                    match = simple_line(line)
                    if match is not None:
                        text = match.group(2) or ""
                        labels = read_labels.get(text)
                        if labels is None:
                            labels = read_labels[text] = _interned(simple_labels(text))
                        if labels is not None:
                            found = (sys.intern(match.group(1)), labels)
                            value = float(line[cut:])
                    if found is None:
                        sample = parse_sample(line, openmetrics=openmetrics)
                        value = sample.value
                        found = (sys.intern(sample.name), _interned(sample.labels) or ())
                        cut = 0
                names.append(found)
                cuts.append(cut)
                slots.append(len(values))
                values.append(value)
        except LineError as error:
            raise ParseError(number, str(error)) from None
        _refuse_duplicates(names, slots)
        families = declared.families()
        series = _series(names, families)
        shape = self._shape
        if shape is None or openmetrics != self._openmetrics or series != shape.series or families != shape.families:
            shape = Shape(series, families, openmetrics)
        self.forget()
        if len(lines) <= self._max_remembered:
            self._shape = shape
            self._openmetrics = openmetrics
            # Comments are the same text on every server of a version: one copy for all of them.
            self._lines = [sys.intern(line) if line.startswith("#") else line for line in lines]
            self._cuts = cuts
            self._slots = slots
            self._values = values
        return Exposition(shape, values)

    def _known_series(self) -> dict[str, tuple[str, Labels]]:
        """Series texts (with their blank) that the last body verified."""
        shape = self._shape
        if shape is None:
            return {}
        return {
            line[:cut]: shape.series[slot][:2]
            for line, cut, slot in zip(self._lines, self._cuts, self._slots, strict=True)
            if cut
        }

    def _check_end(self, lines: list[str], *, openmetrics: bool) -> None:
        last = len(lines)
        if last > self._max_lines:
            raise ParseError(self._max_lines + 1, f"more than {self._max_lines} lines; is this a vLLM server?")
        if openmetrics:
            try:
                end = lines.index("# EOF") + 1
            except ValueError:
                raise ParseError(last, "OpenMetrics text without '# EOF': the body was cut off") from None
            if any(lines[end:-1]) or lines[-1] not in ("", "# EOF"):
                raise ParseError(end + 1, "OpenMetrics text goes on after '# EOF'")
        elif lines[-1]:
            raise ParseError(last, "the last line has no line feed: the body was cut off")


class _Declared:
    """What the comment lines of one body declare, in their order."""

    __slots__ = ("_helps", "_kinds", "_sampled", "_seen", "_units")

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._helps: dict[str, str] = {}
        self._units: dict[str, str] = {}
        self._sampled: set[str] = set()
        self._seen = 0

    def take(self, comment: CommentLine, names: list[tuple[str, Labels]]) -> None:
        """Take one comment line; ``names`` are the samples before it.

        Raises:
            LineError: a type that differs from an earlier one, or that comes after samples of its family.
        """
        name = comment.name
        if comment.word == "HELP":
            self._helps.setdefault(name, comment.text)
            return
        if comment.word == "UNIT":
            self._units.setdefault(name, comment.text)
            return
        kind = comment.text if comment.text in _KINDS else "unknown"
        earlier = self._kinds.get(name)
        if earlier == kind:
            return
        if earlier is not None:
            raise LineError(f"type of {name} is given twice and differs: {earlier}, then {kind}")
        self._sampled.update([sampled for sampled, _ in names[self._seen :]])
        self._seen = len(names)
        if name in self._sampled or any(name + suffix in self._sampled for suffix in _SUFFIXES.get(kind, ())):
            raise LineError(f"type of {name} stands after its first sample")
        self._kinds[name] = kind

    def families(self) -> dict[str, FamilyMeta]:
        """All declared families."""
        kinds, helps, units = self._kinds, self._helps, self._units
        return {
            name: FamilyMeta(kinds.get(name, "unknown"), helps.get(name, ""), units.get(name, ""))
            for name in dict.fromkeys((*kinds, *helps, *units))
        }


@lru_cache(maxsize=4096)
def _comment(line: str, openmetrics: bool) -> CommentLine | None:
    # Comments are the same on every server of a version, and most of them come back in every body.
    return parse_comment(line, openmetrics=openmetrics)


def _series(names: list[tuple[str, Labels]], families: dict[str, FamilyMeta]) -> tuple[Series, ...]:
    owners: dict[str, tuple[str, str]] = {}
    out = []
    for name, labels in names:
        owner = owners.get(name)
        if owner is None:
            owner = owners[name] = _family_of(name, families)
        out.append(Series(name, labels, owner[0], owner[1]))
    return tuple(out)


def _family_of(name: str, families: dict[str, FamilyMeta]) -> tuple[str, str]:
    """Declared family of a sample name and its type; the name itself and ``unknown`` when none fits."""
    meta = families.get(name)
    if meta is not None:
        return name, meta.kind
    base, _, suffix = name.rpartition("_")
    if base:
        meta = families.get(base)
        if meta is not None and "_" + suffix in _SUFFIXES.get(meta.kind, ()):
            return base, meta.kind
    return name, "unknown"


def _interned(labels: Labels | None) -> Labels | None:
    if labels is None:
        return None
    return tuple([(sys.intern(name), sys.intern(value)) for name, value in labels])


def _refuse_duplicates(names: list[tuple[str, Labels]], slots: list[int]) -> None:
    if len(set(names)) == len(names):
        return
    seen: set[tuple[str, Labels]] = set()
    for position, name in enumerate(names):
        if name in seen:
            raise ParseError(slots.index(position) + 1, f"series {name[0]} with these labels stands twice")
        seen.add(name)
