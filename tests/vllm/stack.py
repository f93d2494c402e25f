"""The exporter, a real Prometheus and a recorder beside three real vLLM servers; the load; what was seen meanwhile."""

from __future__ import annotations

import contextlib
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fakes.programs import ROOT, free_port, get, program, wait_until
from vllm.servers import API_KEY, Vllm, serving, vllm_environment

FLOAT = ("--dtype", "float32")
"""vLLM's own choice is bfloat16, whose kernel for short prompts dies of SIGILL on some virtual machines with AMX."""
CHAT_FLAGS = (*FLOAT, "--max-model-len", "1024", "--max-num-seqs", "8", "--enable-prefix-caching")
SMALL_CACHE = ("--num-gpu-blocks-override", "18")
"""17 usable blocks of 128 tokens: eight requests of 450 prompt and 200 output tokens do not fit side by side."""
POOLING_FLAGS = (*FLOAT, "--runner", "pooling", "--max-model-len", "1024", "--max-num-seqs", "8")
START_PATIENCE = 540.0
"""Seconds for three servers to start: a minute on idle cores, four minutes were seen beside seven other workers."""
PROMPTS = 64
OUTPUT = 180
LONG_WINDOW = "900s"
"""Longer than the load test: this window holds exactly its requests."""

Series = dict[str, list[tuple[dict[str, str], float]]]


def series_of(text: str) -> Series:
    """Sample name -> (labels, value), by prometheus_client's own parser."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def total(series: Series, name: str, **labels: str) -> float | None:
    """Sum of the series with these labels; None when there is none."""
    values = [value for have, value in series.get(name, []) if labels.items() <= have.items()]
    return sum(values) if values else None


@dataclass
class Watcher:
    """Follows ``/snapshot.json`` ten times a second and keeps every change of state."""

    url: str
    changes: list[tuple[float, str, str, str]] = field(default_factory=list)
    """(Unix time, server, state, reason)"""
    faults: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(5)

    def _follow(self) -> None:
        known: dict[str, str] = {}
        with requests.Session() as session:
            while not self._stop.wait(0.1):
                try:
                    document = session.get(f"{self.url}/snapshot.json?readings=false", timeout=5).json()
                except (requests.RequestException, ValueError) as error:
                    self.faults.append(f"{time.time():.1f} {type(error).__name__}")
                    continue
                for view in document["servers"]:
                    if view["state"] != known.get(view["name"]):
                        known[view["name"]] = view["state"]
                        self.changes.append((document["wall"], view["name"], view["state"], view["state_reason"]))

    def states(self, server: str, since: float = 0.0) -> list[str]:
        """States of one server in order."""
        return [state for at, name, state, _ in self.changes if name == server and at >= since]

    def reason(self, server: str, state: str, since: float = 0.0) -> str:
        """The words with the newest change to a state."""
        found = [why for at, name, now, why in self.changes if (name, now) == (server, state) and at >= since]
        return found[-1] if found else ""


@dataclass
class Stack:
    """Everything that runs."""

    folder: Path
    chat: Vllm
    embed: Vllm
    rerank: Vllm
    exporter: str
    prometheus: str
    config: Path
    watcher: Watcher
    started: float
    patience: float
    recording: Path
    stop_recording: Callable[[], str]

    @property
    def servers(self) -> tuple[Vllm, Vllm, Vllm]:
        """All three."""
        return self.chat, self.embed, self.rerank

    def view(self, name: str, *, readings: bool = False) -> dict[str, Any]:
        """One server of ``/snapshot.json``."""
        document = json.loads(get(f"{self.exporter}/snapshot.json?readings={str(readings).lower()}"))
        found: dict[str, Any] = next(view for view in document["servers"] if view["name"] == name)
        return found

    def metrics(self) -> Series:
        """``/metrics`` of the exporter."""
        return series_of(get(f"{self.exporter}/metrics"))

    def wait_state(self, name: str, *states: str) -> dict[str, Any]:
        """Waits for one of these states."""
        wait_until(lambda: self.view(name)["state"] in states, self.patience, f"{name} in state {' or '.join(states)}")
        return self.view(name)

    def wait_sample(self, server: Vllm, after: float) -> None:
        """Waits until the exporter shows a sample that was taken after a moment, and twice the same idle server."""
        name = server.name
        wait_until(
            lambda: (self.view(name)["reading_wall"] or 0) > after + 1.0, self.patience, f"a sample of {name} after it"
        )


def vllmeter(*arguments: str) -> list[str]:
    """A command of ours, by the Python of these tests."""
    return [sys.executable, "-m", "vllmeter", *arguments]


def prometheus_config(folder: Path, port: int) -> Path:
    """The shipped prometheus.yml with all rules and alerts, at another port and without an Alertmanager."""
    data = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    data["rule_files"] = [str((ROOT / "prometheus" / pattern).resolve()) for pattern in data["rule_files"]]
    data.pop("alerting", None)
    data["global"] |= {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    path = folder / "prometheus.yml"
    path.write_text(
        yaml.safe_dump(data, sort_keys=False).replace("127.0.0.1:9877", f"127.0.0.1:{port}"), encoding="utf-8"
    )
    return path


@contextlib.contextmanager
def running(env: Path, models: Path, prometheus: str, folder: Path, patience: float) -> Iterator[Stack]:
    """Starts three servers, the exporter (before they are ready), Prometheus and a recording."""
    chat = Vllm("chat", env, models / "chat", free_port(), folder / "chat.log", (*CHAT_FLAGS, *SMALL_CACHE))
    embed = Vllm(
        "embed",
        env,
        models / "embed",
        free_port(),
        folder / "embed.log",
        (*POOLING_FLAGS, "--convert", "embed"),
        API_KEY,
    )
    rerank = Vllm("rerank", env, models / "rerank", free_port(), folder / "rerank.log", POOLING_FLAGS)
    # Else it exits by itself seconds after its engine's death, which the test sees on another server.
    rerank.environment["VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"] = "1"
    port, own = free_port(), free_port()
    base = f"http://127.0.0.1:{port}"
    config = folder / "vllmeter.yaml"
    settings = {
        "listen": f"127.0.0.1:{port}",
        "interval": "1s",
        "windows": [LONG_WINDOW],
        "state_dir": str(folder / "state"),
        "servers": [{"name": s.name, "url": s.url, "log": {"file": str(s.log)}} for s in (chat, embed, rerank)],
    }
    config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    recording = folder / "real.vmrec"
    with contextlib.ExitStack() as opened:
        started = time.time()
        opened.enter_context(
            program(vllmeter("serve", "--config", str(config)), folder / "exporter.log", f"{base}/-/healthy", patience)
        )
        watcher = opened.enter_context(Watcher(base))
        opened.enter_context(serving((chat, embed, rerank)))
        opened.enter_context(
            program(
                [
                    prometheus,
                    f"--config.file={prometheus_config(folder, port)}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{own}",
                ],
                folder / "prometheus.log",
                f"http://127.0.0.1:{own}/-/ready",
                patience,
            )
        )
        for server in (chat, embed, rerank):
            wait_until(server.ready, START_PATIENCE, f"vllm serve ({server.name})")
        stop = opened.enter_context(record(config, recording, folder))
        yield Stack(
            folder=folder,
            chat=chat,
            embed=embed,
            rerank=rerank,
            exporter=base,
            prometheus=f"http://127.0.0.1:{own}",
            config=config,
            watcher=watcher,
            started=started,
            patience=patience,
            recording=recording,
            stop_recording=stop,
        )


@contextlib.contextmanager
def record(config: Path, target: Path, folder: Path) -> Iterator[Callable[[], str]]:
    """``vllmeter record`` beside everything; calling what it gives ends it as Ctrl-C does and returns what it said."""
    log = folder / "record.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            vllmeter("record", str(target), "--config", str(config)),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def stop() -> str:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        code = process.wait(30)
        said = log.read_text(errors="replace")
        assert code == 0, f"vllmeter record ended with {code}:\n{said}"
        return said

    try:
        yield stop
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


# --------------------------------------------------------------------------- load


@dataclass(frozen=True)
class Load:
    """What the clients counted, and what everybody else says about the same requests."""

    bench: dict[str, Any]
    """the result file of ``vllm bench serve --save-detailed``"""
    run_output: str
    run_code: int
    began: float
    ended: float
    embed_texts: int
    embed_tokens: int
    rerank_documents: int
    rerank_tokens: int
    not_found: int
    """requests for a model that does not exist, sent to chat"""
    raw: dict[str, Series]
    """server -> its own /metrics, idle after the load"""
    ours: Series
    """the exporter's /metrics at the same time"""
    views: dict[str, dict[str, Any]]
    """server -> its part of /snapshot.json at the same time"""


def bench_command(stack: Stack, result: Path) -> list[str]:
    """The load test: all requests at once, so that no kept connection is used again and lost to the 5 s limit."""
    return [
        *(str(stack.chat.env / "bin" / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", stack.chat.url),
        *("--endpoint", "/v1/completions", "--model", "chat", "--tokenizer", str(stack.chat.model)),
        *("--dataset-name", "random", "--random-prefix-len", "256", "--random-input-len", "200"),
        *("--random-output-len", str(OUTPUT), "--random-range-ratio", "0.25", "--ignore-eos", "--seed", "1"),
        *("--num-prompts", str(PROMPTS), "--max-concurrency", str(PROMPTS), "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95"),
        *("--save-result", "--save-detailed", "--result-dir", str(result.parent), "--result-filename", result.name),
    ]


def post(server: Vllm, path: str, body: dict[str, Any], patience: float) -> requests.Response:
    """One request of a client, on a connection of its own."""
    return requests.post(
        f"{server.url}{path}", json=body, headers={**server.headers, "Connection": "close"}, timeout=patience
    )


def pooling_load(stack: Stack) -> tuple[int, int, int, int]:
    """Embeddings and scores side by side, as a RAG pipeline asks for them.

    Returns (texts, their tokens, documents, tokens of all pairs) as the answers say.
    """

    def embed(number: int) -> tuple[int, int]:
        texts = [f"question {number} about the north wind", f"a second text, longer than the first, number {number}"]
        answer = post(stack.embed, "/v1/embeddings", {"model": "embed", "input": texts}, stack.patience)
        answer.raise_for_status()
        return len(answer.json()["data"]), int(answer.json()["usage"]["prompt_tokens"])

    def rerank(number: int) -> tuple[int, int]:
        documents = ["one document", "another document about wind", f"a third, number {number}"]
        body = {"model": "rerank", "query": f"question {number}", "documents": documents}
        answer = post(stack.rerank, "/v1/rerank", body, stack.patience)
        answer.raise_for_status()
        return len(answer.json()["results"]), int(answer.json()["usage"]["total_tokens"])

    with ThreadPoolExecutor(4) as pool:
        embedded = [pool.submit(embed, number) for number in range(30)]
        ranked = [pool.submit(rerank, number) for number in range(20)]
        first = [future.result() for future in embedded]
        second = [future.result() for future in ranked]
    return (
        sum(count for count, _ in first),
        sum(tokens for _, tokens in first),
        sum(count for count, _ in second),
        sum(tokens for _, tokens in second),
    )


def put_load(stack: Stack) -> Load:
    """`vllm bench serve` through `vllmeter run`, the pooling clients, and one mistake; then a look from every side."""
    for server in stack.servers:
        stack.wait_state(server.name, "ready", "busy")
    result = stack.folder / "bench.json"
    began = time.time()
    command = vllmeter(
        *("run", "first", "--server", "chat", "--scenario", "short", "--exporter", stack.exporter),
        *("--state", str(stack.folder / "state"), "--results", str(result), "--", *bench_command(stack, result)),
    )
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=vllm_environment(stack.chat.env),
    )
    try:
        texts, embed_tokens, documents, rerank_tokens = pooling_load(stack)
        missing = post(stack.chat, "/v1/completions", {"model": "absent", "prompt": "x"}, stack.patience)
        assert missing.status_code == 404
        output, _ = run.communicate(timeout=2 * stack.patience)
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()
    ended = time.time()
    assert result.exists(), f"vllm bench serve wrote no result:\n{output[-3000:]}"
    for server in stack.servers:
        wait_until(lambda s=server: idle(s), stack.patience, f"{server.name} idle")  # type: ignore[misc]
        stack.wait_sample(server, time.time())
    return Load(
        bench=json.loads(result.read_text()),
        run_output=output,
        run_code=run.returncode,
        began=began,
        ended=ended,
        embed_texts=texts,
        embed_tokens=embed_tokens,
        rerank_documents=documents,
        rerank_tokens=rerank_tokens,
        not_found=1,
        raw={server.name: series_of(get(f"{server.url}/metrics")) for server in stack.servers},
        ours=stack.metrics(),
        views={server.name: stack.view(server.name, readings=True) for server in stack.servers},
    )


def idle(server: Vllm) -> bool:
    """Nothing runs and nothing waits, by its own gauges."""
    series = series_of(get(f"{server.url}/metrics"))
    return not total(series, "vllm:num_requests_running") and not total(series, "vllm:num_requests_waiting")


# --------------------------------------------------------------------------- what a client can know of the server


def deviation_limits(ttfts: Sequence[float], server_sum: float) -> tuple[float, float]:
    """Limits of the standard deviation of the server's TTFT values, from those of the client.

    Request by request the server's TTFT is at most the client's; the differences d have a known sum D = Σ client −
    server_sum, each is at most the client's value, so Σ d² is largest when the largest ones take all of D. Deviations
    are a distance: |sd(client) − sd(server)| ≤ sd(d) ≤ √(Σ d² / n).
    """
    left = sum(ttfts) - server_sum
    squares = 0.0
    for value in sorted(ttfts, reverse=True):
        part = min(value, left)
        squares += part * part
        left -= part
    apart = (squares / len(ttfts)) ** 0.5
    middle = statistics.pstdev(ttfts)
    return max(0.0, middle - apart), middle + apart


def client_ttfts(bench: dict[str, Any]) -> list[float]:
    """TTFT of every request that succeeded, as `vllm bench serve` measured it, in seconds and ascending."""
    return sorted(
        float(ttft)
        for ttft, error in zip(bench["ttfts"], bench.get("errors") or [""] * len(bench["ttfts"]), strict=True)
        if not error and ttft > 0
    )
