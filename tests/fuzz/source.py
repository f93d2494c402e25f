"""Decisions read from bytes: the same generators serve hypothesis and atheris, which is led by coverage."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Source:
    """Takes numbers and choices off a byte string; when it is used up, every answer is the first one."""

    __slots__ = ("_at", "_data", "lot")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.lot = zlib.crc32(data)
        """a number that a fuzzer cannot steer: what share of the inputs is damaged does not drift with the corpus"""

    @property
    def empty(self) -> bool:
        """Whether all bytes are used."""
        return self._at >= len(self._data)

    @property
    def wild(self) -> bool:
        """True for a quarter of the inputs: those are damaged."""
        return self.lot % 4 == 3

    def damage(self) -> Source:
        """Where decisions about damage come from: every other time from what is left, else from bytes of their own."""
        return Source(random.Random(self.lot).randbytes(300)) if self.lot % 8 == 3 else self

    def number(self, below: int) -> int:
        """0 <= n < below."""
        if below <= 1:
            return 0
        size = 1 if below <= 256 else 2 if below <= 65536 else 4
        piece = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(piece, "big") % below

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.number(len(items))]

    def often(self, of: int = 8) -> bool:
        """True in all but one of ``of`` cases; True when used up."""
        return self.number(of) != of - 1

    def text(self, most: int) -> bytes:
        """Up to ``most`` raw bytes."""
        size = self.number(most + 1)
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece
