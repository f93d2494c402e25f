"""Contention: in which seconds of server A did another server on the same GPU compute too?

Every sample of a server covers a stretch of time (start, end].  In it the server was *busy* (requests running or
waiting, or tokens moved) or not, and it *computed* (tokens moved, or its processes used more than 5 % of SM time) or
not.  The stretches are laid on one time axis per host, in slots of a quarter of a second (a slot belongs to the stretch
that holds its middle, so successive stretches never share one).  In a window::

    ratio = slots in which A was busy and another server on the GPU computed / slots in which A was busy

TTFT is split by cell: a cell of A counts as contended when another server computed in at least half of its slots, else
as clear.  A mean is absent with fewer than :data:`MIN_REQUESTS` requests on its side.

This is association, not cause, and biased for TTFT longer than a second: the first token is recorded at the end of the
wait, which may have passed in other seconds.

Slots are bits of one integer per server, so "any other server" over all tenants of a GPU is a handful of ORs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import Final

from vllmeter.snapshot import Contention
from vllmeter.windows.ring import RING_SECONDS

SLOT_SECONDS: Final = 0.25

SM_COMPUTES: Final = 0.05
"""A server whose processes used more than this share of SM time computed."""

LONGEST_STRETCH: Final = 5.0
"""A sample that covers more seconds says nothing about the single seconds in it: it is left out."""

MIN_REQUESTS: Final = 10
"""Fewest requests on each side for a mean."""

_KEPT_SLOTS: Final = int(RING_SECONDS / SLOT_SECONDS)
_KEPT: Final = (1 << _KEPT_SLOTS) - 1


def slot_after(at: float) -> int:
    """First slot whose middle lies after ``at``."""
    return floor(at / SLOT_SECONDS - 0.5) + 1


class SlotMask:
    """A set of time slots, the newest 15 minutes of them, as bits of one integer (bit 0 = slot ``head``)."""

    __slots__ = ("bits", "head")

    def __init__(self) -> None:
        self.head = 0
        self.bits = 0

    def mark(self, start: float, end: float) -> None:
        """Add the slots with their middle in (start, end]; stretches come in the order of their ends."""
        first, stop = slot_after(start), slot_after(end)
        if stop <= first:
            return
        if stop - 1 > self.head:
            shift = stop - 1 - self.head
            self.bits = (self.bits << shift) & _KEPT if shift < _KEPT_SLOTS else 0
            self.head = stop - 1
        length = min(stop - first, _KEPT_SLOTS)
        self.bits |= (((1 << length) - 1) << (self.head - stop + 1)) & _KEPT

    def window(self, first: int, stop: int) -> int:
        """Bits of the slots first..stop-1, bit 0 = slot ``stop - 1``."""
        shift = self.head - (stop - 1)
        bits = self.bits >> shift if shift >= 0 else self.bits << -shift
        return bits & ((1 << max(stop - first, 0)) - 1)


def others(computed: Sequence[int]) -> list[int]:
    """For each server the slots in which any *other* one computed (bits over one common window)."""
    once = twice = 0
    for bits in computed:
        twice |= once & bits
        once |= bits
    return [twice | (once & ~bits) for bits in computed]


Slotted = tuple[int, int, int, float]
"""A TTFT cell on the axis: (first slot, slot after the last, requests, sum of TTFT in seconds)."""


def contention(busy: int, other: int, cells: Iterable[Slotted], first: int, stop: int) -> Contention:
    """Contention of one server on one GPU.

    ``busy`` and ``other`` are bits over slots first..stop-1 (bit 0 = the last); cells outside these slots are left out.
    """
    busy_slots = busy.bit_count()
    ratio = (busy & other).bit_count() / busy_slots if busy_slots else None
    sums = [0.0, 0.0]
    requests = [0, 0]
    for from_slot, to_slot, count, total in cells:
        begin, end = max(from_slot, first), min(to_slot, stop)
        if begin >= end:
            continue
        length = end - begin
        side = 0
        if other:
            part = (other >> (stop - end)) & ((1 << length) - 1)
            side = 1 if part.bit_count() >= ceil(length / 2) else 0
        sums[side] += total
        requests[side] += count
    clear, contended = requests
    enough = min(requests) >= MIN_REQUESTS
    reason = None
    if not busy_slots:
        reason = "never_busy"
    elif not enough:
        reason = "too_few_requests"
    return Contention(
        ratio=ratio,
        contended_mean=sums[1] / contended if enough else None,
        contended_requests=contended,
        clear_mean=sums[0] / clear if enough else None,
        clear_requests=clear,
        reason=reason,
    )
