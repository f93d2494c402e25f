"""What sampling at 1 Hz costs the requests of a real vLLM: TTFT with and without it, in pairs, with an interval.

    python observer_effect.py [--pairs N] [--seconds S] [--prompt TOKENS] [--output FILE]

One server, one client that always has one request inside (streamed, so that the client's TTFT is that of its first
token). Time is cut into phases; two neighbours make a pair, in one of which the exporter samples and in the other is
stopped (SIGSTOP: neither requests nor CPU time); which of them comes first is drawn by lot. A slow minute of the
machine thus falls on both sides alike.

Two estimates, each with Student's 95 % interval:

* pairs: ratio of TTFT within a pair (by logarithms). Holds all costs, and all noise of the machine.
* scrapes: within the phases with sampling, what the requests that begin within 60 ms of a scrape take longer than the
  others of the same phase, spread over all requests. Holds what happens at the scrape itself (the server's event loop
  answers /metrics and /health, the exporter reads the body) and little noise. Requests are chosen by when they begin,
  never by how long they take: a slow request is more likely to meet a scrape, which says nothing about its effect.

Run by scripts/observer-effect.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fakes.programs import exporter, free_port, get, wait_until
from vllm.servers import Vllm, serving
from vllm.stack import FLOAT
from vllmeter.runs.student import t_quantile

NEAR = 0.06
"""Seconds from a scrape within which a request begins "at" it."""
SETTLE = 0.5
"""Seconds at the start of a phase that are left out."""
TARGET = 0.01


@dataclass(frozen=True)
class Phase:
    """Requests that began in one phase: (Unix time, TTFT in seconds).  ``scrapes``: Unix times of their beginnings;
    ``logged``: GET /metrics that the server logged."""

    sampled: bool
    requests: tuple[tuple[float, float], ...]
    scrapes: tuple[float, ...]
    logged: int

    @property
    def ttfts(self) -> list[float]:
        """TTFT of all."""
        return [ttft for _, ttft in self.requests]

    def at_scrapes(self) -> float | None:
        """What the requests at scrapes took longer, as a share of all TTFT; None where nothing can be compared."""
        near = [any(abs(begun - at) < NEAR for at in self.scrapes) for begun, _ in self.requests]
        others = [ttft for (_, ttft), close in zip(self.requests, near, strict=True) if not close]
        if not self.scrapes or len(others) < 5:
            return None
        usual = statistics.fmean(others)
        extra = sum(ttft - usual for (_, ttft), close in zip(self.requests, near, strict=True) if close)
        return extra / (usual * len(self.requests))


def ttft(connection: http.client.HTTPConnection, prompt: Sequence[int]) -> float:
    """Sends one request and reads its stream; seconds to the first byte of the body."""
    body = json.dumps(
        {"model": "chat", "prompt": list(prompt), "max_tokens": 4, "ignore_eos": True, "stream": True}
    ).encode()
    begun = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read(1)
    first = time.perf_counter() - begun
    rest = answer.read()
    if answer.status != 200 or b"[DONE]" not in rest:
        raise SystemExit(f"the server answered {answer.status}: {rest[-300:]!r}")
    return first


def run_phase(server: Vllm, watched: str | None, seconds: float, tokens: int, lot: random.Random) -> Phase:
    """Requests one after another until the time is over; ``watched``: URL of the exporter that samples meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    found: list[tuple[float, float]] = []
    scrapes: dict[float, None] = {}
    begun = asked = time.monotonic()
    before = logged(server)
    try:
        while time.monotonic() < begun + seconds:
            # A new prompt each time: the prefix cache must not answer
            prompt = [lot.randrange(300, 3000) for _ in range(tokens)]
            at = time.time()
            value = ttft(connection, prompt)
            if time.monotonic() >= begun + SETTLE:
                found.append((at, value))
            if watched is not None and time.monotonic() >= asked + 0.4:
                # Between two requests, when nothing is measured
                asked = time.monotonic()
                view = json.loads(get(f"{watched}/snapshot.json?readings=false"))["servers"][0]
                if view["reading_wall"] is not None:
                    scrapes[round(view["reading_wall"] - view["scrape"]["duration"], 4)] = None
    finally:
        connection.close()
    return Phase(watched is not None, tuple(found), tuple(scrapes), logged(server) - before)


def logged(server: Vllm) -> int:
    """How often /metrics was asked for, by the server's access log."""
    return server.log.read_bytes().count(b'"GET /metrics')


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of independent values."""
    middle = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


def report(pairs: Sequence[tuple[Phase, Phase]], tokens: int, seconds: float) -> tuple[str, bool]:
    """The result in words, and whether more than 1 % is shown."""
    lines = [
        f"{len(pairs)} pairs of {seconds:.0f} s phases, one request at a time, {tokens} prompt tokens",
        "requests: {} with sampling, {} without".format(
            *(sum(len(p[side].requests) for p in pairs) for side in (0, 1))
        ),
        "GET /metrics in the server's log: {} with sampling, {} without".format(
            *(sum(p[side].logged for p in pairs) for side in (0, 1))
        ),
    ]
    without = statistics.fmean(statistics.fmean(off.ttfts) for _, off in pairs)
    lines.append(f"mean TTFT without sampling: {1000 * without:.2f} ms")
    estimates = {
        # Logarithms: the mean of a ratio of noisy values is above 1 where nothing differs
        "pairs, mean": [math.log(statistics.fmean(on.ttfts) / statistics.fmean(off.ttfts)) for on, off in pairs],
        "pairs, median": [math.log(statistics.median(on.ttfts) / statistics.median(off.ttfts)) for on, off in pairs],
        "scrapes": [share for on, _ in pairs if (share := on.at_scrapes()) is not None],
    }
    worse = False
    for name, values in estimates.items():
        middle, low, high = interval(values)
        if name != "scrapes":
            middle, low, high = math.expm1(middle), math.expm1(low), math.expm1(high)
        lines.append(f"{name}: {100 * middle:+.2f} % of TTFT (95 %: {100 * low:+.2f} to {100 * high:+.2f} %)")
        worse = worse or low > TARGET
    lines.append("more than 1 % slower: " + ("SHOWN" if worse else "not shown"))
    return "\n".join(lines), worse


def main() -> int:
    """Exit code 1 when sampling is shown to cost more than 1 % of TTFT."""
    parser = argparse.ArgumentParser(description="TTFT of a real vLLM with and without 1 Hz sampling, in pairs.")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of phases (default 40)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a phase (default 3)")
    parser.add_argument("--prompt", type=int, default=800, help="prompt tokens (default 800)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    env, models = Path(os.environ["VLLMETER_VLLM_ENV"]), Path(os.environ["VLLMETER_VLLM_MODELS"])
    lot = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="vllmeter-observer.") as name:
        folder = Path(name)
        flags = (*FLOAT, "--max-model-len", "2048", "--max-num-seqs", "4")
        server = Vllm("chat", env, models / "chat", free_port(), folder / "chat.log", flags)
        config = folder / "vllmeter.yaml"
        config.write_text(f"servers:\n  - {{name: chat, url: 'http://127.0.0.1:{server.port}'}}\n", encoding="utf-8")
        with serving([server]):
            print("starting vLLM ...", file=sys.stderr, flush=True)
            wait_until(server.ready, 300, "vllm serve")
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            with exporter(config, folder / "exporter.log", port) as process:
                for _ in range(2):
                    run_phase(server, url, 4.0, options.prompt, lot)  # warm-up
                pairs = []
                try:
                    for number in range(options.pairs):
                        order = [True, False]
                        lot.shuffle(order)
                        made = {}
                        for sampled in order:
                            process.send_signal(signal.SIGCONT if sampled else signal.SIGSTOP)
                            made[sampled] = run_phase(
                                server, url if sampled else None, options.seconds, options.prompt, lot
                            )
                        pairs.append((made[True], made[False]))
                        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
                finally:
                    process.send_signal(signal.SIGCONT)
    text, worse = report(pairs, options.prompt, options.seconds)
    load = os.getloadavg()
    text = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load average {load[1]:.1f}\n{text}"
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
