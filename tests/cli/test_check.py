"""`vllmeter check`: the table as golden text, JSON, exit codes, and the real command against a replay."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from vllmeter.cli.app import app
from vllmeter.cli.check import exit_code, nothing_found, with_budgets
from vllmeter.cli.check_table import check_document, max_concurrency, render_check, render_findings
from vllmeter.config.load import parse_config
from vllmeter.memory.budget import BudgetFacts, budget_of, committed, cuda_total
from vllmeter.memory.findings import Evidence, Finding
from vllmeter.memory.startup_log import StartupFacts, StartupLog
from vllmeter.sampler import HostSources
from vllmeter.snapshot import (
    Attribution,
    GpuReading,
    GpuView,
    Layout,
    NvmlReading,
    OtherMemory,
    ProcessTable,
    Quantity,
    RoleUsage,
    ScrapeStatus,
    ServerReading,
    ServerView,
    Snapshot,
)

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
LOGS = CAPTURES / "logs"
GIB = 1 << 30
H200 = GpuReading(
    index=0,
    uuid="GPU-1",
    name="NVIDIA H200",
    memory_total_bytes=150_754_820_096,
    memory_used_bytes=9_898_557_440,
    memory_free_bytes=140_211_322_880,
    memory_reserved_bytes=644_939_776,
)


def real_snapshot() -> Snapshot:
    """The three servers of the H200 recording after load, with their real logs and NVML figures."""
    chat = StartupLog()
    chat.feed_all((LOGS / "vllm-0.26.0__h200__chat-two-starts.log").read_text().splitlines())
    logs = {"chat": chat.previous}
    for name in ("rerank", "embed"):
        log = StartupLog()
        log.feed_all((LOGS / f"vllm-0.26.0__h200__{name}.log").read_text().splitlines())
        logs[name] = log.facts
    servers = []
    for name, model, fraction, used, tokens, extra in (
        ("rerank", "bge-reranker-base", "0.02", 1_698_693_120, "None", {"num_gpu_blocks": "1"}),
        ("embed", "bge-m3", "0.03", 2_281_701_376, "None", {"num_gpu_blocks": "1"}),
        (
            "chat",
            "Qwen3-1.7B",
            "0.06",
            5_897_191_424,
            "11200",
            {"num_gpu_blocks_override": "700", "kv_cache_max_concurrency": "2.734375"},
        ),
    ):
        labels = {"gpu_memory_utilization": fraction, "kv_cache_size_tokens": tokens, "block_size": "16", **extra}
        layout = Layout((), (), model_names=(model,), cache_config={"0": labels})
        held = Quantity(float(used), "nvml")
        budget = budget_of(BudgetFacts("0.26.0", layout.cache_config, logs[name]), [(H200, held, held)])
        servers.append(
            ServerView(
                name=name,
                url=f"http://127.0.0.1/{name}",
                scrape=ScrapeStatus(up=True, healthy=True),
                state="ready",
                reading=ServerReading(layout, (), (), ()),
                model_name=model,
                version="0.26.0",
                attribution=Attribution("measured", "port"),
                memory=budget.rows,
                kv_capacity_tokens=budget.kv.tokens,
            )
        )
    card = GpuView(
        H200,
        "0",
        cuda_total(H200),
        committed(row for view in servers for row in view.memory),
        unattributed_bytes=20_971_520,
        other=(OtherMemory("0", "GPU-1", "Xorg", 268_435_456),),
    )
    return Snapshot(1.0, 2.0, "t", tuple(servers), (card,), NvmlReading(1.0, 2.0, True, None, (H200,)), None)


GOLDEN = """\
GPU 0: NVIDIA H200, 9.22 GiB used of 140.40 GiB, CUDA total 139.80 GiB (nvml)
  server  model              version  budget  used  high water  expected  parts                                              KV tokens  max conc.  method
  rerank  bge-reranker-base  0.26.0     2.80  1.58        1.58     ~1.13  w 0.53 gr 0.00 ctx ~1.05                                   -          -  port
  embed   bge-m3             0.26.0     4.19  2.12        2.12     ~1.66  w 1.06 gr 0.00 ctx ~1.07                                   -          -  port
  chat    Qwen3-1.7B         0.26.0     8.39  5.49        5.49      5.37  w 3.22 kv 1.20 act 0.13 nt 0.22 gr 0.00 ctx ~0.72     11,200       2.73  port
  sum: budgets 15.38 + contexts and what else is outside 1.79 + other programs 0.25 of 139.80 GiB: head room 122.38 GiB
  other: Xorg 0.25 GiB, unattributed 0.02 GiB

No findings.

GiB; ~ estimate, - not known. Parts: w weights, kv kv cache, act activation peak, nt non torch, gr cuda graphs, ctx context
"""  # noqa: E501 - a table is as wide as it is


def test_the_table_of_the_real_recording() -> None:
    """Three real servers on one card: every figure, the sum against the card, and what is not theirs."""
    assert render_check(real_snapshot(), ()) == GOLDEN


def test_verbose_says_where_budgets_come_from() -> None:
    """-v adds fraction × total with its source."""
    text = render_check(real_snapshot(), (), verbose=True)
    assert "chat: budget from label, 0.06 × 150,109,880,320 B (nvml)" in text


def test_verbose_says_what_the_runbooks_look_up() -> None:
    """State and reason, the answer, PIDs for a stack dump, settings, the log's facts and every unknown family."""
    base = real_snapshot()
    chat = replace(
        base.servers[2],
        state="stuck",
        state_reason="4 running, nothing moved for 31 s",
        scrape=ScrapeStatus(up=True, healthy=True, duration=0.0031),
        attribution=Attribution("measured", "port", pids=(1137,)),
        host=(RoleUsage("api_server", 1, 1.0, 1, 1, 1), RoleUsage("engine_core", 1, 1.0, 1, 1, 1)),
        settings={"max_num_seqs": "64", "block_size": "16"},
        startup={"weights": "3.22 GiB"},
        reading=ServerReading(Layout((), (), unmapped=("vllm:a", "vllm:b")), (), (), ()),
    )
    text = render_check(replace(base, servers=(chat,)), (), verbose=True)
    detail = text[text.index("In detail") :].splitlines()[1:7]
    assert detail == [
        "  chat: stuck (4 running, nothing moved for 31 s)",
        "    /metrics answered in 3 ms, /health: 200",
        "    processes: api_server 1, engine_core 1; PIDs on the GPU: 1137",
        "    settings: block_size 16, max_num_seqs 64",
        "    start-up log: weights 3.22 GiB",
        "    families that are not known: vllm:a, vllm:b",
    ]
    assert "In detail" not in render_check(base, ())


def test_a_clock_that_is_held_down_is_told() -> None:
    """Heat and hardware are; the power limit is normal under load."""
    base = real_snapshot()
    hot = {"sw_power_cap": True, "hw_thermal_slowdown": True, "sw_thermal_slowdown": False}
    cards = tuple(replace(card, reading=replace(card.reading, throttle=hot)) for card in base.gpus)
    assert "  clock held down: hw_thermal_slowdown\n" in render_check(replace(base, gpus=cards), ())
    assert "clock held down" not in render_check(base, ())


def test_budgets_of_the_configuration_reach_the_findings() -> None:
    """Servers that do not run yet are judged by what the file gives them."""
    text = """
servers:
  - {name: a, url: "http://127.0.0.1:1", budget: {fraction: 0.7}}
  - {name: b, url: "http://127.0.0.1:2", budget: {bytes: 2GiB}}
  - {name: c, url: "http://127.0.0.1:3"}
"""
    known = with_budgets(Evidence(), parse_config(text))
    assert (known.fractions, known.sizes) == ({"a": 0.7}, {"b": float(2 << 30)})


def test_colours_only_when_asked_and_the_same_text() -> None:
    """Escape sequences appear for a terminal alone and change no character of the text."""
    import re

    finding = Finding("x", "error", "m", "r", ("chat",), "0")
    plain = render_check(real_snapshot(), (finding,))
    coloured = render_check(real_snapshot(), (finding,), colour=True)
    assert "\x1b" not in plain
    assert "\x1b[31;1mERROR" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_findings_are_lines_with_a_remedy_and_a_count() -> None:
    """Severity, id, servers, GPU, message; the remedy below; how many of each at the end."""
    found = (Finding("a", "error", "broken", "mend it", ("s", "t"), "1"), Finding("b", "info", "note", "read it"))
    assert render_findings(found) == [
        "ERROR   a s, t (GPU 1): broken",
        "        mend it",
        "INFO    b: note",
        "        read it",
        "1 error, 1 info",
    ]
    assert render_findings(()) == ["No findings."]


def test_what_is_not_known_is_a_dash_with_its_reason() -> None:
    """A server without budget and memory shows dashes and why; the sum says that it lacks one."""
    snapshot = real_snapshot()
    unknown = replace(snapshot.servers[0].memory[0], budget=Quantity(None, reason="no log"))
    first = replace(snapshot.servers[0], memory=(unknown,))
    text = render_check(replace(snapshot, servers=(first, *snapshot.servers[1:])), ())
    assert "rerank: budget not known: no log" in text
    assert "(without 1 server(s) whose budget is not known)" in text


def test_servers_without_a_visible_gpu_are_listed_apart() -> None:
    """No NVML: the servers still appear, with the reason."""
    hidden = tuple(
        replace(view, memory=(), attribution=Attribution("unavailable", "none", "no driver here"))
        for view in real_snapshot().servers
    )
    text = render_check(replace(real_snapshot(), servers=hidden, gpus=()), ())
    assert text.startswith("Servers\n")
    assert "chat: no driver here" in text
    assert "unavailable" in text
    assert "No server is configured" in render_check(replace(real_snapshot(), servers=(), gpus=()), ())


def test_a_suspended_budget_is_marked() -> None:
    """Asleep: the budget is shown as not compared, with the reason."""
    snapshot = real_snapshot()
    asleep = replace(snapshot.servers[2].memory[0], budget_suspended="asleep (discard_all)")
    text = render_check(replace(snapshot, servers=(replace(snapshot.servers[2], memory=(asleep,)),)), ())
    assert "8.39 (not now)" in text
    assert "chat: not compared now: asleep (discard_all)" in text


def test_json_holds_the_same_in_bytes() -> None:
    """Bytes, sources, reasons; null where not known; it is valid JSON."""
    finding = Finding("x", "warning", "m", "r", ("chat",), "0")
    data = json.loads(json.dumps(check_document(real_snapshot(), [finding])))
    assert data["worst"] == "warning"
    assert data["findings"][0]["id"] == "x"
    chat = data["servers"][2]
    assert chat["memory"][0]["budget_bytes"]["value"] == 9_006_592_820
    assert chat["memory"][0]["budget_bytes"]["source"] == "label"
    assert chat["kv_cache_capacity_tokens"] == {"value": 11200, "source": "label"}
    assert chat["max_concurrency"] == 2.734375
    rerank = data["servers"][0]
    assert rerank["memory"][0]["parts"]["kv_cache"] == {"value": None, "reason": "no KV cache: the model is an encoder"}
    assert data["gpus"][0]["cuda_total_bytes"]["value"] == 150_109_880_320


def test_concurrency_of_several_engines_adds_up_and_the_log_is_the_fallback() -> None:
    """Each data-parallel engine holds so many requests; without labels the log's figure counts."""
    labels = {engine: {"kv_cache_max_concurrency": "2.5"} for engine in "01"}
    view = replace(real_snapshot().servers[2], reading=ServerReading(Layout((), (), cache_config=labels), (), (), ()))
    assert max_concurrency(view) == 5.0
    blind = replace(view, reading=None)
    assert max_concurrency(blind, StartupFacts(max_concurrency=2.73)) == 2.73
    assert max_concurrency(blind) is None


@pytest.mark.parametrize(
    ("severities", "strict", "code"),
    [
        ([], False, 0),
        (["info"], True, 0),
        (["warning"], False, 0),
        (["warning"], True, 1),
        (["error", "info"], False, 1),
    ],
)
def test_exit_codes(severities: list[str], strict: bool, code: int) -> None:
    """Errors fail a CI job, warnings with --strict, information never."""
    findings = tuple(Finding(s, s, "m", "r") for s in severities)
    assert exit_code(findings, strict=strict) == code


def test_no_server_at_all_is_an_error() -> None:
    """A check that looked at nothing is no success."""
    empty = replace(real_snapshot(), servers=())
    assert [f.id for f in nothing_found(empty, None)] == ["no-servers"]
    assert nothing_found(real_snapshot(), None) == []


# --------------------------------------------------------------------------- the command itself


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["check", *arguments])


def test_an_invalid_configuration_exits_with_2(tmp_path: Path) -> None:
    """Mistakes are named with file and line before anything is probed."""
    path = tmp_path / "v.yaml"
    path.write_text("servers:\n  - name: a\n    url: http://127.0.0.1:1\n    budjet: {fraction: 0.5}\n")
    result = run("--config", str(path))
    assert result.exit_code == 2
    assert "v.yaml:4: servers[0].budjet: unknown key; did you mean `budget`?" in result.output
    assert run("--format", "xml").exit_code == 2


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Connection refused: exit 1 with what to look at, no escape sequences in a pipe."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else gets the port
        port = taken.getsockname()[1]
        path = tmp_path / "v.yaml"
        path.write_text(
            f"servers: [{{name: a, url: 'http://127.0.0.1:{port}'}}]\nnvml: {{enabled: false}}\n", encoding="utf-8"
        )
        result = run("--config", str(path), "--wait", "3")
    assert result.exit_code == 1
    assert "ERROR   unreachable a: " in result.output
    assert "is it running" in result.output
    assert "INFO    nvml-unavailable" in result.output
    assert "\x1b" not in result.output


def test_the_command_against_the_replayed_recording(tmp_path: Path) -> None:
    """Real endpoints, NVML and processes from the recording, with real logs: budgets, parts and exit code 0."""
    from vllmeter.recording.replay import ReplayServer

    first_start = (LOGS / "vllm-0.26.0__h200__chat-two-starts.log").read_text().split("\nCMD", 1)[0]
    (tmp_path / "chat.log").write_text(first_start)
    with ReplayServer(CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec") as replay:
        settings = yaml.safe_load(replay.config())
        files = {"vllm-reranker": LOGS / "vllm-0.26.0__h200__rerank.log", "vllm-qwen3": tmp_path / "chat.log"}
        for server in settings["servers"]:
            if server["name"] in files:
                server["log"] = {"file": str(files[server["name"]])}
        path = tmp_path / "v.yaml"
        path.write_text(yaml.safe_dump(settings))
        result = run("--config", str(path), "--format", "json", "--wait", "15")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    memory = {server["name"]: server["memory"][0] for server in data["servers"]}
    assert memory["vllm-qwen3"]["budget_bytes"]["value"] == 9_006_592_820
    assert memory["vllm-qwen3"]["expected_bytes"]["value"] == pytest.approx(5_761_037_556, abs=2)
    assert memory["vllm-reranker"]["parts"]["weights"]["value"] == 569_083_167
    assert memory["vllm-embed"]["parts"]["weights"]["value"] is None


def test_figures_of_another_start_are_told_and_not_shown(tmp_path: Path) -> None:
    """A log of a process that does not hold the GPU now: a finding, and none of its figures in the details."""
    from vllmeter.recording.replay import ReplayServer

    log = LOGS / "vllm-0.26.0__h200__chat-two-starts.log"  # the second start, pid 1851; the recording begins with 1137
    with ReplayServer(CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec") as replay:
        settings = yaml.safe_load(replay.config())
        settings["servers"] = [server for server in settings["servers"] if server["name"] == "vllm-qwen3"]
        settings["servers"][0]["log"] = {"file": str(log)}
        path = tmp_path / "v.yaml"
        path.write_text(yaml.safe_dump(settings))
        result = run("--config", str(path), "--verbose", "--wait", "15")
    assert "the log tells of another start" in result.output
    assert "PIDs on the GPU: 1137" in result.output
    assert "start-up log:" not in result.output


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_missing_nvml_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, more: tuple[str, ...]
) -> None:
    """Not per server, and not on standard error as well: once, as a finding with its remedy."""
    monkeypatch.setattr("vllmeter.wiring.build_sources", lambda _: HostSources(NoDriver(), NoProcesses()))
    path = tmp_path / "vllmeter.yaml"
    path.write_text("servers:\n" + "".join(f"  - {{name: s{n}, url: 'http://127.0.0.1:{n}'}}\n" for n in (1, 2)))
    result = CliRunner().invoke(app, ["check", "-c", str(path), "--wait", "3", *more])
    assert result.exit_code == 1
    everything = result.output + caplog.text  # without a handler, Python writes warnings to standard error
    assert everything.count("libnvidia-ml.so.1 was not found") == 1
    assert "library_not_found" not in everything
    assert "NVML is down" not in everything
    assert "scrape=failed" not in everything


class NoDriver:
    """What the reader says and logs without a driver."""

    def read(self, at: float, wall: float) -> NvmlReading:
        logging.getLogger("vllmeter.gpu.reader").warning("NVML is down: libnvidia-ml.so.1 was not found")
        return NvmlReading(at, wall, up=False, reason="library_not_found")

    def close(self) -> None:
        """Nothing is open."""


class NoProcesses:
    """An empty /proc."""

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        return ProcessTable(at, {})
