"""What sampling at 1 Hz costs the requests of a real vLLM: TTFT with and without it, in pairs, with an interval.

    python observer_effect.py [--pairs N] [--seconds S] [--prompt TOKENS] [--output FILE]

One server, one client that always has one request inside (streamed, so that the client's TTFT is that of its first
token). Time is cut into phases; two neighbours make a pair, in one of which the exporter samples and in the other is
stopped (SIGSTOP: neither requests nor CPU time); which of them comes first is drawn by lot. A slow minute of the
machine thus falls on both sides alike. The difference is worked out per pair; its 95 % interval is Student's over the
pairs. Run by scripts/observer-effect.
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

from fakes.programs import exporter, free_port, wait_until
from vllm.servers import Vllm, serving
from vllm.stack import FLOAT
from vllmeter.runs.student import t_quantile

SETTLE = 0.25
"""Seconds at the start of a phase that are left out."""
TARGET = 0.01


@dataclass(frozen=True)
class Phase:
    """TTFT of the requests that began in one phase, in seconds; ``scrapes``: GET /metrics that the server logged."""

    sampled: bool
    ttfts: tuple[float, ...]
    scrapes: int


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


def run_phase(server: Vllm, sampled: bool, seconds: float, tokens: int, lot: random.Random) -> Phase:
    """Requests one after another until the time is over."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    found = []
    begun = time.monotonic()
    before = scrapes(server)
    try:
        while time.monotonic() < begun + seconds:
            # A new prompt each time: the prefix cache must not answer
            value = ttft(connection, [lot.randrange(300, 3000) for _ in range(tokens)])
            if time.monotonic() >= begun + SETTLE:
                found.append(value)
    finally:
        connection.close()
    return Phase(sampled, tuple(found), scrapes(server) - before)


def scrapes(server: Vllm) -> int:
    """How often /metrics was asked for, by the server's access log."""
    return server.log.read_bytes().count(b'"GET /metrics')


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of independent values."""
    middle = statistics.fmean(values)
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


def report(pairs: Sequence[tuple[Phase, Phase]], tokens: int, seconds: float) -> tuple[str, bool]:
    """The result in words, and whether more than 1 % could be shown."""
    lines = [
        f"{len(pairs)} pairs of {seconds:.0f} s phases, one request at a time, {tokens} prompt tokens",
        "requests: {} with sampling, {} without".format(*(sum(len(p[side].ttfts) for p in pairs) for side in (0, 1))),
        "GET /metrics in the server's log: {} with sampling, {} without".format(
            *(sum(p[side].scrapes for p in pairs) for side in (0, 1))
        ),
    ]
    worse = False
    for name, take in (("mean", statistics.fmean), ("median", statistics.median)):
        sides = [(take(on.ttfts), take(off.ttfts)) for on, off in pairs]
        middle, low, high = interval([(on - off) / off for on, off in sides])
        _, low_ms, high_ms = interval([1000 * (on - off) for on, off in sides])
        without = 1000 * statistics.fmean(off for _, off in sides)
        lines.append(
            f"{name} TTFT without sampling {without:.2f} ms; with it {100 * middle:+.2f} % "
            f"(95 %: {100 * low:+.2f} to {100 * high:+.2f} %; {low_ms:+.3f} to {high_ms:+.3f} ms)"
        )
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
            with exporter(config, folder / "exporter.log", free_port()) as process:
                for _ in range(2):
                    run_phase(server, True, 4.0, options.prompt, lot)  # warm-up
                pairs = []
                try:
                    for number in range(options.pairs):
                        order = [True, False]
                        lot.shuffle(order)
                        made = {}
                        for sampled in order:
                            process.send_signal(signal.SIGCONT if sampled else signal.SIGSTOP)
                            made[sampled] = run_phase(server, sampled, options.seconds, options.prompt, lot)
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
