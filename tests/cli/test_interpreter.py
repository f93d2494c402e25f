"""The settings of Python itself, in a process of its own: they are global."""

from __future__ import annotations

import subprocess
import sys

ASKS = """
import gc, sys, weakref
from vllmeter import interpreter
interpreter.tune()
class Knot: pass
knot = Knot(); knot.self = knot; gone = weakref.ref(knot); del knot
kept = [[] for _ in range(2 * interpreter.YOUNG_OBJECTS)]
print(gc.isenabled(), gc.get_freeze_count() > 1000, round(sys.getswitchinterval(), 4), gone() is None)
"""


def test_what_was_built_is_not_looked_at_again_and_cycles_are_still_found() -> None:
    """Fewer and shorter pauses, but no leak: a cycle made afterwards goes."""
    out = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True", "True", "0.001", "True"]
