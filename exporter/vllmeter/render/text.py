"""Writes exposition text: label escaping, number format, family order, both formats.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllmeter.catalogue import BY_NAME, CATALOGUE, PREFIX
from vllmeter.snapshot import HistogramRef, Layout, ScalarRef, ServerReading

CLASSIC: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Blocks = dict[str, bytes]
"""family name -> its sample lines, each ending in a newline"""


def escape(value: str) -> str:
    """A label value as both formats want it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """Shortest text that reads back as the same float; whole numbers without a fraction."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    whole = int(value)
    if whole == value and abs(whole) < 1 << 53:
        return str(whole)
    return repr(float(value))


def bound(value: float) -> str:
    """A histogram bound in one form, whatever upstream wrote: ``0.25``, ``1.0``, ``+Inf``."""
    return "+Inf" if value == float("inf") else repr(float(value))


def series(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """``prefix_name{a="b"}`` followed by the blank that stands before the value."""
    labels = ",".join(f'{key}="{escape(value)}"' for key, value in pairs)
    return f"{PREFIX}{name}{{{labels}}} " if labels else f"{PREFIX}{name} "


@dataclass(frozen=True, slots=True)
class _Lines:
    """What every line of one layout begins with."""

    layout: Layout
    scalars: list[tuple[str, int, str]]
    histograms: list[tuple[str, int, list[str], str, str]]
    series: int
    written: dict[int, tuple[Sequence[float], float, str]] = field(default_factory=dict)
    """histogram index -> what its lines were last written from, and the lines: most do not change in a second"""


class ServerText:
    """Sample lines of one server's own families, from line prefixes kept per layout.

    ``render`` costs one format call per sample; everything that does not change between scrapes is kept.  ``count`` may
    be asked from another thread meanwhile.
    """

    def __init__(self, server: str, without: Sequence[str] = ()) -> None:
        self._server = server
        self._without = frozenset(without)
        self._lines: _Lines | None = None

    def count(self, layout: Layout) -> int:
        """How many series a reading of this layout shows."""
        return self._of(layout).series

    def render(self, reading: ServerReading) -> Blocks:
        """family -> lines of this reading."""
        of = self._of(reading.layout)
        lines: dict[str, list[str]] = {}
        values = reading.values
        for family, index, prefix in of.scalars:
            lines.setdefault(family, []).append(f"{prefix}{number(values[index])}\n")
        for family, index, prefixes, sum_prefix, count_prefix in of.histograms:
            counts, total = reading.buckets[index], reading.sums[index]
            written = of.written.get(index)
            if written is None or written[0] != counts or written[1] != total:
                text = "".join([f"{prefix}{number(count)}\n" for prefix, count in zip(prefixes, counts, strict=True)])
                text += f"{sum_prefix}{number(total)}\n{count_prefix}{number(counts[-1])}\n"
                written = of.written[index] = (counts, total, text)
            lines.setdefault(family, []).append(written[2])
        return {family: "".join(parts).encode() for family, parts in lines.items()}

    def _of(self, layout: Layout) -> _Lines:
        lines = self._lines
        if lines is None or lines.layout is not layout:
            lines = self._lines = self._prepared(layout)
        return lines

    def _prepared(self, layout: Layout) -> _Lines:
        scalars = [
            (ref.family, index, series(ref.family, self._pairs(ref)))
            for index, ref in enumerate(layout.scalars)
            if ref.family in BY_NAME
        ]
        histograms = []
        for index, ref in enumerate(layout.histograms):
            if ref.family in self._without or ref.family not in BY_NAME:
                continue
            pairs = self._pairs(ref)
            prefixes = [
                series(f"{ref.family}_bucket", (*pairs, ("le", bound(le)))) for le in (*ref.bounds, float("inf"))
            ]
            histograms.append(
                (ref.family, index, prefixes, series(f"{ref.family}_sum", pairs), series(f"{ref.family}_count", pairs))
            )
        return _Lines(layout, scalars, histograms, len(scalars) + sum(len(each[2]) + 2 for each in histograms))

    def _pairs(self, ref: ScalarRef | HistogramRef) -> tuple[tuple[str, str], ...]:
        return (("server", self._server), *ref.labels)


def document(blocks: Sequence[Mapping[str, bytes]], *, openmetrics: bool) -> bytes:
    """The whole ``/metrics`` body: families in catalogue order, each once, the lines of all ``blocks`` together."""
    out: list[bytes] = []
    for family, (classic_head, openmetrics_head) in _HEADS.items():
        parts = [block[family] for block in blocks if family in block]
        if parts:
            out.append(openmetrics_head if openmetrics else classic_head)
            out.extend(parts)
    if openmetrics:
        out.append(b"# EOF\n")
    return b"".join(out)


def _heads() -> dict[str, tuple[bytes, bytes]]:
    heads = {}
    for family in CATALOGUE:
        text = family.help  # a test refuses quotes, backslashes and line ends in help texts
        name = family.exposed
        bare = name.removesuffix("_total") if family.exposed_type == "counter" else name
        heads[family.name] = (
            f"# HELP {name} {text}\n# TYPE {name} {family.exposed_type}\n".encode(),
            f"# HELP {bare} {text}\n# TYPE {bare} {family.exposed_type}\n".encode(),
        )
    return heads


_HEADS: Final = _heads()
