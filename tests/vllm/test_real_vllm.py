"""vllmeter against real vLLM 0.32 on a CPU: one story, told in order; each test reads one part of it.

Run by scripts/test-vllm, which installs vLLM and names it in the environment.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from fakes.programs import free_port, get, program, query, wait_until
from vllm.servers import API_KEY, Process, Vllm
from vllm.stack import (
    LONG_WINDOW,
    PROMPTS,
    START_PATIENCE,
    Load,
    Stack,
    client_ttfts,
    deviation_limits,
    idle,
    post,
    put_load,
    running,
    series_of,
    total,
    vllmeter,
)
from vllm.table import check, same
from vllmeter.catalogue import CATALOGUE, ENGINE_GAUGES

ENV = os.environ.get("VLLMETER_VLLM_ENV")
PROMETHEUS = shutil.which("prometheus")

if ENV is None:
    pytest.skip("real vLLM is installed and named by scripts/test-vllm", allow_module_level=True)
if PROMETHEUS is None:
    pytest.skip("no prometheus on the PATH (Debian package prometheus)", allow_module_level=True)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, patience: float) -> Iterator[Stack]:
    """Three servers that have become ready in front of a running exporter, a Prometheus and a recorder."""
    assert ENV is not None
    assert PROMETHEUS is not None
    folder = tmp_path_factory.mktemp("vllm")
    models = Path(os.environ["VLLMETER_VLLM_MODELS"])
    with running(Path(ENV), models, PROMETHEUS, folder, patience) as made:
        yield made


@pytest.fixture(scope="module")
def load(stack: Stack) -> Load:
    """After the load: what the clients counted and what everybody says."""
    return put_load(stack)


# --------------------------------------------------------------------------- start


def test_a_server_that_loads_its_model_is_starting_not_gone(stack: Stack) -> None:
    """Its port refuses for half a minute; its process says why."""
    for server in stack.servers:
        wait_until(
            lambda n=server.name: stack.watcher.states(n)[-1:] == ["ready"],  # type: ignore[misc]
            stack.patience,
            f"{server.name} ready",
        )
        states = stack.watcher.states(server.name)
        check(
            f"{server.name}: states while it starts",
            " > ".join(states),
            states[-2:] == ["starting", "ready"],
            "… > starting > ready",
        )
    raw = series_of(get(f"{stack.chat.url}/metrics"))
    begun = total(stack.metrics(), "vllmeter_server_start_timestamp_seconds", server="chat")
    same("chat: start time, raw and ours", begun, total(raw, "process_start_time_seconds"))
    assert total(stack.metrics(), "vllmeter_server_restarts_total") == 0


def test_what_the_server_is_was_read_from_it(stack: Stack) -> None:
    """Model, version and settings; the sources are its labels, its /version and its command line."""
    view = stack.view("chat")
    same("chat: model", view["model_name"], "chat")
    check("chat: version", view["version"], str(view["version"]).startswith("0.32.0"), "0.32.0…")
    settings = view["settings"]
    same("chat: max_num_seqs", settings.get("max_num_seqs"), "8")
    same("chat: num_gpu_blocks_override", settings.get("num_gpu_blocks_override"), "18")
    same("chat: max_model_len", settings.get("max_model_len"), "1024")
    tokens = view["kv_capacity_tokens"]["value"]
    check(
        "chat: KV capacity in tokens",
        tokens,
        tokens is not None and 17 * 128 <= tokens <= 18 * 128,
        "17 or 18 blocks of 128",
    )


def test_without_a_gpu_memory_is_absent_with_a_reason(stack: Stack) -> None:
    """No number of bytes is made up where there is no card."""
    metrics = stack.metrics()
    same("vllmeter_nvml_up without a GPU", total(metrics, "vllmeter_nvml_up"), 0)
    reasons = [labels["reason"] for labels, _ in metrics["vllmeter_nvml_status_info"]]
    check("reason", reasons, len(reasons) == 1 and reasons[0] != "", "one")
    same("families of GPU memory", [name for name in metrics if "gpu_memory" in name], [])
    for server in stack.servers:
        attribution = stack.view(server.name)["attribution"]
        assert attribution["state"] == "unavailable"
        assert attribution["reason"]


def test_host_side_of_every_server_is_seen(stack: Stack) -> None:
    """API server, EngineCore and worker by role, with CPU time and memory."""
    metrics = stack.metrics()
    for server in stack.servers:
        roles = {
            labels["role"]: value
            for labels, value in metrics["vllmeter_server_processes"]
            if labels["server"] == server.name
        }
        check(
            f"{server.name}: processes by role",
            roles,
            roles.get("api_server") == 1 and roles.get("engine_core") == 1,
            "1 api_server, 1 engine_core",
        )
        used = total(metrics, "vllmeter_server_cpu_seconds_total", server=server.name, role="engine_core")
        assert used is not None
        assert used > 1


# --------------------------------------------------------------------------- load


def test_the_load_test_was_recorded_as_a_run(stack: Stack, load: Load) -> None:
    """`vllmeter run` passes the exit code on, finds the result, and tells the exporter, which tells Prometheus."""
    same("bench: requests completed, failed", (load.bench["completed"], load.bench.get("failed", 0)), (PROMPTS, 0))
    check(
        "vllmeter run: exit code",
        load.run_code,
        load.run_code == 0,
        f"0; it said: {load.run_output[-300:]}" if load.run_code else 0,
    )
    (folder,) = (stack.folder / "state" / "runs").iterdir()
    run = json.loads((folder / "run.json").read_text())
    assert run["name"] == "first"
    assert not run.get("invalid")
    assert run["state"] == "finished"
    assert (folder / "samples.jsonl.gz").stat().st_size > 1000
    assert (folder / "client.json.gz").exists()
    marked = query(stack.prometheus, f'max_over_time(vllmeter_run_active{{run="first",server="chat"}}[{LONG_WINDOW}])')
    same("run_active in Prometheus during the run", [float(item["value"][1]) for item in marked], [1.0])


def test_totals_equal_the_clients_counts(stack: Stack, load: Load) -> None:
    """Requests and tokens: client = vLLM = exporter = Prometheus, to the last token."""
    expected = {
        ("chat", "requests_finished_total"): (load.bench["completed"], "vllm:request_success_total"),
        ("chat", "prompt_tokens_total"): (load.bench["total_input_tokens"], "vllm:prompt_tokens_total"),
        ("chat", "generation_tokens_total"): (load.bench["total_output_tokens"], "vllm:generation_tokens_total"),
        ("embed", "requests_finished_total"): (load.embed_texts, "vllm:request_success_total"),
        ("embed", "prompt_tokens_total"): (load.embed_tokens, "vllm:prompt_tokens_total"),
        ("rerank", "requests_finished_total"): (load.rerank_documents, "vllm:request_success_total"),
        ("rerank", "prompt_tokens_total"): (load.rerank_tokens, "vllm:prompt_tokens_total"),
    }
    wait_until(
        lambda: value_in(stack, "vllmeter_generation_tokens_total", "chat") == load.bench["total_output_tokens"],
        stack.patience,
        "the totals in Prometheus",
    )
    for (server, family), (counted, source) in expected.items():
        seen = (
            total(load.raw[server], source),
            total(load.ours, f"vllmeter_{family}", server=server),
            value_in(stack, f"vllmeter_{family}", server),
        )
        same(f"{server}: {family} (vLLM, exporter, Prometheus)", seen, (counted,) * 3)
    errors = total(load.ours, "vllmeter_http_requests_total", server="chat", status="4xx")
    same("chat: http_requests_total 4xx", errors, load.not_found)


def test_every_mapped_family_has_the_servers_own_values(load: Load) -> None:
    """Name by name, sample by sample: nothing is lost, added or scaled on the way."""
    compared = 0
    for name, raw in load.raw.items():
        # Stand still while idle; gauges of the Python process and of our own moment are no engine families.
        for labels, _ in load.ours["vllmeter_family_source_info"]:
            if labels["server"] != name:
                continue
            for suffix in ("", "_bucket", "_sum", "_count"):
                theirs = [value for _, value in raw.get(labels["source"] + suffix, [])]
                have = [
                    value
                    for label, value in load.ours.get(f"vllmeter_{labels['family']}{suffix}", [])
                    if label["server"] == name
                ]
                if theirs or have:
                    compared += len(have)
                    if sorted(theirs) != sorted(have):
                        same(f"{name}: {labels['family']}{suffix}", sorted(have), sorted(theirs))
    check("samples equal to vLLM's own, one by one", compared, compared > 500, "> 500")
    for name in load.raw:
        same(f"{name}: families that are not known", total(load.ours, "vllmeter_unmapped_families", server=name), 0)


def test_server_ttft_is_within_what_the_client_saw(load: Load) -> None:
    """Request by request the server's TTFT is at most the client's, so every count, sum and rank is bounded by it."""
    ttfts = client_ttfts(load.bench)
    n = len(ttfts)
    buckets = {
        float(labels["le"]): value
        for labels, value in load.ours["vllmeter_ttft_seconds_bucket"]
        if labels["server"] == "chat"
    }
    server_sum = total(load.ours, "vllmeter_ttft_seconds_sum", server="chat") or 0.0
    same("chat: TTFT count against the client's", total(load.ours, "vllmeter_ttft_seconds_count", server="chat"), n)
    check("chat: Σ TTFT at most the client's", server_sum, 0 < server_sum <= sum(ttfts), f"≤ {sum(ttfts):.4g}")
    late = [bound for bound, count in buckets.items() if count < sum(ttft <= bound for ttft in ttfts)]
    same("chat: buckets with fewer requests than the client's TTFT allows", late, [])

    window = load.views["chat"]["windows"][LONG_WINDOW]
    same("chat: requests in the window", window["ttft_requests"], n)
    assert window["ttft_mean"] == pytest.approx(server_sum / n)
    low, high = deviation_limits(ttfts, server_sum)
    lower, upper = window["ttft_jitter_lower"], window["ttft_jitter_upper"]
    check(
        "chat: jitter bounds meet what the client can bound (s)",
        f"{lower:.4g} … {upper:.4g}",
        lower <= high and upper >= low and lower <= upper,
        f"meets {low:.4g} … {high:.4g}; client {statistics.pstdev(ttfts):.4g}",
    )
    error = window["ttft_jitter_error_ratio"]
    if window["ttft_jitter"] is not None:
        same(
            "chat: jitter estimate is 2LU/(L+U)",
            round(window["ttft_jitter"], 9),
            round(2 * lower * upper / (lower + upper), 9),
        )
        assert error == pytest.approx((upper - lower) / (upper + lower))
    for name, (low, high) in window["ttft_quantiles"].items():
        rank = math.ceil(float(name) * n)
        check(
            f"chat: p{float(name) * 100:.0f} of TTFT, lower bound at most the client's (s)",
            f"{low:.4g} … {high:.4g}",
            low <= ttfts[rank - 1] and low <= high,
            f"lower ≤ {ttfts[rank - 1]:.4g}",
        )
    assert "0.95" in window["ttft_quantiles"]
    labels = {"server": "chat", "window": LONG_WINDOW}
    same(
        "chat: jitter bounds on /metrics",
        (
            total(load.ours, "vllmeter_ttft_jitter_lower_seconds", **labels),
            total(load.ours, "vllmeter_ttft_jitter_upper_seconds", **labels),
        ),
        (lower, upper),
    )


def test_preemptions_happen_and_are_seen(stack: Stack, load: Load) -> None:
    """The cache is too small on purpose: the counter, the burst, the moment and the full cache."""
    happened = total(load.raw["chat"], "vllm:num_preemptions_total")
    check("chat: preemptions, by vLLM", happened, bool(happened), "> 0")
    same(
        "chat: preemptions (exporter, Prometheus)",
        (
            total(load.ours, "vllmeter_preemptions_total", server="chat"),
            value_in(stack, "vllmeter_preemptions_total", "chat"),
        ),
        (happened,) * 2,
    )
    window = load.views["chat"]["windows"][LONG_WINDOW]
    same("chat: preemptions in the window, first one included", window["preemptions"], happened)
    burst = window["preemptions_burst_peak"]
    check("chat: most preemptions between two samples", burst, 1 <= burst <= happened, f"1 … {happened:.0f}")
    last = load.views["chat"]["last_preemption"]
    check(
        "chat: last preemption, seconds after the load began",
        last - load.began,
        load.began < last < load.ended,
        f"0 … {load.ended - load.began:.0f}",
    )
    peak = window["kv_cache_usage_peak"]
    check("chat: KV cache usage, peak", peak, 0.8 < peak <= 1, "> 0.8")
    waiting = window["requests_waiting_peak"]
    check("chat: requests waiting, peak", waiting, 1 <= waiting <= PROMPTS, f"1 … {PROMPTS}")
    same(
        "embed, rerank: preemptions",
        total(load.ours, "vllmeter_preemptions_total", server="embed"),
        total(load.raw["embed"], "vllm:num_preemptions_total"),
    )


def test_prefix_hits_are_seen(load: Load) -> None:
    """All prompts share 256 tokens, two whole blocks."""
    queries = total(load.raw["chat"], "vllm:prefix_cache_queries_total")
    hits = total(load.raw["chat"], "vllm:prefix_cache_hits_total")
    check("chat: tokens found in the prefix cache, by vLLM", hits, bool(hits), "> 0")
    assert hits is not None
    assert queries is not None
    seen = (
        total(load.ours, "vllmeter_prefix_cache_queries_tokens_total", server="chat"),
        total(load.ours, "vllmeter_prefix_cache_hits_tokens_total", server="chat"),
    )
    same("chat: prefix cache queries, hits", seen, (queries, hits))
    window = load.views["chat"]["windows"][LONG_WINDOW]
    assert window["prefix_hit_ratio"] == pytest.approx(hits / queries)
    computed, cached = window["prompt_tokens_computed"], window["prompt_tokens_cached"]
    same("chat: computed + cached prompt tokens", computed + cached, load.bench["total_input_tokens"])
    check("chat: share of prompt tokens from the cache", cached / (computed + cached), cached >= 256, "> 0")


def test_without_configuration_the_servers_are_found(stack: Stack, load: Load) -> None:
    """`vllmeter serve` in an empty folder looks for `vllm serve` processes and their ports."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    empty = stack.folder / "empty"
    empty.mkdir()
    command = ["env", "-C", str(empty), *vllmeter("serve", "--listen", f"127.0.0.1:{port}")]
    wanted = {server.url: server.name for server in stack.servers}

    def found() -> dict[str, str]:
        document = json.loads(get(f"{base}/snapshot.json?readings=false"))
        return {v["url"]: v["name"] for v in document["servers"] if v["url"] in wanted and v["scrape"]["up"]}

    with program(command, stack.folder / "discovering.log", f"{base}/-/healthy", stack.patience):
        wait_until(lambda: set(found()) == set(wanted), stack.patience, "three discovered servers")
        same("discovered without configuration", sorted(found().values()), sorted(wanted.values()))
        metrics = series_of(get(f"{base}/metrics"))
        same(
            "… and read",
            total(metrics, "vllmeter_generation_tokens_total", server="chat"),
            load.bench["total_output_tokens"],
        )


def test_check_has_no_complaint(stack: Stack, load: Load) -> None:
    """`vllmeter check` reads everything once; without a GPU it can only say so."""
    done = subprocess.run(
        vllmeter("check", "--config", str(stack.config), "--format", "json", "--wait", "30"),
        capture_output=True,
        text=True,
        check=False,
        timeout=stack.patience,
    )
    document = json.loads(done.stdout)
    bad = [finding for finding in document["findings"] if finding["severity"] == "error"]
    same("vllmeter check: exit code, errors", (done.returncode, bad), (0, []))


# --------------------------------------------------------------------------- faults


@dataclass
class Faults:
    """What was done, and when."""

    stopped_at: float = 0.0
    stopped: dict[str, dict[str, Any]] = field(default_factory=dict)
    """server -> its part of /snapshot.json when it was found stuck"""
    while_stopped: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """server -> (/health, running) of vLLM itself meanwhile"""
    alerts: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    """HTTP status of the requests that were inside, after SIGCONT"""
    killed_at: float = 0.0
    dead: dict[str, Any] = field(default_factory=dict)
    """rerank's part of /snapshot.json while its engine was dead"""
    dead_families: set[str] = field(default_factory=set)
    """families of rerank on /metrics then, without the prefix"""
    api_killed_at: float = 0.0
    orphans: list[Process] = field(default_factory=list)


class Inside(threading.Thread):
    """A request that is inside a server while something happens to it."""

    def __init__(self, server: Vllm, path: str, body: dict[str, Any], patience: float) -> None:
        super().__init__(name=f"inside-{server.name}", daemon=True)
        self._what = (server, path, body, patience)
        self.status: int | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            self.status = post(*self._what).status_code
        except requests.RequestException as error:
            self.problem = type(error).__name__


@pytest.fixture(scope="module")
def faults(stack: Stack, load: Load) -> Faults:
    """Three faults side by side: chat is stopped while it works, embed is stopped idle, rerank's engine is killed."""
    done = Faults()
    for server in stack.servers:
        wait_until(lambda s=server: idle(s), stack.patience, f"{server.name} idle")  # type: ignore[misc]
    body = {"model": "chat", "prompt": "a long answer", "max_tokens": 900, "ignore_eos": True}
    working = Inside(stack.chat, "/v1/completions", body, 3 * stack.patience)
    working.start()
    wait_until(
        lambda: (total(series_of(get(f"{stack.chat.url}/metrics")), "vllm:num_requests_running") or 0) > 0,
        stack.patience,
        "a running request",
    )
    done.stopped_at = time.time()
    engines = {server.name: server.engine() for server in (stack.chat, stack.embed)}
    for engine in engines.values():
        engine.send(signal.SIGSTOP)
    waiting = Inside(stack.embed, "/v1/embeddings", {"model": "embed", "input": "into the void"}, 3 * stack.patience)
    waiting.start()
    done.killed_at = time.time()
    stack.rerank.engine().send(signal.SIGKILL)
    for name in engines:
        done.stopped[name] = stack.wait_state(name, "stuck")
        server = stack.chat if name == "chat" else stack.embed
        health = requests.get(f"{server.url}/health", timeout=10).status_code
        running_now = total(series_of(get(f"{server.url}/metrics")), "vllm:num_requests_running")
        done.while_stopped[name] = (health, running_now)
    for alert, name in (
        ("VllmeterServerStuck", "chat"),
        ("VllmeterServerStuck", "embed"),
        ("VllmeterEngineDead", "rerank"),
    ):
        wait_until(lambda a=alert, n=name: n in firing(stack, a), stack.patience, f"the alert {alert} of {name}")  # type: ignore[misc]
        done.alerts.append(f"{alert} {name}")
    done.dead = stack.view("rerank", readings=True)
    done.dead_families = {
        name.removeprefix("vllmeter_")
        for name, samples in stack.metrics().items()
        if any(labels.get("server") == "rerank" for labels, _ in samples)
    }
    health = requests.get(f"{stack.rerank.url}/health", timeout=10).status_code
    done.while_stopped["rerank"] = (
        health,
        total(series_of(get(f"{stack.rerank.url}/metrics")), "vllm:num_requests_running"),
    )
    for engine in engines.values():
        engine.send(signal.SIGCONT)
    for inside in (working, waiting):
        inside.join(stack.patience)
        assert inside.status is not None, (
            f"{inside.name} got no answer after SIGCONT: {inside.problem or 'still waiting'}"
        )
        done.answers[inside.name] = inside.status
    for name in engines:
        stack.wait_state(name, "ready")
    stack.rerank.stop(patience=5)
    stack.wait_state("rerank", "gone")
    done.api_killed_at = time.time()
    done.orphans = stack.embed.kill_api_server()
    stack.wait_state("embed", "gone")
    return done


def test_a_stopped_engine_with_a_running_request_is_stuck(stack: Stack, faults: Faults) -> None:
    """vLLM itself goes on to answer /health with 200 and to show the request as running."""
    view = faults.stopped["chat"]
    same("chat stopped at work: what vLLM says (/health, running)", faults.while_stopped["chat"], (200, 1.0))
    check(
        "chat stopped at work: reason",
        view["state_reason"],
        "the engine process is stopped" in view["state_reason"],
        "… the engine process is stopped",
    )
    took = view["state_since"] - faults.stopped_at
    check("chat stopped at work: stuck after (s)", took, 25 < took < 90, "30 s and a few")
    assert stack.watcher.states("chat", faults.stopped_at)[-1] == "ready"


def test_an_engine_that_stopped_while_idle_is_stuck_too(faults: Faults) -> None:
    """The hard one: the request inside shows nowhere in /metrics (running 0, waiting 0)."""
    view = faults.stopped["embed"]
    same("embed stopped idle: what vLLM says (/health, running)", faults.while_stopped["embed"], (200, 0.0))
    check(
        "embed stopped idle: reason",
        view["state_reason"],
        "stopped" in view["state_reason"] and "connections" in view["state_reason"],
        "connections open … the engine process is stopped",
    )


def test_the_alerts_fire_and_the_requests_go_on_after_sigcont(faults: Faults) -> None:
    """Prometheus fired the shipped alerts, each for its server; nobody lost an answer to the pause."""
    wanted = ["VllmeterServerStuck chat", "VllmeterServerStuck embed", "VllmeterEngineDead rerank"]
    same("alerts that fire in Prometheus", faults.alerts, wanted)
    same("requests inside, after SIGCONT", faults.answers, {"inside-chat": 200, "inside-embed": 200})


def test_a_killed_engine_is_dead_while_its_metrics_answer(stack: Stack, faults: Faults) -> None:
    """/metrics goes on with a frozen 200; /health and the process table tell.  Then the API server ends: gone."""
    same("rerank, EngineCore killed: what vLLM says (/health, running)", faults.while_stopped["rerank"], (503, 0.0))
    states = stack.watcher.states("rerank", faults.killed_at)
    check("rerank: states", " > ".join(states), states == ["engine_dead", "gone"], "engine_dead > gone")
    reason = faults.dead["state_reason"]
    words = ("/health answers 503", "engine process")
    check("rerank: reason", reason, any(word in reason for word in words), "/health or the process")
    same("rerank: healthy", faults.dead["scrape"]["healthy"], False)
    shown = faults.dead_families
    same("rerank: gauges of the dead engine that are shown", sorted(shown & ENGINE_GAUGES), [])
    sums = {family.name for family in CATALOGUE if family.origin == "engine" and family.kind == "counter"}
    same("rerank: its counters are shown", bool(shown & sums), True)
    first = next(at for at, name, state, _ in stack.watcher.changes if name == "rerank" and state == "engine_dead")
    check("rerank: engine_dead after (s)", first - faults.killed_at, 0 <= first - faults.killed_at < 5, "< 5")


def test_an_orphaned_engine_is_named(stack: Stack, faults: Faults) -> None:
    """The API server was killed: its port refuses, its EngineCore lives on, and the reason says so."""
    alive = [orphan.title.split()[0] for orphan in faults.orphans if orphan.alive and orphan.title.startswith("VLLM")]
    check(
        "embed, API server killed: left alive",
        alive,
        any("EngineCore" in title for title in alive),
        "VLLM::EngineCore …",
    )
    wait_until(lambda: "left over" in stack.view("embed")["state_reason"], stack.patience, "the orphan in the reason")
    view = stack.view("embed")
    same("embed: state", view["state"], "gone")
    check(
        "embed: reason",
        view["state_reason"],
        "engine process is left over" in view["state_reason"],
        "… its engine process is left over",
    )
    pids = [str(orphan.pid) for orphan in faults.orphans if orphan.alive and orphan.title.startswith("VLLM")]
    notes = [note for note in json.loads(get(f"{stack.exporter}/snapshot.json"))["ownership_notes"] if "embed" in note]
    check("embed: named by pid", notes, len(notes) == 1 and all(pid in notes[0] for pid in pids), ", ".join(pids))
    for name in ("embed", "rerank"):
        same(f"{name}: families after its end", values_of(stack, name), [])


# --------------------------------------------------------------------------- restart


@pytest.fixture(scope="module")
def restarted(stack: Stack, faults: Faults) -> float:
    """chat comes back with another flag, rerank without engine metrics, embed not at all; Unix time before."""
    began = time.time()
    stack.embed.stop(patience=1)  # ends the orphan
    # As it happens most often: the engine dies, vLLM exits, a supervisor starts it again
    stack.chat.engine().send(signal.SIGKILL)
    stack.wait_state("chat", "gone")
    stack.chat.stop()
    stack.chat.flags = tuple("4" if flag == "8" else flag for flag in stack.chat.flags)
    stack.chat.start()
    stack.rerank.start("--disable-log-stats")
    for server in (stack.chat, stack.rerank):
        wait_until(server.ready, START_PATIENCE, f"vllm serve ({server.name}) again")
    stack.wait_state("chat", "ready")
    stack.wait_state("rerank", "unknown_progress", "ready", "busy")
    return began


def test_a_restart_is_counted_once_and_the_changed_flag_named(stack: Stack, restarted: float) -> None:
    """--max-num-seqs 8 -> 4 and nothing else."""
    metrics = stack.metrics()
    same("chat: restarts", total(metrics, "vllmeter_server_restarts_total", server="chat"), 1)
    wait_until(lambda: stack.view("chat")["config_changes"] > 0, stack.patience, "the change of a setting")
    time.sleep(3)  # a second change would follow within a look at the processes
    view = stack.view("chat")
    same("chat: changes of settings", view["config_changes"], 1)
    same("chat: what changed", view["last_change"], "max_num_seqs 8 -> 4")
    states = stack.watcher.states("chat", restarted)
    check(
        "chat: states from its engine's death on",
        " > ".join(states),
        states[-3:] == ["gone", "starting", "ready"] and set(states[:-3]) <= {"engine_dead"},
        "(engine_dead >) gone > starting > ready",
    )
    same("chat: tokens after the restart", total(metrics, "vllmeter_generation_tokens_total", server="chat"), 0)
    wait_until(
        lambda: "chat" in firing(stack, "VllmeterServerRestarted"), stack.patience, "the alert VllmeterServerRestarted"
    )


def test_the_first_request_after_a_restart_is_counted(stack: Stack, restarted: float) -> None:
    """Counted from 0, in the window too."""
    answer = post(
        stack.chat,
        "/v1/completions",
        {"model": "chat", "prompt": "again", "max_tokens": 7, "ignore_eos": True},
        stack.patience,
    )
    assert answer.status_code == 200
    stack.wait_sample(stack.chat, time.time())
    same(
        "chat: tokens of the first request after it",
        total(stack.metrics(), "vllmeter_generation_tokens_total", server="chat"),
        7,
    )
    same("chat: requests in 60 s", stack.view("chat")["windows"]["60s"]["ttft_requests"], 1)


def test_without_engine_metrics_nothing_is_shown_as_zero(stack: Stack, restarted: float) -> None:
    """--disable-log-stats: up, healthy, but progress unknown, and no engine family at all."""
    view = stack.wait_state("rerank", "unknown_progress")
    metrics = stack.metrics()
    check(
        "rerank --disable-log-stats: reason",
        view["state_reason"],
        "no engine metrics" in view["state_reason"],
        "no engine metrics",
    )
    same(
        "rerank: server_up, server_engine_metrics",
        (
            total(metrics, "vllmeter_server_up", server="rerank"),
            total(metrics, "vllmeter_server_engine_metrics", server="rerank"),
        ),
        (1, 0),
    )
    same("rerank: engine families", values_of(stack, "rerank"), [])
    same("rerank: restarts", total(metrics, "vllmeter_server_restarts_total", server="rerank"), 1)


# --------------------------------------------------------------------------- the end


def test_the_recording_plays_the_same_story(stack: Stack, load: Load, restarted: float) -> None:
    """`vllmeter record` ran beside all of it; its replay gives an exporter the same totals."""
    said = stack.stop_recording()
    check(
        "vllmeter record",
        said.strip().splitlines()[-2].partition(": ")[2],
        stack.recording.stat().st_size > 10_000,
        "> 10 kB",
    )
    config = stack.folder / "replay.yaml"
    port, control = free_port(), free_port()
    base = f"http://127.0.0.1:{port}"
    # the load had ended here, and no fault had begun
    start = load.ended + 2.0 - recording_began(stack.recording)
    command = vllmeter(
        *("replay", str(stack.recording), "--no-loop", "--start", f"{start:.1f}"),
        *("--control-port", str(control), "--write-config", str(config)),
    )
    ready = f"http://127.0.0.1:{control}/replay/position"
    with program(command, stack.folder / "replay.log", ready, stack.patience):
        wait_until(config.exists, stack.patience, "the configuration of the replay")
        serve = vllmeter("serve", "--config", str(config), "--listen", f"127.0.0.1:{port}")
        with program(serve, stack.folder / "replay-exporter.log", f"{base}/-/ready", stack.patience):
            names = [view["name"] for view in json.loads(get(f"{base}/snapshot.json?readings=false"))["servers"]]
            same("replay: servers", sorted(names), ["chat", "embed", "rerank"])
            metrics = series_of(get(f"{base}/metrics"))
    expected = {
        "generation_tokens_total": load.bench["total_output_tokens"],
        "preemptions_total": total(load.raw["chat"], "vllm:num_preemptions_total"),
    }
    for family, counted in expected.items():
        same(f"replay: chat {family}", total(metrics, f"vllmeter_{family}", server="chat"), counted)


def test_no_secret_came_out(stack: Stack, load: Load, restarted: float) -> None:
    """The key of embed stands in its command line; it appears in nothing that vllmeter wrote or answered."""
    texts = {path: get(f"{stack.exporter}{path}") for path in ("/metrics", "/snapshot.json", "/config")}
    texts |= {
        str(path.name): path.read_text(errors="replace")
        for path in stack.folder.glob("*.log")
        if path.name not in ("embed.log",)
    }
    texts["recording"] = lzma.decompress(stack.recording.read_bytes()).decode(errors="replace")
    same("places with embed's API key", [name for name, text in texts.items() if API_KEY in text], [])


def test_nothing_went_wrong_in_the_exporter_or_in_prometheus(stack: Stack, restarted: float) -> None:
    """No traceback, no fault, no failed scrape or rule in all that time; few lines about many seconds of refusal."""
    log = (stack.folder / "exporter.log").read_text(errors="replace")
    bad = [line for line in log.splitlines() if re.search(r"Traceback|level=ERROR|fault|Exception", line)]
    same("exporter: errors in its log", bad, [])
    lines = len(log.splitlines())
    check("exporter: lines in its log", lines, lines < 80, "< 80")
    same("exporter: answers that did not come", stack.watcher.faults, [])
    log = (stack.folder / "prometheus.log").read_text(errors="replace")
    bad = [line for line in log.splitlines() if re.search(r"level=(warn|error)", line)]
    same("Prometheus: warnings in its log", bad, [])
    failed = query(stack.prometheus, "sum(prometheus_rule_evaluation_failures_total) or vector(0)")
    assert all(float(item["value"][1]) == 0 for item in failed)
    answered = query(stack.prometheus, f'avg_over_time(up{{job="vllmeter"}}[{LONG_WINDOW}])')
    share = float(answered[0]["value"][1])
    # Every 2 s with a limit of 2 s: beside starting servers one or two of a hundred may be late.
    check("Prometheus: share of scrapes that the exporter answered within 2 s", share, share > 0.95, "> 0.95")


# --------------------------------------------------------------------------- words of the story


def value_in(stack: Stack, name: str, server: str) -> float | None:
    """Newest value of a family in Prometheus, summed; None when there is none."""
    found = query(stack.prometheus, f'sum({name}{{server="{server}"}})')
    return float(found[0]["value"][1]) if found else None


def firing(stack: Stack, alert: str) -> list[str]:
    """Servers for which an alert fires now."""
    found = query(stack.prometheus, f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
    return sorted(item["metric"]["server"] for item in found)


def values_of(stack: Stack, server: str) -> list[str]:
    """Families of a server's engine that /metrics shows now; values of a window are what was before too."""
    own = ("requests_", "prompt_", "generation_", "ttft_", "kv_cache_", "prefix_", "preemptions", "e2e_", "inter_token")
    names = {
        name
        for name, samples in stack.metrics().items()
        if name.removeprefix("vllmeter_").startswith(own)
        and any(labels.get("server") == server and "window" not in labels for labels, _ in samples)
    }
    return sorted(names)


def recording_began(path: Path) -> float:
    """Unix time at which a recording starts."""
    from vllmeter.recording.player import Player

    player = Player(path, loop=False)
    return player.at(0.0).wall
