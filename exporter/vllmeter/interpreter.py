"""How Python itself is set for a process that samples with many threads and answers in between."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.001
"""How long a busy thread may keep the interpreter while another waits: an answer passes several threads, and Python's
5 ms at each of them would add up beside 200 sampling threads."""
YOUNG_OBJECTS: Final = 50_000
"""Objects made and not freed before the garbage collector looks for cycles (Python: 700).  Readings are replaced all
the time and are free of cycles: with 200 servers the collector took 5 % of a core and held everything up for 0.1 s at a
time, to find some fifty objects a second."""


def tune() -> None:
    """To be called once, when everything that stays has been built."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # modules, settings and routes are not looked at again
    # A look at everything (0.1 s with 200 servers) comes every few minutes then, not every few seconds.
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
