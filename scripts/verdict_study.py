"""How often are the verdicts of ``vllmeter compare`` wrong, and what do they find?  A simulation.

    python scripts/verdict_study.py --seeds 1000 --markdown docs/runs-study.md

Every case simulates three baseline and three candidate runs in the order A B B A A B, with the code that ``compare``
uses.  A verdict is false when it says better or worse although both sides are equal (effect 0 %), or better although
the candidate is slower (5 %, 20 %).  "naive" is what a bootstrap of single requests would say: for comparison only.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exporter"))

from vllmeter.runs.resample import clusters, estimate
from vllmeter.runs.verdict import RELEVANT, RunValue, Spread, Word, judge

ORDER = (0, 3, 4, 1, 2, 5)
"""Start positions: the baseline runs, then the candidate runs (A B B A A B)."""
EFFECTS = (0.0, 0.05, 0.20)
SIGMA = 0.35
"""Standard deviation of ln(TTFT) of one request, as in a moderately loaded server."""
RUN_EFFECT = 0.03


@dataclass(frozen=True)
class Load:
    """One kind of load: how requests depend on one another."""

    name: str
    batch: int = 1
    icc: float = 0.0
    kind: str = "independent"

    def sample(self, generator: np.random.Generator, n: int) -> tuple[Any, Any]:
        """(starts, TTFTs) of the six runs, each of shape (6, n), in seconds."""
        if self.kind == "queueing":
            return self._queueing(generator, n)
        batches = math.ceil(n / self.batch)
        common = np.repeat(generator.normal(size=(6, batches)), self.batch, axis=1)[:, :n]
        single = generator.normal(size=(6, n))
        logs = SIGMA * (math.sqrt(self.icc) * common + math.sqrt(1 - self.icc) * single)
        if self.kind == "drift":
            # each run drifts by a random slope, and the session by 2 % a run
            slopes = generator.normal(scale=0.2, size=(6, 1)) * (np.arange(n) / n - 0.5)
            logs = logs + slopes + 0.02 * np.asarray(ORDER)[:, None]
        batch_of = np.arange(n) // self.batch
        starts = 3.0 * batch_of + 0.001 * (np.arange(n) % self.batch)
        ttfts = 0.08 * np.exp(logs)
        return np.broadcast_to(starts, ttfts.shape), ttfts

    def _queueing(self, generator: np.random.Generator, n: int) -> tuple[Any, Any]:
        """One server at 70 % use: waits carry over from request to request (Lindley's recursion)."""
        warm = 200
        service = generator.lognormal(math.log(0.06), SIGMA, size=(6, n + warm))
        gaps = generator.exponential(service.mean() / 0.7, size=(6, n + warm))
        wait = np.zeros(6)
        found = np.empty((6, n + warm))
        for index in range(n + warm):
            found[:, index] = wait + service[:, index]
            wait = np.maximum(0.0, wait + service[:, index] - gaps[:, index])
        return np.cumsum(gaps, axis=1)[:, warm:], found[:, warm:]


LOADS = (
    Load("independent"),
    *(Load(f"lockstep {batch}, ICC {icc}", batch, icc) for batch in (4, 8, 16) for icc in (0.5, 0.7, 0.9)),
    Load("queueing", kind="queueing"),
    Load("drift", kind="drift"),
)


@dataclass(frozen=True)
class Row:
    """Shares of verdicts for one case, over all seeds."""

    load: str
    run_effect: float
    n: int
    metric: str
    false_none: float
    false_small: float
    false_large: float
    power_small: float
    power_large: float
    false_stored: float
    power_stored: float
    decided_single: float
    false_naive: float
    effective: float


def case(load: Load, n: int, seeds: int) -> Iterator[Row]:
    """Simulates ``seeds`` sessions of ``load`` with ``n`` requests a run."""
    runs: dict[str, list[list[RunValue]]] = {"mean": [], "p95": []}
    naive: list[tuple[float, float]] = []
    effects = []
    for seed in range(seeds):
        generator = np.random.default_rng([seed, n, load.batch, round(load.icc * 10), len(load.kind)])
        starts, ttfts = load.sample(generator, n)
        effects.append(generator.normal(scale=RUN_EFFECT, size=6))
        found: dict[str, list[RunValue]] = {"mean": [], "p95": []}
        for run in range(6):
            labels = np.asarray(clusters(starts[run], starts[run] + ttfts[run]), dtype=np.int64)
            order = np.argsort(labels, kind="stable")
            for metric, q in (("mean", None), ("p95", 0.95)):
                one = estimate(ttfts[run][order], labels[order], q, resamples=200)
                found[metric].append(RunValue(one.value, n, one.effective, one.error, one.blocks, float(ORDER[run])))
        for metric, each in found.items():
            runs[metric].append(each)
        a, b = ttfts[:3].ravel(), ttfts[3:].ravel()
        error = math.sqrt(a.var() / a.mean() ** 2 / a.size + b.var() / b.mean() ** 2 / b.size)
        naive.append((math.log(b.mean() / a.mean()), error))
    for run_effect in (0.0, RUN_EFFECT):
        for metric, q in (("mean", None), ("p95", 0.95)):
            yield _row(load, n, metric, q, runs[metric], effects if run_effect else None, run_effect, naive, seeds)


def _scaled(runs: list[RunValue], effects: Any, effect: float) -> list[RunValue]:
    """Multiplies whole runs: every statistic here scales with its values."""
    return [
        RunValue(
            run.value * math.exp(0.0 if effects is None else effects[index]) * (1 + effect if index >= 3 else 1.0),
            run.requests, run.effective, run.error, run.blocks, run.started,
        )
        for index, run in enumerate(runs)
    ]  # fmt: skip


def _row(
    load: Load,
    n: int,
    metric: str,
    q: float | None,
    runs: list[list[RunValue]],
    effects: Any,
    size: float,
    naive: list[tuple[float, float]],
    seeds: int,
) -> Row:
    false = dict.fromkeys(EFFECTS, 0)
    found = dict.fromkeys(EFFECTS, 0)
    stored_false = stored_found = single = naive_false = 0
    for seed in range(seeds):
        earlier = _scaled(runs[seed - 1], None if effects is None else effects[seed - 1], 0.0)
        spread = _spread(earlier)
        for effect in EFFECTS:
            each = _scaled(runs[seed], None if effects is None else effects[seed], effect)
            word = judge(each[:3], each[3:], q=q).word
            false[effect] += word is Word.BETTER or (effect == 0 and word is Word.WORSE)
            found[effect] += word is Word.WORSE
            if effect != 0.05:
                one = judge(each[:1], each[3:4], q=q, spread=spread).word
                stored_false += effect == 0 and one in (Word.BETTER, Word.WORSE)
                stored_found += effect == 0.20 and one is Word.WORSE
            if effect == 0:
                single += judge(each[:1], each[3:4], q=q).word in (Word.BETTER, Word.WORSE)
        shift = 0.0 if effects is None else float(np.mean(effects[seed][3:]) - np.mean(effects[seed][:3]))
        delta, error = naive[seed]
        naive_false += abs(delta + shift) > 1.96 * error
    return Row(
        load.name, size, n, metric,
        false[0.0] / seeds, false[0.05] / seeds, false[0.20] / seeds, found[0.05] / seeds, found[0.20] / seeds,
        stored_false / seeds, stored_found / seeds, single / seeds,
        naive_false / seeds if metric == "mean" else math.nan,
        float(np.mean([sum(run.effective or 0.0 for run in each[:3]) for each in runs])),
    )  # fmt: skip


def _spread(runs: list[RunValue]) -> Spread:
    """Spread of an earlier session of three runs a side: four degrees of freedom."""
    squares = 0.0
    for side in (runs[:3], runs[3:]):
        logs = [math.log(run.value) for run in side]
        squares += sum((each - sum(logs) / 3) ** 2 for each in logs)
    return Spread(math.sqrt(squares / 4), 4)


HEADER = (
    "| load | run-to-run | n a run | TTFT | effective n a side | false 0 % | false 5 % | false 20 % "
    "| finds 5 % | finds 20 % | stored spread: false / finds 20 % | naive false |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    """One line of the result table."""
    shares = (row.false_none, row.false_small, row.false_large, row.power_small, row.power_large)
    naive = "" if math.isnan(row.false_naive) else f"{row.false_naive:.1%}"
    return (
        f"| {row.load} | {row.run_effect:.0%} | {row.n} | {row.metric} | {row.effective:.0f} | "
        + " | ".join(f"{share:.1%}" for share in shares)
        + f" | {row.false_stored:.1%} / {row.power_stored:.1%} | {naive} |"
    )


def summarise(table: str) -> str:
    """A full table in one line per load and metric: worst false share over all sizes, power at 3 % run to run."""
    rows = [[cell.strip() for cell in text.strip().strip("|").split("|")] for text in table.splitlines()[2:] if text]
    sizes = ("100", "500", "2000")
    lines = [
        "| load | TTFT | worst false | worst false, stored spread | worst naive "
        + "".join(f"| finds 20 %, n={size} " for size in sizes)
        + "| finds 5 %, n=2000 |",
        "|---|---|---:|---:|---:|" + "---:|" * (len(sizes) + 1),
    ]
    for load in dict.fromkeys(row[0] for row in rows):
        for metric in ("mean", "p95"):
            mine = [row for row in rows if row[0] == load and row[3] == metric]
            noisy = {row[2]: row for row in mine if row[1] == "3%"}
            false = max(share(cell) for row in mine for cell in row[5:8])
            stored = max(share(row[10].partition("/")[0]) for row in mine)
            naive = max((share(row[11]) for row in mine if row[11]), default=math.nan)
            power = [noisy[size][9] if size in noisy else "" for size in sizes]
            small = noisy["2000"][8] if "2000" in noisy else ""
            shown = "" if math.isnan(naive) else f"{naive:.0%}"
            lines.append(
                f"| {load} | {metric} | {false:.1%} | {stored:.1%} | {shown} | {' | '.join(power)} | {small} |"
            )
    return "\n".join(lines)


def share(cell: str) -> float:
    """ "3.7%" -> 0.037."""
    return float(cell.strip().rstrip("%")) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--n", type=int, nargs="*", default=[20, 50, 100, 200, 500, 1000, 2000])
    parser.add_argument("--load", default="", help="only loads whose name holds this text")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    parser.add_argument("--summarise", type=Path, help="condense this full table and exit")
    options = parser.parse_args()
    if options.summarise:
        print(summarise(options.summarise.read_text(encoding="utf-8")))
        return
    lines = [HEADER]
    print(HEADER, flush=True)
    worst = 0.0
    begun = time.time()
    for load in LOADS:
        if options.load not in load.name:
            continue
        for n in options.n:
            for row in case(load, n, options.seeds):
                worst = max(
                    worst, row.false_none, row.false_small, row.false_large, row.false_stored, row.decided_single
                )
                lines.append(line(row))
                print(lines[-1], flush=True)
    took = time.time() - begun
    print(
        f"\nlargest share of false verdicts: {worst:.1%}; {options.seeds} seeds, relevant {RELEVANT:.0%}; {took:.0f} s"
    )
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
