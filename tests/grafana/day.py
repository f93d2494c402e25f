"""A day of three servers at 15 s, of the families that panels read: the recording, played 288 times, as blocks."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

from grafana import boards, stores
from grafana.recorded import Recorded, build, run_promtool

STEP = 15
LOOP = 300
HOURS = 24
BLOCK_HOURS = 2
END = 1_800_000_000 - 1_800_000_000 % (BLOCK_HOURS * 3600)
"""Unix time of the end of the day, on a border of blocks"""


def names_used() -> frozenset[str]:
    """Every metric that a target, a variable or an annotation reads."""
    out: set[str] = set()
    for target in boards.targets():
        out |= {selector.name for selector, _ in boards.selectors(target.expr)}
    for name in boards.NAMES:
        queries = [*boards.variable_queries(name).values(), *(q["expr"] for q in boards.annotation_queries(name))]
        for query in queries:
            out |= {selector.name for selector, _ in boards.selectors(query)}
    return frozenset(out)


def _loop(recorded: Recorded) -> list[list[str]]:
    """For each of the 20 moments of a loop the lines without their time."""
    wanted = names_used()
    # The longest comparison there is: both runs as long as Load test looks, the second one until the end of the day.
    starts = {"base-2048-short": END - HOURS * 3600, "cand-8192-short": END - HOURS * 1800}
    at: dict[int, list[str]] = defaultdict(list)
    for series, measured, moment in recorded.samples:
        value = measured
        position = round(moment - recorded.begin)
        if position % STEP == 0 and series.partition("{")[0] in wanted:
            if series.startswith("vllmeter_run_start_timestamp_seconds"):
                value = next((float(at_) for run, at_ in starts.items() if f'run="{run}"' in series), value)
            shown = "NaN" if value != value else repr(value).replace("inf", "Inf")
            at[position // STEP].append(f"{series} {shown}")
    return [at[number] for number in range(LOOP // STEP)]


def make(place: Path) -> None:
    """Writes the blocks into ``place``."""
    promtool, prometheus = stores.needed("promtool", stores.OLD), stores.needed("prometheus", stores.OLD)
    short = place / "short"
    loop = _loop(build(promtool, prometheus, short))
    shutil.rmtree(short)
    shutil.rmtree(place / "short-scratch", ignore_errors=True)
    begin = END - HOURS * 3600
    for start in range(begin, END, BLOCK_HOURS * 3600):
        text = place / "samples.om"
        with text.open("w", encoding="utf-8") as out:
            for at in range(start, start + BLOCK_HOURS * 3600, STEP):
                for line in loop[(at - begin) % LOOP // STEP]:
                    out.write(f"{line} {at}\n")
            out.write("# EOF\n")
        run_promtool(promtool, text, place)
        text.unlink()


def blocks() -> Path:
    """The blocks, made once for the same inputs and the same names."""
    return stores.kept("day", make, ",".join(sorted(names_used())))
