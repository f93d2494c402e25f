"""docs/promql.md: every query, asked of a real Prometheus that scraped a recording, gives what the recording holds.

The exporter is stepped through the recording in seconds of computing time; Prometheus scrapes its bodies, one for
every five recorded seconds, with the recorded time written beside each sample.  The expected answers are worked out
here from the recorded bodies (read by prometheus_client) and NVML readings, without any code of the exporter.
"""

from __future__ import annotations

import http.server
import itertools
import json
import math
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.programs import H200, ROOT, free_port, get, program, prometheus_programs, wait_until
from fakes.stepper import Stepper, settings_of
from vllmeter.recording.player import Player

PROGRAMS = prometheus_programs()
PAGE = ROOT / "docs/promql.md"
SCRAPE = 5
"""Recorded seconds between two scrapes."""
SECONDS = 297
"""Recorded seconds that are played."""
AFTER = 2
"""Questions are asked this long after the stated second: no sample lies on the edge of a range."""

Answers = dict[str, float]
"""server ("" = the card) -> value"""


# --------------------------------------------------------------------------- the recording, read independently


class Truth:
    """Bodies and NVML readings of the recording by second."""

    def __init__(self) -> None:
        with Player(H200, loop=False) as player:
            self.moments = [player.at(float(second)) for second in range(SECONDS + 1)]
            self.header = player.header
        self.servers = [server.name for server in self.header.servers]

    @cache  # noqa: B019 - lives as long as the module
    def samples(self, second: int, server: str) -> tuple[tuple[str, tuple[tuple[str, str], ...], float], ...] | None:
        body = self.moments[second].servers[server].body
        if body is None:
            return None
        return tuple(
            (s.name, tuple(sorted(s.labels.items())), s.value)
            for family in text_string_to_metric_families(body.decode())
            for s in family.samples
        )

    def value(self, second: int, server: str, name: str, **labels: str) -> float | None:
        """Sum of the samples of a name; None when there is none, or no answer."""
        samples = self.samples(second, server)
        if samples is None:
            return None
        found = [v for n, have, v in samples if n == name and labels.items() <= dict(have).items()]
        return sum(found) if found else None

    def label(self, second: int, server: str, name: str, label: str) -> str | None:
        for n, have, _ in self.samples(second, server) or ():
            if n == name:
                return dict(have).get(label)
        return None

    def increase(self, end: int, window: int, server: str, name: str, **labels: str) -> float | None:
        """What ``increase()`` gives: growth over the scraped seconds, extended to the window; resets allowed for."""
        # Scrapes in (end + AFTER - window, end + AFTER].
        seconds = [s for s in range(0, end + AFTER + 1, SCRAPE) if s > end + AFTER - window]
        values = [(s, v) for s in seconds if (v := self.value(s, server, name, **labels)) is not None]
        if len(values) < 2:
            return None
        growth = sum(b - a if b >= a else b for (_, a), (_, b) in itertools.pairwise(values))
        first, last = values[0][0], values[-1][0]
        before, behind = first - (end + AFTER - window), end + AFTER - last
        average = (last - first) / (len(values) - 1)
        # Prometheus extends to the edge when it is near, else by half an interval; never below zero.
        start = before if before < average * 1.1 else average / 2
        if growth > 0:
            start = min(start, (last - first) * values[0][1] / growth)
        stop = behind if behind < average * 1.1 else average / 2
        return growth * (last - first + start + stop) / (last - first)

    def each(self, work: Callable[[str], float | None], *, positive: bool = False) -> Answers:
        out = {}
        for server in self.servers:
            value = work(server)
            if value is not None and not math.isnan(value) and (value > 0 or not positive):
                out[server] = value
        return out

    def process_bytes(self, second: int, server: str) -> int | None:
        """GPU memory of the processes whose parent's command line holds the recorded port."""
        moment = self.moments[second]
        assert moment.nvml is not None
        assert moment.processes is not None
        port = next(str(s.port) for s in self.header.servers if s.name == server)
        table = moment.processes.processes.values()
        roots = {p.pid for p in table if p.argv and "--port" in p.argv and port in p.argv}
        own = {p.pid for p in table if p.pid in roots or p.ppid in roots}
        found = [p.used_bytes or 0 for p in moment.nvml.gpus[0].processes or () if p.pid in own]
        return sum(found) if found else None

    def flag(self, second: int, server: str, name: str) -> float | None:
        """A number of the command line of the process that listens on the recorded port."""
        table = self.moments[second].processes
        assert table is not None
        port = next(str(s.port) for s in self.header.servers if s.name == server)
        for process in table.processes.values():
            argv = process.argv or ()
            if "--port" in argv and port in argv and name in argv:
                return float(argv[argv.index(name) + 1])
        return None

    def budget(self, second: int, server: str) -> float:
        """Fraction of the flag × (NVML total − reserved), which is CUDA's total on this card to the byte."""
        gpu = self.gpu(second)
        flag = next(s.flags["gpu_memory_utilization"] for s in self.header.servers if s.name == server)
        return float(str(flag)) * (gpu.memory_total_bytes - gpu.memory_reserved_bytes)

    def gpu(self, second: int) -> Any:
        nvml = self.moments[second].nvml
        assert nvml is not None
        return nvml.gpus[0]


def ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def quantile(truth: Truth, end: int, window: int, server: str, q: float) -> float | None:
    """The interpolation that Prometheus documents for histogram_quantile, from recorded bucket growth."""
    name = "vllm:time_to_first_token_seconds_bucket"
    bounds = sorted({float(dict(labels)["le"]) for n, labels, _ in truth.samples(0, server) or () if n == name})
    text = {
        float(dict(labels)["le"]): dict(labels)["le"] for n, labels, _ in truth.samples(0, server) or () if n == name
    }
    counts = [truth.increase(end, window, server, name, le=text[bound]) or 0.0 for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    rank = q * counts[-1]
    index = next(i for i, count in enumerate(counts) if count >= rank)
    if math.isinf(bounds[index]):
        return bounds[-2]
    low = bounds[index - 1] if index else 0.0
    below = counts[index - 1] if index else 0.0
    return low + (bounds[index] - low) * (rank - below) / (counts[index] - below)


def latest(second: int) -> int:
    """The scraped second that an instant query sees."""
    return (second + AFTER) // SCRAPE * SCRAPE


def spread(truth: Truth, work: Callable[[int, str], float | None], begin: int, end: int) -> Answers:
    """Largest value over every recorded second from ``begin`` to ``end``."""
    return truth.each(
        lambda server: max((v for s in range(begin, end + 1) if (v := work(s, server)) is not None), default=None),
        positive=True,
    )


Solver = Callable[[Truth, int], Answers]


def mean(truth: Truth, at: int, window: int, server: str, family: str) -> float | None:
    return ratio(
        truth.increase(at, window, server, f"{family}_sum"), truth.increase(at, window, server, f"{family}_count")
    )


def joules_per_token(truth: Truth, at: int, window: int) -> float:
    watts = [truth.gpu(x).power_watts for x in range(0, at + AFTER + 1, SCRAPE) if x > at + AFTER - window]
    tokens = sum(truth.increase(at, window, s, "vllm:generation_tokens_total") or 0 for s in truth.servers)
    return float(sum(watts) / len(watts) / (tokens / window))


TTFT = "vllm:time_to_first_token_seconds"
SOLVERS: Mapping[int, Solver] = {
    1: lambda t, at: t.each(lambda s: (t.process_bytes(latest(at), s) or 0) / 2**30),
    2: lambda t, at: t.each(lambda s: (t.process_bytes(latest(at), s) or 0) / t.budget(latest(at), s)),
    3: lambda t, at: {
        "": (t.gpu(latest(at)).memory_used_bytes - sum(p.used_bytes for p in t.gpu(latest(at)).processes)) / 2**20
    },
    4: lambda t, at: {
        "": (
            t.gpu(latest(at)).memory_free_bytes
            + t.gpu(latest(at)).memory_used_bytes
            - max(t.gpu(s).memory_used_bytes for s in range(latest(at) - 60, latest(at) + 1))
        )
        / 2**30
    },
    5: lambda t, at: t.each(
        lambda s: (
            ((t.process_bytes(latest(at), s) or 0) + t.gpu(latest(at)).memory_free_bytes - t.budget(latest(at), s))
            / 2**30
        )
    ),
    6: lambda t, at: t.each(
        lambda s: (
            float(capacity) * (1 - (t.value(latest(at), s, "vllm:kv_cache_usage_perc") or 0))
            if (capacity := t.label(latest(at), s, "vllm:cache_config_info", "kv_cache_size_tokens"))
            not in (None, "None")
            else None
        )
    ),
    7: lambda t, at: spread(t, lambda x, s: t.value(x, s, "vllm:kv_cache_usage_perc"), max(at - 180, 0), latest(at)),
    8: lambda t, at: t.each(lambda s: t.increase(at, 60, s, "vllm:num_preemptions_total"), positive=True),
    9: lambda t, at: t.each(
        lambda s: ratio(
            t.increase(at, 60, s, "vllm:num_preemptions_total"), t.increase(at, 60, s, "vllm:request_success_total")
        )
    ),
    10: lambda t, at: spread(
        t,
        lambda x, s: (
            (t.value(x, s, "vllm:num_preemptions_total") or 0) - (t.value(x - 1, s, "vllm:num_preemptions_total") or 0)
        ),
        at - 120,
        latest(at),
    ),
    11: lambda t, at: t.each(
        lambda s: ratio(
            t.increase(at, 30, s, "vllm:prefix_cache_hits_total"),
            t.increase(at, 30, s, "vllm:prefix_cache_queries_total"),
        )
    ),
    12: lambda t, at: t.each(
        lambda s: t.increase(at, 30, s, "vllm:prompt_tokens_by_source_total", source="local_compute")
    ),
    13: lambda t, at: t.each(lambda s: mean(t, at, 60, s, TTFT)),
    14: lambda t, at: t.each(
        lambda s: (
            1 - part
            if (
                part := ratio(t.increase(at, 60, s, f"{TTFT}_bucket", le="2.5"), t.increase(at, 60, s, f"{TTFT}_count"))
            )
            is not None
            else None
        )
    ),
    15: lambda t, at: t.each(lambda s: quantile(t, at, 60, s, 0.95)),
    17: lambda t, at: t.each(
        lambda s: ratio(mean(t, at, 60, s, "vllm:request_queue_time_seconds"), mean(t, at, 60, s, TTFT))
    ),
    18: lambda t, at: t.each(lambda s: mean(t, at, 60, s, "vllm:inter_token_latency_seconds")),
    19: lambda t, at: t.each(lambda s: ratio(mean(t, at, 30, s, TTFT), mean(t, at - 210, 30, s, TTFT))),
    20: lambda t, at: t.each(
        lambda s: (t.increase(at, 30, s, "vllm:generation_tokens_total") or 0) / 30, positive=True
    ),
    21: lambda t, at: spread(t, lambda x, s: t.value(x, s, "vllm:num_requests_waiting"), at - 180, latest(at)),
    22: lambda t, at: t.each(
        lambda s: (
            t.value(latest(at), s, "vllm:num_requests_waiting")
            if (t.value(latest(at), s, "vllm:kv_cache_usage_perc") or 0) >= 0.9
            else None
        ),
        positive=True,
    ),
    23: lambda t, at: {
        s: v
        for s, v in t.each(lambda s: t.increase(at, 30, s, "vllm:prompt_tokens_total"), positive=True).items()
        if s != "vllm-qwen3"
    },
    24: lambda t, at: t.each(
        # A restart is a process_start_time_seconds that differs from the one before.
        lambda s: float(
            len({v for x in range(at + 1) if (v := t.value(x, s, "process_start_time_seconds")) is not None}) - 1
        ),
        positive=True,
    ),
    25: lambda t, at: {"": joules_per_token(t, at, 30)},
    26: lambda t, at: t.each(
        lambda s: ratio(
            max(t.value(x, s, "vllm:num_requests_running") or 0 for x in range(latest(at) - 60, latest(at) + 1)),
            t.flag(latest(at), s, "--max-num-seqs"),
        )
    ),
    27: lambda t, at: t.each(
        lambda s: (
            t.flag(at, s, "--max-num-batched-tokens")
            if t.flag(at, s, "--max-num-batched-tokens") != t.flag(0, s, "--max-num-batched-tokens")
            else None
        )
    ),
}

CLIENT_JITTER = 2.453
"""Standard deviation of the 60 TTFTs of pressure-64 as the load client measured them (bench.json of the capture)."""


# --------------------------------------------------------------------------- the page


class Recipe:
    """One numbered question of the page."""

    def __init__(self, text: str) -> None:
        head, _, body = text.partition("\n")
        number, _, self.title = head.partition(". ")
        self.number = int(number)
        queries = re.findall(r"```promql\n(.*?)```", body, flags=re.DOTALL)
        assert len(queries) == 1, head
        self.query = queries[0].strip()
        marks = re.findall(r"^At (\d+) s of the recording: (.+)$", body, flags=re.MULTILINE)
        assert len(marks) == 1, f"{head}: wanted one line 'At N s of the recording: …'"
        self.at = int(marks[0][0])
        self.shown = marks[0][1]


def recipes() -> list[Recipe]:
    return [Recipe(part) for part in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]]


def show(answers: Mapping[str, float]) -> str:
    """Answers as the page shows them."""
    if not answers:
        return "nothing."
    parts = [f"{f'`{server}` ' if server else ''}{value:.3g}" for server, value in sorted(answers.items())]
    return ", ".join(parts) + "."


# --------------------------------------------------------------------------- Prometheus


class Asked:
    """A Prometheus that has scraped the recording; ``zero`` is the Unix time of its second 0."""

    def __init__(self, base: str, zero: float) -> None:
        self.base, self.zero = base, zero

    def ask(self, query: str, second: int) -> Answers:
        url = urllib.parse.urlencode({"query": query, "time": f"{self.zero + second + AFTER:.3f}"})
        result = json.loads(get(f"{self.base}/api/v1/query?{url}"))["data"]["result"]
        assert len({json.dumps(item["metric"], sort_keys=True) for item in result}) == len(result)
        return {item["metric"].get("server", ""): float(item["value"][1]) for item in result}


def bodies(zero: float) -> list[bytes]:
    """What the exporter would have answered every five seconds, each sample with its time."""
    out = []
    with Player(H200, wall=zero, loop=False) as player:
        stepper = Stepper(settings_of(player), {server.name: "0.26.0" for server in player.header.servers})
        for second in range(SECONDS + 1):
            moment = player.at(stepper.at)
            stepper.wall_zero = moment.wall - stepper.at
            stepper.moment(moment)
            if second % SCRAPE == 0:
                stamp = f" {int((zero + second) * 1000)}\n".encode()
                lines = stepper.metrics(openmetrics=False).splitlines()
                out.append(b"".join(line + (b"\n" if line.startswith(b"#") else stamp) for line in lines))
            stepper.at += 1
    return out


@contextmanager
def served(answers: list[bytes]) -> Iterator[tuple[int, threading.Event]]:
    """Hands out one body per request, then nothing more; the event is set when all are gone."""
    left, done = iter(answers), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = next(left, None)
            if body is None:
                done.set()
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], done
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    if "debian" not in PROGRAMS:
        pytest.skip("no Prometheus here (Debian package prometheus)")
    folder: Path = tmp_path_factory.mktemp("cookbook")
    zero = math.floor(time.time()) - SECONDS - 60
    port = free_port()
    with served(bodies(zero)) as (target, done):
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 350ms, scrape_timeout: 350ms}\n"
            "scrape_configs:\n  - job_name: vllmeter\n    static_configs:\n"
            f"      - targets: ['127.0.0.1:{target}']\n        labels: {{host: demo}}\n",
            encoding="utf-8",
        )
        command = [
            PROGRAMS["debian"],
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        base = f"http://127.0.0.1:{port}"
        with program(command, folder / "prometheus.log", f"{base}/-/ready"):
            wait_until(done.is_set, 120, "the last body")
            asked = Asked(base, zero)
            assert asked.ask("count_over_time(vllmeter_nvml_up[5m])", SECONDS) == {"": SECONDS // SCRAPE + 1}
            yield asked


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


RECIPES = recipes()


def test_the_page_holds_27_questions() -> None:
    """Numbered from 1, each asked once."""
    assert [recipe.number for recipe in RECIPES] == list(range(1, 28))
    assert len({recipe.query for recipe in RECIPES}) == 27


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.number:02}")
def test_answers(recipe: Recipe, asked: Asked, truth: Truth) -> None:
    """Prometheus says what the recording holds, and so does the page."""
    answers = asked.ask(recipe.query, recipe.at)
    assert recipe.shown == show(answers)
    if recipe.number == 16:
        # The server's own spread cannot be computed from buckets; the load client measured it.
        lower = answers["vllm-qwen3"]
        upper = asked.ask('vllmeter_ttft_jitter_upper_seconds{window="60s"}', recipe.at)["vllm-qwen3"]
        assert lower <= CLIENT_JITTER <= upper
        assert upper < 1.2 * lower
        return
    expected = SOLVERS[recipe.number](truth, recipe.at)
    assert answers == pytest.approx(expected, rel=1e-6, abs=1e-9)
