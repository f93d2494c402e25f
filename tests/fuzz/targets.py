"""What is fuzzed: everything that reads what others wrote.  Each target takes bytes and says whether they parsed.

Structure-aware: a target builds a document that is valid but for a few changes, so that most inputs get past the front
door.  An AssertionError or any exception but the reader's own is a finding.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fuzz.commands import command_line
from fuzz.composes import compose
from fuzz.configurations import config
from fuzz.load_tests import results
from fuzz.source import Source
from vllmeter.exposition.parse import ParseError, Parser
from vllmeter.memory.startup_log import StartupLog, describe
from vllmeter.render.text import ServerText, document
from vllmeter.snapshot import ServerReading
from vllmeter.upstream.normalise import Normaliser
from vllmeter.windows.tracker import ServerTracker

TESTS = Path(__file__).resolve().parents[1]
TEXT = "text/plain; version=0.0.4"

VALUES = (
    "0",
    "1",
    "2.5",
    "1e3",
    "12345678901234567890",
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e308",
    "5e-324",
    "0.30000000000000004",
)
BAD_VALUES = ("", "x", "0x10", "1_0", "1,5", "--1", "1e", "nan nan")
LABEL_VALUES = ("0", "m", "", "a b", "é", '\\"', "\\\\", "\\n", "{", "}", ",", "=", "#", "\\", '{a=\\"b\\"}', "x" * 300)


# --------------------------------------------------------------------------- /metrics


@lru_cache(maxsize=1)
def _real_lines() -> tuple[tuple[str, ...], ...]:
    """Families of captured bodies: each a block of lines."""
    blocks: dict[str, list[str]] = {}
    for path in sorted((TESTS / "captures" / "bodies").glob("*.prom.gz")):
        block: list[str] = []
        for line in gzip.decompress(path.read_bytes()).decode().split("\n"):
            if line.startswith("# HELP"):
                block = blocks.setdefault(line.split(" ")[2], [])
                if block:
                    block = []  # known already
            block.append(line)
    return tuple(tuple(block) for block in blocks.values() if len(block) < 60)


def exposition_text(source: Source) -> str:
    """Families of real bodies with other values, labels, orders and now and then a broken line."""
    lines: list[str] = []
    seen = set()
    tame = not source.wild
    damage = source.damage()
    for _ in range(1 + source.number(5)):
        block = source.pick(_real_lines())
        if block in seen:
            continue
        seen.add(block)
        changed = list(block)
        for _ in range(source.number(4)):
            _change(source if tame else damage, changed, broken=not tame)
        lines += changed
    if not tame and not damage.often(4):
        source_line = damage.text(40).decode("utf-8", "replace")
        lines.insert(damage.number(len(lines) + 1), source_line)
    return "\n".join(line for line in lines if line or source.often()) + "\n"


def _change(source: Source, lines: list[str], *, broken: bool) -> None:
    """Changes one line; ``broken`` also in ways that a body does not survive."""
    if not lines:
        return
    at = source.number(len(lines))
    line = lines[at]
    kind = source.number(16 if broken else 12)
    head, blank, _ = line.rpartition(" ")
    if kind < 8 and not line.startswith("#") and blank:
        lines[at] = f"{head} {source.pick(VALUES)}"
    elif kind < 10 and '="' in line:
        before, _, rest = line.partition('="')
        _, quote, after = rest.partition('"')
        lines[at] = f'{before}="{source.pick(LABEL_VALUES)}{quote}{after}'
    elif kind == 10:
        del lines[at]
    elif kind == 11:
        lines[at] = line + source.pick(("", " 1600000000000", " 0", "  "))
    elif kind == 12:
        lines[at], lines[-1] = lines[-1], lines[at]  # a TYPE line after its samples
    elif kind == 13 and blank and not line.startswith("#"):
        lines[at] = f"{head} {source.pick(BAD_VALUES)}"
    elif kind == 14:
        lines.insert(at, line)
    elif kind == 15:
        cut = source.number(len(line) + 1)
        lines[at] = line[:cut] + source.pick(('"', "{", "}", " ", "\\", "#", "é", "1", "\x00", "\r")) + line[cut:]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def exposition(data: bytes) -> bool:
    """Parser against the oracle, warm against cold, and all steps behind it up to our own body."""
    source = Source(data)
    first, second = exposition_text(source), exposition_text(source)
    warm = Parser()
    parsed = False
    if source.lot % 5 == 0:
        _openmetrics(first)
    normaliser, tracker, text = Normaliser(), ServerTracker("s"), ServerText("s")
    for number, body in enumerate((first, second, first)):
        try:
            said = warm.parse(body.encode("utf-8", "surrogateescape"), TEXT)
        except ParseError:
            assert _refused(body), "a parser that saw other bodies refuses what a new one takes"
            continue
        parsed = True
        ours = [(s.name, dict(s.labels), value) for s, value in zip(said.series, said.values, strict=True)]
        _against_oracle(body, ours)
        reading = normaliser.normalise(said, None)
        _sound(reading)
        tracker.observe(reading, float(number), wall=1.8e9 + number)
        tracker.windowed(60.0)
        _renders(text, reading)
    return parsed


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def _openmetrics(body: str) -> None:
    """The same lines under the other format's rules: no crash, and what both readers take, they read alike."""
    body = body.rstrip("\n") + "\n# EOF\n"
    try:
        said = Parser().parse(body.encode("utf-8", "surrogateescape"), OPENMETRICS)
    except ParseError:
        return
    try:
        theirs = [
            (s.name, s.labels, s.value) for f in openmetrics.text_string_to_metric_families(body) for s in f.samples
        ]
    except (ValueError, IndexError, KeyError, AttributeError, TypeError):
        return
    ours = [(s.name, dict(s.labels), value) for s, value in zip(said.series, said.values, strict=True)]
    assert len(ours) == len(theirs)
    for (name, labels, value), (other_name, other_labels, other_value) in zip(ours, theirs, strict=True):
        assert (name, labels) == (other_name, other_labels)
        assert _same(value, float(other_value)), (name, value, other_value)


def _refused(body: str) -> bool:
    try:
        Parser().parse(body.encode("utf-8", "surrogateescape"), TEXT)
    except ParseError:
        return True
    return False


def _against_oracle(body: str, ours: list[tuple[str, dict[str, str], float]]) -> None:
    """Where prometheus_client reads a body too, it reads the same."""
    if "\r" in body or "\x00" in body:
        return  # it splits and strips what Unicode calls a line end or a blank; the format knows \n only
    try:
        theirs = [(s.name, s.labels, s.value) for f in text_string_to_metric_families(body) for s in f.samples]
    except (ValueError, IndexError, KeyError, AttributeError, TypeError):
        return  # it refuses, or breaks on, lines of which the format says that they are comments
    assert len(ours) == len(theirs)
    for (name, labels, value), (other_name, other_labels, other_value) in zip(ours, theirs, strict=True):
        assert name == other_name
        assert labels == other_labels, (labels, other_labels)
        assert _same(value, float(other_value)), (name, value, other_value)


def _sound(reading: ServerReading) -> None:
    """What leaves the normaliser can be true."""
    layout = reading.layout
    assert len(reading.values) == len(layout.scalars)
    assert len(reading.buckets) == len(reading.sums) == len(layout.histograms)
    for ref, value in zip(layout.scalars, reading.values, strict=True):
        if ref.family.endswith("_total"):
            assert 0 <= value < math.inf, (ref, value)
        if ref.family.endswith("_ratio"):
            assert 0 <= value <= 1 or math.isnan(value), (ref, value)
    for ref_, counts in zip(layout.histograms, reading.buckets, strict=True):
        assert len(counts) == len(ref_.bounds) + 1
        assert all(low <= high for low, high in pairwise(counts)), (ref_, counts)
        assert all(low < high for low, high in pairwise(ref_.bounds)), ref_


def _renders(text: ServerText, reading: ServerReading) -> None:
    """Our own body is valid, says each series once, and the values of the reading."""
    body = document([text.render(reading)], openmetrics=False).decode()
    series = set()
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in series, key
            series.add(key)
            assert sample.labels["server"] == "s"
    assert len(series) == text.count(reading.layout)


# --------------------------------------------------------------------------- start-up logs


@lru_cache(maxsize=1)
def _log_lines() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(lines that say something, all lines) of real logs."""
    lines: dict[str, None] = {}
    telling: dict[str, None] = {}
    for path in sorted((TESTS / "captures" / "logs").glob("*.log")):
        log = StartupLog()
        for line in path.read_text(errors="replace").split("\n"):
            lines[line] = None
            if log.feed(line):
                telling[line] = None
    return tuple(telling), tuple(lines)


FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Loading model weights took {} GB", ("weights",)),
    ("Model loading took {} GiB memory and 1.5 seconds", ("weights",)),
    ("total_gpu_memory ({} GiB) x gpu_memory_utilization (0.90) = {} GiB", ("cuda_total", "requested")),
    ("Available KV cache memory: {} GiB", ("kv_available",)),
    (
        "Initial free memory: {} GiB, reserved {} GiB memory for KV Cache as specified by x",
        ("free_at_start", "kv_reserved"),
    ),
    ("Estimated CUDA graph memory: {} GiB total", ("graphs_estimated",)),
    ("Graph capturing finished in 20 secs, took {} GiB", ("graphs_actual",)),
    (
        (
            "Free memory on device cuda:0 ({}/{} GiB) on startup. Desired GPU memory utilization is (0.57, {} GiB). "
            "Actual usage is {} GiB for weight, {} GiB for peak activation, {} GiB for non-torch memory, and {} GiB "
            "for CUDAGraph memory."
        ),
        ("free_at_start", "cuda_total", "requested", "weights", "activation_peak", "non_torch", "graphs_actual"),
    ),
)
DAMAGED_DIGITS = ("", "9" * 30, "9" * 400, "9" * 5000, "-", ".", "0", "e9", "é", "²", "١", ",")
REPEATED = (
    "Actual usage is ",
    "non-default args: {",
    "args: Namespace(",
    "Memory profiling results: ",
    "(a pid=1) ",
    "GiB ",
)


def _as_logged(source: Source) -> None:
    """A line with known figures gives these figures, to the byte that 1 GiB has."""
    line, names = source.pick(FIGURES)
    figures = [(1 + source.number(65536)) / 100 for _ in names]
    log = StartupLog()
    prefix = source.pick(
        ("", "(EngineCore_DP0 pid=123) INFO 12-01 10:00:00 [x.py:1] ", "\x1b[36m(Worker_TP1 pid=9)\x1b[0;0m ")
    )
    log.feed(prefix + line.format(*(f"{figure:.2f}" for figure in figures)))
    (worker,) = log.facts.workers
    for name, figure in zip(names, figures, strict=True):
        assert getattr(worker, name) == round(figure * 2**30), (line, name, getattr(worker, name))
    assert worker.pid == (123 if "123" in prefix else 9 if prefix else None)


def startup_log(data: bytes) -> bool:
    """Lines of real logs in any order, with other numbers and damage."""
    source = Source(data)
    if not source.wild:
        _as_logged(source)
    log = StartupLog()
    changed = False
    for _ in range(1 + source.number(15)):
        telling, every = _log_lines()
        line = source.pick(telling if source.often(3) else every)
        kind = source.number(8)
        if kind in (4, 6):
            digits = [at for at, c in enumerate(line) if c.isdigit()]
            if digits:
                at = source.pick(digits)
                line = line[:at] + source.pick(DAMAGED_DIGITS) + line[at + 1 :]
        elif kind == 5:
            at = source.number(len(line) + 1)
            line = line[:at] + source.text(20).decode("utf-8", "replace") + line[at:]
        elif kind == 7 and source.number(64) == 0:
            line = source.pick(REPEATED) * source.number(300) + line
        changed = log.feed(line) or changed
    for words in describe(log.facts).values():
        assert isinstance(words, str)
    facts = log.facts
    assert facts.kv_tokens_total is None or 0 <= facts.kv_tokens_total < 10**19
    for worker in facts.workers:
        assert worker.cuda_total is None or worker.cuda_total > 0
        for value in (worker.weights, worker.kv_available, worker.non_torch, worker.requested, worker.graphs_actual):
            assert value is None or abs(value) < 10**28
    return changed


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "exposition": exposition,
    "startup_log": startup_log,
    "command_line": command_line,
    "results": results,
    "config": config,
    "compose": compose,
}
