"""Findings: every one of them appears when it should, with figures, and stays silent otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmeter.memory.findings import (
    UNREACHABLE,
    Claim,
    Evidence,
    Finding,
    PlannedServer,
    claim_of,
    command_findings,
    ordered,
    overcommit_findings,
    plan_findings,
    propose,
    snapshot_findings,
    start_order_findings,
    worst,
)
from vllmeter.memory.flags import parse_arguments
from vllmeter.memory.startup_log import Failure, StartupFacts
from vllmeter.scrape.outcome import FAILURE_REASONS
from vllmeter.snapshot import (
    Attribution,
    GpuMemory,
    GpuReading,
    GpuView,
    Layout,
    NvmlReading,
    OtherMemory,
    Quantity,
    ScrapeStatus,
    ServerReading,
    ServerView,
    Snapshot,
)

GIB = 1 << 30
MIB = 1 << 20


def ids(findings: list[Finding]) -> list[str]:
    return sorted({finding.id for finding in findings})


def planned(name: str, line: str, **extra: Any) -> PlannedServer:
    environment = extra.pop("environment", {})
    return PlannedServer(
        name, parse_arguments(line.split(), environment=environment), extra.pop("version", "0.26.0"), **extra
    )


# --------------------------------------------------------------------------- command lines


@pytest.mark.parametrize(
    ("line", "shared", "expected"),
    [
        ("m --gpu-memory-utilization 0.3", True, []),
        ("m", False, []),
        ("m", True, ["default-fraction-on-shared-card"]),
        ("m --kv-cache-memory-bytes 2G", True, ["kv-bytes-with-default-fraction"]),
        ("m --kv-cache-memory-bytes 2G", False, []),
        ("m --kv-cache-memory-bytes 2G --gpu-memory-utilization 0.3", True, []),
        ("m --prefix-caching-memory-percentage 0.1", False, ["flag-does-not-exist"]),
        ("m --cuda-graph-capture-size 512", False, ["flag-does-not-exist"]),
        ("m --swap-space 4", False, ["flag-of-older-release"]),
        ("m --nonsense 4", False, ["flag-unknown"]),
        ("m --gpu-memory-utilization 57", False, ["flag-value"]),
        ("m --enable 1", False, ["flag-refused"]),
        ("m --disable-log-stats", False, ["log-stats-disabled"]),
        ("m --config x.yaml", False, ["config-file-unread"]),
        ("m --port 1 --port 2", False, ["flag-repeated"]),
    ],
)
def test_one_command_line(line: str, shared: bool, expected: list[str]) -> None:
    """Each mistake gives its finding with a remedy, correct lines give none."""
    found = command_findings(planned("a", line), shared=shared)
    assert ids(found) == expected
    assert all(finding.remedy and finding.servers == ("a",) for finding in found)


def test_flags_against_the_release() -> None:
    """--kv-cache-memory-bytes before 0.10.2 and the whole-device fraction up to 0.9.0 are told by the version."""
    old = planned("a", "m --kv-cache-memory-bytes 2G --gpu-memory-utilization 0.3", version="0.9.1")
    assert ids(command_findings(old, shared=True)) == ["flag-of-newer-release"]
    shared = planned("a", "m --gpu-memory-utilization 0.3", version="0.9.0")
    assert ids(command_findings(shared, shared=True)) == ["fraction-counts-neighbours"]
    assert ids(command_findings(shared, shared=False)) == []


def test_a_variable_that_never_existed() -> None:
    """VLLM_CPU_OFFLOAD_GB is ignored by every release: the remedy names what works."""
    (finding,) = command_findings(planned("a", "m", environment={"VLLM_CPU_OFFLOAD_GB": "4"}), shared=False)
    assert finding.id == "unknown-environment"
    assert "--cpu-offload-gb" in finding.message


def test_start_order_follows_chains() -> None:
    """A chain of health gates orders all; a gap leaves the pairs that may collide."""
    a, b, c = (planned(name, "m --gpu-memory-utilization 0.2") for name in "abc")
    assert start_order_findings([a]) == []
    assert start_order_findings([a, replace(b, waits_for=("a",)), replace(c, waits_for=("b",))]) == []
    (finding,) = start_order_findings([a, replace(b, waits_for=("a",)), c])
    assert finding.servers == ("a", "c", "b")
    assert "service_healthy" in finding.remedy
    circle = [replace(a, waits_for=("b",)), replace(b, waits_for=("a",))]
    assert start_order_findings(circle) == []


def test_the_same_multiprocess_directory() -> None:
    """Two servers on one host with the same directory mix their counters."""
    a, b = (
        planned(n, "m --gpu-memory-utilization 0.2", environment={"PROMETHEUS_MULTIPROC_DIR": "/tmp/x/"}) for n in "ab"
    )
    assert "shared-multiproc-dir" in ids(plan_findings([a, b]))
    assert "shared-multiproc-dir" not in ids(plan_findings([replace(a, place="one"), replace(b, place="two")]))


# --------------------------------------------------------------------------- a card


def claim(name: str, budget: float, allowance: float = 700 * MIB, **extra: Any) -> Claim:
    return Claim(name, budget, allowance, **extra)


def total(value: float) -> Quantity:
    return Quantity(value, "nvml")


def test_budgets_that_fit_with_contexts_are_silent() -> None:
    """Σ budgets + contexts within the card: nothing to say."""
    assert overcommit_findings("0", total(8 * GIB), [claim("a", 3 * GIB), claim("b", 3 * GIB)]) == []
    assert overcommit_findings("0", Quantity(None), [claim("a", 300 * GIB)]) == []
    assert overcommit_findings("0", total(8 * GIB), []) == []


def test_budgets_that_do_not_fit_at_all() -> None:
    """More than the card even on paper: an error with the sum and what fits."""
    (finding,) = overcommit_findings("0", total(8 * GIB), [claim("a", 5 * GIB), claim("b", 4 * GIB)])
    assert (finding.id, finding.severity, finding.gpu) == ("over-commit", "error", "0")
    assert "9.00 GiB, the card has 8.00 GiB" in finding.message
    # room 8 − 2 × 0.6836 = 6.6328; excess 2.3672 shared 3 : 2.4 (60 % of each may go) -> 3.685 and 2.948 GiB
    assert "a 0.46 (3.68 GiB), b 0.36 (2.88 GiB)" in finding.remedy


def test_measured_contexts_are_one_figure_and_assumed_ones_a_span() -> None:
    """With the context measured on that card the message has one figure; assumed, the smallest counts too."""
    measured = [claim(n, 3.8 * GIB, 612 * MIB, context=612.0 * MIB, context_assumed=False) for n in "ab"]
    (finding,) = overcommit_findings("0", total(8 * GIB), measured)
    assert finding.severity == "error"
    assert "take 1.20 GiB on top, 8.80 GiB in all" in finding.message
    assumed = [claim(n, 3.6 * GIB) for n in "ab"]
    (finding,) = overcommit_findings("0", total(8 * GIB), assumed)
    # 7.2 + 2 × 300 MiB = 7.79 fits, 7.2 + 2 × 700 MiB = 8.57 does not: a warning
    assert finding.severity == "warning"
    assert "0.59 GiB to 1.37 GiB on top, 7.79 GiB to 8.57 GiB in all" in finding.message


def test_memory_of_other_programs_counts() -> None:
    """A desktop or a training job on the card takes its part."""
    claims = [claim("a", 3 * GIB), claim("b", 3 * GIB)]
    (finding,) = overcommit_findings("0", total(8 * GIB), claims, foreign=float(GIB))
    assert "1.00 GiB of other programs" in finding.message
    proposals = propose(8.0 * GIB, claims, foreign=float(GIB))
    assert proposals is not None
    assert sum(p.bytes for p in proposals) + 2 * 700 * MIB + GIB <= 8 * GIB


def test_a_default_share_gives_way_to_chosen_ones() -> None:
    """0.92 was nobody's choice: chat and embed keep theirs, the third gets what is left."""
    lines = {"chat": "m --gpu-memory-utilization 0.55", "embed": "m --gpu-memory-utilization 0.25", "rerank": "m"}
    claims = [claim for name, line in lines.items() if (claim := claim_of(planned(name, line), 23.6 * GIB)) is not None]
    proposals = propose(23.6 * GIB, claims)
    assert proposals is not None
    assert [(p.server, p.fraction) for p in proposals] == [("chat", 0.55), ("embed", 0.25), ("rerank", 0.11)]
    assert sum(p.bytes for p in proposals) + sum(claim.allowance for claim in claims) <= 23.6 * GIB


def test_nothing_reasonable_fits() -> None:
    """Ten servers on a small card: no proposal, another way out is named."""
    claims = [claim(f"s{n}", GIB) for n in range(12)]
    (finding,) = overcommit_findings("0", total(8 * GIB), claims)
    assert "no reasonable set" in finding.remedy
    assert propose(8.0 * GIB, claims) is None


def test_encoders_keep_their_budget_and_known_needs_are_respected() -> None:
    """An encoder is not shrunk; a generator never below its weights."""
    claims = [claim("e", GIB, fixed=True, fraction=0.125), claim("g", 6.5 * GIB, least=5.0 * GIB)]
    proposals = propose(8.0 * GIB, claims)
    assert proposals is not None
    assert proposals[0].fraction == 0.125
    assert proposals[1].bytes >= 5 * GIB
    assert propose(8.0 * GIB, [claims[0], replace(claims[1], least=6.4 * GIB)]) is None


@given(
    card=st.integers(min_value=2, max_value=160).map(lambda n: float(n * GIB)),
    shares=st.lists(st.floats(min_value=0.02, max_value=0.95), min_size=1, max_size=6),
    allowance=st.integers(min_value=0, max_value=2000).map(lambda n: float(n * MIB)),
    foreign=st.integers(min_value=0, max_value=4).map(lambda n: float(n * GIB)),
)
def test_a_proposal_always_fits(card: float, shares: list[float], allowance: float, foreign: float) -> None:
    """Whatever is asked, proposed budgets with contexts and other programs never exceed the card."""
    claims = [claim(f"s{n}", share * card, allowance, fraction=share) for n, share in enumerate(shares)]
    proposals = propose(card, claims, foreign=foreign)
    if proposals is not None:
        assert sum(p.bytes for p in proposals) + allowance * len(claims) + foreign <= card + 1
        assert all(0 < p.fraction <= 1 and p.bytes <= p.was + 1 for p in proposals)


@pytest.mark.parametrize(
    ("line", "version", "budget", "allowance"),
    [
        ("m --gpu-memory-utilization 0.5", "0.26.0", 0.5, 700 * MIB),
        ("m", "0.26.0", 0.92, 700 * MIB),
        ("m", "0.19.0", 0.9, 700 * MIB + GIB),
        ("m --enforce-eager", "0.19.0", 0.9, 700 * MIB),
        ("m --gpu-memory-utilization 0.5", "0.9.0", 0.5, GIB),
        ("m --gpu-memory-utilization 0.5 -tp 2", "0.26.0", 0.5, 700 * MIB + 512 * MIB),
    ],
)
def test_what_a_planned_server_will_ask(line: str, version: str, budget: float, allowance: float) -> None:
    """Fraction or the release's default, and what that release leaves outside."""
    found = claim_of(planned("a", line, version=version), 100.0 * GIB)
    assert found is not None
    assert (found.budget, found.allowance) == (pytest.approx(budget * 100 * GIB), allowance)


def test_what_cannot_be_told_is_not_claimed() -> None:
    """A bad fraction or an unread config file gives no claim instead of a wrong one."""
    assert claim_of(planned("a", "m --gpu-memory-utilization 57"), 1.0) is None
    assert claim_of(planned("a", "m --config x.yaml"), 1.0) is None


# --------------------------------------------------------------------------- a snapshot


CARD = GpuReading(
    index=0,
    uuid="GPU-1",
    name="NVIDIA GeForce RTX 4070",
    memory_total_bytes=8 * GIB,
    memory_used_bytes=5 * GIB,
    memory_free_bytes=2 * GIB + 799 * MIB,
    memory_reserved_bytes=225 * MIB,
)
TOTAL = Quantity(float(8 * GIB - 225 * MIB), "nvml")


def row(used: float, budget: float, *, expected: float | None = None, **extra: Any) -> GpuMemory:
    measured = Quantity(used, "nvml")
    return GpuMemory(
        gpu="0",
        uuid="GPU-1",
        used=extra.pop("used", measured),
        budget=Quantity(budget, "label"),
        expected=Quantity(expected if expected is not None else used, "computed"),
        allowance=Quantity(612.0 * MIB, "measured", False, "context 612 MiB"),
        high_water=measured,
        **extra,
    )


def server(name: str, **extra: Any) -> ServerView:
    values: dict[str, Any] = {
        "name": name,
        "url": f"http://127.0.0.1/{name}",
        "scrape": ScrapeStatus(up=True, healthy=True),
        "state": "ready",
        "version": "0.26.0",
        "reading": ServerReading(Layout((), ()), (), (), ()),
        "attribution": Attribution("measured", "port"),
    }
    return ServerView(**{**values, **extra})


def snapshot(*servers: ServerView, **extra: Any) -> Snapshot:
    other = extra.pop("other", ())
    reading = extra.pop("reading", CARD)
    values: dict[str, Any] = {
        "at": 1.0,
        "wall": 1.0,
        "version": "t",
        "servers": servers,
        "gpus": (GpuView(reading, "0", TOTAL, other=other),),
        "nvml": NvmlReading(1.0, 1.0, True, None, (reading,)),
        "nvml_reason": None,
        "host_pid_namespace": True,
    }
    return Snapshot(**{**values, **extra})


def test_a_healthy_host_has_no_findings() -> None:
    """Two servers within budgets that fit: silence."""
    view = snapshot(server("a", memory=(row(2.5 * GIB, 2.5 * GIB),)), server("b", memory=(row(2.5 * GIB, 2.5 * GIB),)))
    assert snapshot_findings(view) == []


@pytest.mark.parametrize(
    ("scrape", "part"),
    [
        (ScrapeStatus(up=False, reason="refused", detail="connection refused"), "port right"),
        (ScrapeStatus(up=False, reason="auth"), "auth"),
        (ScrapeStatus(up=False, reason="dns"), "service name"),
        (ScrapeStatus(up=False, reason="whatever"), "own log"),
        (ScrapeStatus(up=False), "own log"),
    ],
)
def test_a_server_that_cannot_be_read(scrape: ScrapeStatus, part: str) -> None:
    """Unreachable, with the reason and what to look at."""
    (finding,) = snapshot_findings(snapshot(server("a", scrape=scrape, reading=None)))
    assert (finding.id, finding.severity) == ("unreachable", "error")
    assert part in finding.remedy


def test_every_reason_of_a_failed_scrape_has_a_remedy() -> None:
    """A remedy that fits: a missing variable has nothing to do with the URL."""
    assert set(FAILURE_REASONS) - set(UNREACHABLE) == {"reset", "unreachable", "internal"}
    assert set(UNREACHABLE) <= set(FAILURE_REASONS)


def test_metrics_without_an_engine_and_a_dead_engine() -> None:
    """No engine families, or /health failing while /metrics answers: both are errors."""
    empty = ServerReading(Layout((), (), engine_metrics=False), (), (), ())
    assert ids(snapshot_findings(snapshot(server("a", reading=empty)))) == ["no-engine-metrics"]
    sick = ScrapeStatus(up=True, healthy=False, health=500)
    (found,) = snapshot_findings(snapshot(server("a", scrape=sick)))
    assert (found.id, found.message) == ("unhealthy", "/health answers 500")
    dead = ScrapeStatus(up=True, healthy=False, health=503)
    (found,) = snapshot_findings(snapshot(server("a", scrape=dead, state="engine_dead")))
    assert "the engine is dead" in found.message


def test_unknown_families_and_versions_are_told() -> None:
    """Names that the table does not know are counted and shown; a missing version is said."""
    layout = Layout((), (), unmapped=tuple(f"vllm:new_{n}" for n in range(7)))
    found = snapshot_findings(snapshot(server("a", reading=ServerReading(layout, (), (), ()), version=None)))
    assert ids(found) == ["unmapped-families", "version-unknown"]
    assert "7 families" in found[0].message


def test_over_budget_by_how_much() -> None:
    """High water above budget + context: the excess is the figure."""
    (finding,) = snapshot_findings(snapshot(server("a", memory=(row(3.5 * GIB, 2.5 * GIB),))))
    assert finding.id == "over-budget"
    # 3.5 − 2.5 − 0.5977 (612 MiB) = 0.4023 GiB
    assert "held 3.50 GiB at most, 0.40 GiB above its budget of 2.50 GiB plus 0.60 GiB" in finding.message


def test_a_suspended_budget_is_not_compared_and_a_sleeper_that_holds_memory_is_told() -> None:
    """Asleep: no over-budget finding, but memory that was not given back is one."""
    asleep = row(6.0 * GIB, 2.5 * GIB, budget_suspended="asleep")
    found = snapshot_findings(snapshot(server("a", memory=(asleep,), sleep_state="weights_offloaded")))
    assert ids(found) == ["asleep-but-holding"]


def test_a_budget_that_is_mostly_unused() -> None:
    """An encoder holds half of what it may take: the rest could go to a neighbour."""
    (finding,) = snapshot_findings(snapshot(server("a", memory=(row(1.5 * GIB, 3.0 * GIB),))))
    assert (finding.id, finding.severity) == ("budget-unused", "info")
    assert "1.50 GiB stay unused" in finding.message


def test_over_commit_of_running_servers() -> None:
    """Budgets of what runs now, against the card's CUDA total."""
    views = [server(n, memory=(row(2.6 * GIB, 4.2 * GIB, expected=4.0 * GIB),)) for n in "ab"]
    assert "over-commit" in ids(snapshot_findings(snapshot(*views)))


def test_servers_that_do_not_run_yet_count_with_their_configured_budgets() -> None:
    """One card: 0.7 that runs and 0.6 that does not do not fit it, before the second is started."""
    here = server("a", memory=(row(2.6 * GIB, 0.7 * 7.78 * GIB),))
    gone = server("b", scrape=ScrapeStatus(up=False, reason="refused"), reading=None)
    known = Evidence(fractions={"a": 0.7, "b": 0.6})
    (finding,) = [f for f in snapshot_findings(snapshot(here, gone), known) if f.id == "over-commit"]
    assert finding.servers == ("a", "b")
    assert "b 4.67 GiB" in finding.message
    fits = Evidence(fractions={"a": 0.7}, sizes={"b": 1.0 * GIB})
    assert "over-commit" not in ids(snapshot_findings(snapshot(here, gone), fits))
    up = replace(gone, scrape=ScrapeStatus(up=True, healthy=True))
    assert "over-commit" not in ids(snapshot_findings(snapshot(here, up), known)), "it may run on another host's card"


def test_without_a_visible_card_only_the_sum_of_fractions_is_judged() -> None:
    """0.7 + 0.6 fit no single card, whatever its size; one server, or a sum of 1, says nothing."""
    unseen: dict[str, Any] = {"nvml": NvmlReading(1.0, 1.0, False, "no library"), "gpus": ()}
    (finding,) = [
        f
        for f in snapshot_findings(snapshot(server("a"), **unseen), Evidence(fractions={"a": 0.7, "b": 0.6}))
        if f.id == "over-commit"
    ]
    assert finding.severity == "warning"
    assert "a 0.7 + b 0.6 = 1.30" in finding.message
    for fractions in ({"a": 0.9}, {"a": 0.5, "b": 0.5}):
        found = snapshot_findings(snapshot(server("a"), **unseen), Evidence(fractions=fractions))
        assert "over-commit" not in ids(found)


def test_a_mistyped_flag_gets_the_one_that_was_meant() -> None:
    """British spelling is the usual case; a word that looks like nothing gets no guess."""
    (finding,) = command_findings(planned("a", "m --gpu-memory-utilisation 0.3"), shared=False)
    assert finding.remedy.startswith("did you mean --gpu-memory-utilization?")
    (other,) = command_findings(planned("a", "m --nonsense 4"), shared=False)
    assert "did you mean" not in other.remedy


def test_a_restart_that_would_be_refused() -> None:
    """Free + own − context is less than fraction × total: told before the restart."""
    holder = server("a", memory=(row(3.0 * GIB, 3.0 * GIB),), settings={"gpu_memory_utilization": "0.9"})
    found = [f for f in snapshot_findings(snapshot(holder)) if f.id == "restart-would-fail"]
    # asks 0.9 × 7.7803 = 7.00 GiB; free 2.7803 + own 3.0 − context 0.5977 = 5.18 GiB
    assert len(found) == 1
    assert "asks for 7.00 GiB and 5.18 GiB would be free" in found[0].message
    old = replace(holder, version="0.6.3")
    assert "restart-would-fail" not in ids(snapshot_findings(snapshot(old)))


def test_two_servers_that_start_at_once() -> None:
    """Both starting on one card: their KV sizes may come out wrong."""
    views = [
        server(n, state="starting", memory=(row(1.0 * GIB, 2.5 * GIB, budget_suspended="starting"),)) for n in "ab"
    ]
    assert "starting-together" in ids(snapshot_findings(snapshot(*views)))


def test_an_orphan_is_told_with_its_memory() -> None:
    """An engine whose server was killed keeps its memory."""
    orphan = OtherMemory("0", "GPU-1", "VLLM::EngineCore", 3 * GIB, orphan=True, detail="pid 4711")
    (finding,) = snapshot_findings(snapshot(other=(orphan,)))
    assert finding.id == "orphan"
    assert "3.00 GiB" in finding.message
    assert "4711" in finding.message


def test_own_pid_namespace_and_missing_nvml() -> None:
    """No `pid: host`, or no driver: each once, with the remedy, and no finding per server when NVML is down."""
    hidden = server("a", attribution=Attribution("unavailable", "none", "empty list"))
    found = snapshot_findings(snapshot(hidden, host_pid_namespace=False))
    assert ids(found) == ["memory-not-attributed", "no-pid-host"]
    down = NvmlReading(1.0, 1.0, False, "no library")
    assert ids(snapshot_findings(snapshot(hidden, nvml=down, gpus=(), host_pid_namespace=False))) == [
        "nvml-unavailable"
    ]
    (off,) = snapshot_findings(snapshot(nvml=None, gpus=(), nvml_reason="switched off (nvml.enabled)"))
    assert (off.id, off.severity) == ("nvml-unavailable", "info"), "that is what the configuration asks for"


def test_what_the_start_up_log_says() -> None:
    """The reason why a start failed, ignored variables, and a silently applied plan."""
    facts = StartupFacts(
        number=1,
        unknown_environment=("VLLM_CPU_OFFLOAD_GB",),
        startup_plan=True,
        failure=Failure("no_kv_memory", "nothing was left", "raise it"),
    )
    found = snapshot_findings(snapshot(server("a")), Evidence(startups={"a": facts}))
    assert ids(found) == ["start-failed", "startup-plan", "unknown-environment"]


def test_a_log_that_cannot_be_read_is_told() -> None:
    """A mistyped path would otherwise only show as parts that are not known."""
    (finding,) = snapshot_findings(snapshot(server("a")), Evidence(unread_logs={"a": "/x.log: No such file"}))
    assert (finding.id, finding.servers) == ("log-unreadable", ("a",))
    assert "/x.log: No such file" in finding.message


def test_command_lines_of_running_servers() -> None:
    """The flags that run are judged with the card they share; a shared directory only within one file system."""
    views = [server(n, memory=(row(2.5 * GIB, 2.5 * GIB),)) for n in "ab"]
    lines = {
        n: parse_arguments(["m", "--disable-log-stats"], environment={"PROMETHEUS_MULTIPROC_DIR": "/x"}) for n in "ab"
    }
    found = snapshot_findings(snapshot(*views), Evidence(commands=lines))
    assert ids(found) == ["default-fraction-on-shared-card", "log-stats-disabled", "shared-multiproc-dir"]
    apart = Evidence(commands=lines, containers={"a": "one", "b": "two"})
    assert "shared-multiproc-dir" not in ids(snapshot_findings(snapshot(*views), apart))


def test_disagreements_of_budget_reading_are_findings() -> None:
    """What budget and KV reading found contradictory is passed on."""
    (finding,) = snapshot_findings(snapshot(server("a", findings=("label says 5, log says 6",))))
    assert (finding.id, finding.message) == ("disagreement", "label says 5, log says 6")


def test_order_and_worst() -> None:
    """Errors come first, equal findings once; the worst decides the exit code."""
    a = Finding("x", "info", "m", "r")
    b = Finding("y", "error", "m", "r")
    assert ordered([a, b, a]) == (b, a)
    assert worst([a, b]) == "error"
    assert worst([a]) == "info"
    assert worst([]) is None


def test_every_finding_is_documented() -> None:
    """docs/budgets.md has a row for each id that the code can report, and for no other."""
    import ast
    import re
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    used: set[str] = set()
    for name in ("memory/findings.py", "memory/compose_file.py", "cli/check.py"):
        for node in ast.walk(ast.parse((root / "exporter" / "vllmeter" / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding" and node.args:
                compared = {c for n in ast.walk(node.args[0]) if isinstance(n, ast.Compare) for c in ast.walk(n)}
                used |= {
                    part.value
                    for part in ast.walk(node.args[0])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part not in compared
                }
    # chosen by a variable
    used |= {"flag-does-not-exist", "flag-value", "flag-refused"}
    table = (root / "docs" / "budgets.md").read_text(encoding="utf-8").split("## Findings", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == used
