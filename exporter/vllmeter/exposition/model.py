"""What the parser hands on: series, families, and the values of one body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class ParseError(ValueError):
    """A body that cannot be used.  ``line_number`` counts from 1; ``message`` names cause and remedy."""

    def __init__(self, line_number: int, message: str) -> None:
        super().__init__(f"line {line_number}: {message}")
        self.line_number = line_number
        self.message = message


@dataclass(frozen=True, slots=True)
class FamilyMeta:
    """What ``# TYPE``, ``# HELP`` and ``# UNIT`` say of a family.

    ``kind`` is the word of the TYPE line in lower case; ``unknown`` when there is none, for ``untyped``, and for
    words that neither format knows (a newer server may send one; its samples still count).
    """

    kind: str = "unknown"
    help: str = ""
    unit: str = ""


class Series(NamedTuple):
    """One sample line without its value.

    ``name`` is the sample name as written (``vllm:ttft_bucket``), ``labels`` are sorted by name, ``family`` is the
    declared family that the sample belongs to (``name`` itself when none is declared) and ``kind`` its type.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    family: str
    kind: str


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """Everything in a body but the values.

    A :class:`~vllmeter.exposition.parse.Parser` hands out the same object as long as the shape stays the same, so
    later steps may keep what they worked out about it (compare with ``is``).
    """

    series: tuple[Series, ...]
    families: Mapping[str, FamilyMeta] = field(default_factory=dict)
    openmetrics: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Exposition:
    """One parsed body; ``values`` runs parallel to ``shape.series``.  Never changed after it is made."""

    shape: Shape
    values: Sequence[float]

    @property
    def series(self) -> tuple[Series, ...]:
        """The series of the body in its order."""
        return self.shape.series

    @property
    def families(self) -> Mapping[str, FamilyMeta]:
        """Declared families by name as written, also those without a sample."""
        return self.shape.families
