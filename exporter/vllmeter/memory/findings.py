"""What is wrong, or will be, with servers that share a card: data with figures and a remedy.

Three kinds of checks: on a plan (command lines before anything starts: ``init`` and ``check``), on a card (do the
budgets fit), and on a snapshot (what is measured now).  Every finding has a stable ``id``, so that a user can
look it up in docs/budgets.md and a CI job can count on it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllmeter.memory import serve_flags
from vllmeter.memory.budget import CONTEXT_ASSUMED, GRAPHS_ASSUMED, NCCL_ASSUMED, over_budget
from vllmeter.memory.flags import ServeCommand
from vllmeter.memory.regimes import regime_of
from vllmeter.memory.startup_log import StartupFacts
from vllmeter.snapshot import GpuMemory, GpuView, Quantity, ServerView, Snapshot

GIB: Final = 1 << 30
MIB: Final = 1 << 20

CONTEXT_SMALLEST: Final = 300 * MIB
"""The smallest context that reports of 8 GB cards name: the lower end of what N servers need on top."""
LEAST_KV: Final = 128 * MIB
"""A generator needs some KV cache at all."""
_FLAGS: Final = tuple(name for names, _ in serve_flags.OPTIONS for name in names)
_LEAST_SHARE: Final = 0.05
"""Less of a card than this is no proposal for a server whose needs are not known."""
ASLEEP_HOLDS: Final = 4 * GIB
"""More than this in a sleeping server is memory that was not given back."""


UNREACHABLE: Final[Mapping[str, str]] = {
    "auth": "the server wants a key: set `auth` for it",
    "http_4xx": "is the path right (--root-path, metrics_path)? Is it vLLM at all?",
    "http_5xx": "its own log says why; vLLM up to 0.23 with FastAPI 0.137 or newer answers 500 to everything",
    "refused": "is it running, and is the port right? In a container use the service name as host",
    "dns": "the host name is not known here: inside Compose use the service name, outside 127.0.0.1",
    "secret": "set the variable for this process, or correct the place of the secret under `auth`",
    "tls": "`tls` of the server: ca_file for a private CA, existing files; http:// when it has no TLS",
    "timeout": "it is too busy or hangs: its own log, CPU of its API server; `timeout` of the server allows more",
    "redirect": "give the address that it redirects to as `url`",
    "content_type": "something else answers there: is the port that of vLLM, and metrics_path right?",
    "empty": "something else answers there: is the port that of vLLM, and metrics_path right?",
    "parse": "is it vLLM, and does a proxy change the text? Record it (`vllmeter record`) for a bug report",
    "truncated": "it or a proxy before it ends the answer early: its own log, limits of the proxy",
    "encoding": "a proxy before it changes the answer: let vllmeter ask vLLM itself",
    "too_large": "raise `max_body` of the server, or find what makes its /metrics so large",
}
"""What to do about a failed scrape, by its reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know or to do.  ``severity``: error (will not work), warning (may not), info (worth knowing)."""

    id: str
    severity: str
    message: str
    remedy: str
    servers: tuple[str, ...] = ()
    gpu: str | None = None


SEVERITIES: Final = ("error", "warning", "info")


def worst(findings: Iterable[Finding]) -> str | None:
    """The highest severity among ``findings``; None when there is none."""
    present = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in present), None)


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by gpu, server and id; equal ones once."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda f: (SEVERITIES.index(f.severity), f.gpu or "", f.servers, f.id, f.message)))


def gib(value: float) -> str:
    """``4.50 GiB``: two decimals, as vLLM prints."""
    return f"{value / GIB:.2f} GiB"


# --------------------------------------------------------------------------- the plan: command lines


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """A server as it is configured to start.

    ``gpus``: device ids it may use; empty = all or unknown, then it is taken to share one card with the others.
    ``waits_for``: servers that must be healthy before it starts.  ``inactive``: in a Compose profile that is off.
    ``place``: where its PROMETHEUS_MULTIPROC_DIR really is (container or volume); "" = the host's file system.
    """

    name: str
    command: ServeCommand
    version: str | None = None
    gpus: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    place: str = ""
    inactive: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment that the server starts with."""
        return self.command.environment


def share_a_card(one: PlannedServer, other: PlannedServer) -> bool:
    """True when both may run on the same GPU."""
    return not one.gpus or not other.gpus or bool(set(one.gpus) & set(other.gpus))


def command_findings(server: PlannedServer, *, shared: bool) -> list[Finding]:
    """Findings on one command line; ``shared``: another server uses the same card."""
    found: list[Finding] = []
    command = server.command
    names = (server.name,)
    for problem in command.problems:
        kind = problem.kind
        if kind == "environment":
            found.append(Finding("unknown-environment", "warning", problem.message, "remove the variable", names))
        elif kind in ("never_existed", "ambiguous", "unused") or (kind == "value" and problem.flag != "--config"):
            identity = {"never_existed": "flag-does-not-exist", "value": "flag-value"}.get(kind, "flag-refused")
            found.append(
                Finding(
                    identity,
                    "error",
                    problem.message,
                    f"vLLM refuses to start with it: change or remove {problem.flag}",
                    names,
                )
            )
        elif kind == "value":
            found.append(
                Finding("config-file-unread", "info", problem.message, "give the file's path as it is seen here", names)
            )
        else:
            found.append(
                Finding(
                    "flag-unknown" if kind == "unknown" else "flag-of-older-release",
                    "warning",
                    problem.message,
                    f"{_close_flag(problem.flag)}compare with `vllm serve --help=all` of the release that runs",
                    names,
                )
            )
    for flag in command.repeated:
        found.append(
            Finding("flag-repeated", "info", f"{flag} is given more than once, the last counts", "keep one", names)
        )
    if command.switch("disable_log_stats"):
        found.append(
            Finding(
                "log-stats-disabled",
                "error",
                "--disable-log-stats is set: /metrics has no engine metrics (no TTFT, queue, KV cache, preemptions)",
                "remove --disable-log-stats",
                names,
            )
        )
    kv_bytes = command.integer("kv_cache_memory_bytes")
    regime = regime_of(server.version, environment=server.environment)
    if kv_bytes is not None and not regime.kv_bytes_flag and regime.assumed is None:
        found.append(
            Finding(
                "flag-of-newer-release",
                "error",
                f"--kv-cache-memory-bytes exists since vLLM 0.10.2, the image is {server.version}",
                "use --gpu-memory-utilization, or a newer release",
                names,
            )
        )
    if shared and kv_bytes is not None and command.fraction is None and regime.kv_bytes_flag:
        found.append(
            Finding(
                "kv-bytes-with-default-fraction",
                "error",
                f"--kv-cache-memory-bytes sets the KV cache, but the start is still refused when less than "
                f"{regime.default_fraction:g} of the card (the default --gpu-memory-utilization) is free, and the card "
                "is shared",
                "set --gpu-memory-utilization as well, to what the server needs in all",
                names,
            )
        )
    if shared and kv_bytes is None and command.fraction is None:
        found.append(
            Finding(
                "default-fraction-on-shared-card",
                "error",
                f"no --gpu-memory-utilization: the default {regime.default_fraction:g} of the card is taken, and the "
                "card is shared",
                "set --gpu-memory-utilization for every server on the card",
                names,
            )
        )
    if regime.whole_device and shared:
        found.append(
            Finding(
                "fraction-counts-neighbours",
                "warning",
                f"in vLLM {server.version} memory of neighbours counts against the fraction: the second server needs "
                "the sum of both",
                "use 0.9.1 or later, where each server has its own fraction",
                names,
            )
        )
    return found


def _close_flag(flag: str) -> str:
    """``did you mean …? `` when the flag looks like a known one, else nothing."""
    close = difflib.get_close_matches(flag.partition("=")[0], _FLAGS, n=1, cutoff=0.8)
    return f"did you mean {close[0]}? Otherwise " if close else ""


def plan_findings(servers: Sequence[PlannedServer]) -> list[Finding]:
    """Findings on a set of command lines: each alone, and what they do to each other."""
    active = [server for server in servers if not server.inactive]
    found: list[Finding] = []
    for server in servers:
        neighbours = [other for other in active if other is not server and share_a_card(server, other)]
        found.extend(command_findings(server, shared=bool(neighbours) and not server.inactive))
    directories: dict[tuple[str, str], list[str]] = {}
    for server in active:
        directory = server.environment.get("PROMETHEUS_MULTIPROC_DIR", "").rstrip("/")
        if directory:
            directories.setdefault((server.place, directory), []).append(server.name)
    for (_, directory), names in directories.items():
        if len(names) > 1:
            found.append(
                Finding(
                    "shared-multiproc-dir",
                    "error",
                    f"{' and '.join(names)} use the same PROMETHEUS_MULTIPROC_DIR ({directory}): "
                    "their counters are added up without a warning",
                    "give each its own directory on a local tmpfs, or unset the variable",
                    tuple(names),
                )
            )
    found.extend(start_order_findings(active))
    return found


def start_order_findings(servers: Sequence[PlannedServer]) -> list[Finding]:
    """Servers of one card that may profile their memory at the same moment."""
    waits = {server.name: set(server.waits_for) for server in servers}

    def reaches(start: str, goal: str) -> bool:
        seen: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            for other in waits.get(name, ()):
                if other == goal:
                    return True
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return False

    pairs = []
    for index, one in enumerate(servers):
        for other in servers[index + 1 :]:
            if share_a_card(one, other) and not reaches(one.name, other.name) and not reaches(other.name, one.name):
                pairs.append((one.name, other.name))
    if not pairs:
        return []
    names = tuple(dict.fromkeys(name for pair in pairs for name in pair))
    return [
        Finding(
            "start-order",
            "warning",
            f"{', '.join(names)} may start at the same moment on one card: each profiles with the memory of the whole "
            'device, so they charge each other\'s loading to their KV cache, or fail with "Error in memory profiling"',
            "start them one after the other: `depends_on: {NAME: {condition: service_healthy}}` with a health check on "
            "/health, the one with the largest budget first",
            names,
        )
    ]


# --------------------------------------------------------------------------- the card: do the budgets fit


@dataclass(frozen=True, slots=True)
class Claim:
    """What one server asks of one card.

    ``allowance``: on top of the budget (context, graphs).  ``context``: the part of the allowance that is the
    context, with ``context_assumed``.  ``fixed``: cannot shrink much (an encoder).  ``least``: it cannot run below.
    """

    server: str
    budget: float
    allowance: float
    context: float = float(CONTEXT_ASSUMED)
    context_assumed: bool = True
    fixed: bool = False
    least: float | None = None
    fraction: float | None = None
    defaulted: bool = False
    """nobody chose its share: the release's default"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A fraction that fits, beside what was asked for (bytes)."""

    server: str
    fraction: float
    bytes: float
    was: float


def claim_of(server: PlannedServer, total: float, *, context: Quantity | None = None) -> Claim | None:
    """What a planned server will ask of a card with ``total`` bytes of CUDA memory; None when it cannot be told."""
    command = server.command
    regime = regime_of(server.version, environment=server.environment)
    fraction = command.fraction
    if fraction is not None and not 0 < fraction <= 1:
        return None
    if fraction is None and any(problem.flag == "--config" for problem in command.problems):
        return None
    share = fraction if fraction is not None else regime.default_fraction
    size = context.value if context is not None and context.value is not None else float(CONTEXT_ASSUMED)
    allowance = 0.0 if regime.context_inside else size
    if not regime.graphs_inside and not command.eager:
        allowance += GRAPHS_ASSUMED
    tensor = (command.integer("tensor_parallel_size") or 1) * (command.integer("pipeline_parallel_size") or 1)
    if tensor > 1 and not regime.nccl_inside:
        allowance += NCCL_ASSUMED
    return Claim(
        server=server.name,
        budget=share * total,
        allowance=allowance,
        context=0.0 if regime.context_inside else size,
        context_assumed=context is None or context.estimate,
        fixed=command.pooling,
        fraction=share,
        defaulted=fraction is None,
    )


def propose(total: float, claims: Sequence[Claim], *, foreign: float = 0.0) -> tuple[Proposal, ...] | None:
    """Fractions that fit a card of ``total`` bytes with every allowance; None when nothing reasonable fits.

    Servers for which nobody chose a share get what the others leave.  Encoders keep what they asked for; generators
    give up KV cache in proportion to what they can spare (never below ``least``, else 40 % of what they asked).
    Fractions are rounded down to 0.01, so the sum never exceeds the card.  ``foreign``: memory of other programs on it
    (bytes).
    """
    room = total - foreign - sum(claim.allowance for claim in claims)
    if room <= 0 or total <= 0:
        return None
    targets = {claim.server: claim.budget for claim in claims}
    open_ = [claim for claim in claims if claim.defaulted]
    left = room - sum(claim.budget for claim in claims if not claim.defaulted)
    if open_ and left / len(open_) >= _LEAST_SHARE * total:
        # what was chosen stays; servers with vLLM's default, which is for a card of one's own, share the rest
        targets |= {claim.server: min(claim.budget, left / len(open_)) for claim in open_}
    excess = sum(targets.values()) - room
    if excess > 0:
        shrinkable = [claim for claim in claims if not claim.fixed] or list(claims)
        spare = {claim.server: max(0.0, claim.budget - (claim.least or claim.budget * 0.4)) for claim in shrinkable}
        possible = sum(spare.values())
        if possible < excess:
            return None
        for claim in shrinkable:
            targets[claim.server] -= excess * spare[claim.server] / possible
    proposals = []
    for claim in claims:
        if targets[claim.server] >= claim.budget and claim.fraction is not None:
            fraction = claim.fraction  # nothing to change: keep it as it was written
        else:
            fraction = math.floor(targets[claim.server] / total * 100 + 1e-9) / 100
        if fraction <= 0:
            return None
        proposals.append(Proposal(claim.server, fraction, fraction * total, claim.budget))
    return tuple(proposals)


def overcommit_findings(
    gpu: str | None, total: Quantity, claims: Sequence[Claim], *, foreign: float = 0.0
) -> list[Finding]:
    """Do Σ budgets and what comes on top fit the card?  ``foreign``: memory of other programs on it (bytes)."""
    if total.value is None or not claims:
        return []
    card = total.value
    budgets = sum(claim.budget for claim in claims)
    on_top = sum(claim.allowance for claim in claims)
    if budgets + on_top + foreign <= card:
        return []
    names = tuple(claim.server for claim in claims)
    listed = " + ".join(f"{claim.server} {gib(claim.budget)}" for claim in claims)
    other = f" and {gib(foreign)} of other programs" if foreign else ""
    contexts = f"{len(claims)} CUDA context{'s' if len(claims) > 1 else ''} and what else lies outside"
    # where the size of a context is assumed, the smallest that is reported is the lower end
    least = sum(
        claim.allowance - (max(0.0, claim.context - CONTEXT_SMALLEST) if claim.context_assumed else 0.0)
        for claim in claims
    )
    span = f"{gib(least)} to {gib(on_top)}" if least < on_top else gib(on_top)
    proposals = propose(card, claims, foreign=foreign)
    if proposals is not None:
        text = ", ".join(f"{p.server} {p.fraction:g} ({gib(p.bytes)})" for p in proposals)
        left = card - foreign - sum(p.bytes for p in proposals) - on_top
        remedy = f"fractions that fit: {text}; beside {gib(on_top)} on top, {gib(max(0.0, left))} stay free"
    else:
        remedy = (
            f"no reasonable set of budgets fits beside {gib(on_top)} on top of them{other}: run fewer servers on the "
            "card, use quantized weights and --kv-cache-dtype fp8, or a larger card"
        )
    if budgets + foreign > card:
        message = (
            f"the budgets do not fit: {listed} = {gib(budgets)}{other}, the card has {gib(card)}; {contexts} the "
            f"budgets come on top ({span})"
        )
        return [Finding("over-commit", "error", message, remedy, names, gpu)]
    low, high = budgets + least + foreign, budgets + on_top + foreign
    needed = f"{gib(low)} to {gib(high)}" if low < high else gib(high)
    smallest = f", even with contexts of {CONTEXT_SMALLEST / MIB:.0f} MiB" if low > card and low < high else ""
    message = (
        f"the budgets fit on paper ({listed} = {gib(budgets)}{other} of {gib(card)}) and may not fit in practice: "
        f"{contexts} the budgets take {span} on top, {needed} in all, more than the card has{smallest}"
    )
    severity = "error" if low > card else "warning"
    return [Finding("over-commit-with-contexts", severity, message, remedy, names, gpu)]


# --------------------------------------------------------------------------- the snapshot: what is measured


@dataclass(frozen=True, slots=True)
class Evidence:
    """What lies beside a snapshot, by server name: command lines, start-up facts, and the container it is in."""

    commands: Mapping[str, ServeCommand] = field(default_factory=dict)
    startups: Mapping[str, StartupFacts] = field(default_factory=dict)
    pooling: frozenset[str] = frozenset()
    containers: Mapping[str, str] = field(default_factory=dict)
    fractions: Mapping[str, float] = field(default_factory=dict)
    """budgets of the configuration that are shares of a card; those of servers that do not run yet count as well"""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """budgets of the configuration in bytes"""
    unread_logs: Mapping[str, str] = field(default_factory=dict)
    """why a start-up log that is configured cannot be read"""


def snapshot_findings(snapshot: Snapshot, evidence: Evidence | None = None) -> list[Finding]:
    """Everything that one moment shows about the servers and cards of this host."""
    known = evidence or Evidence()
    found: list[Finding] = []
    for view in snapshot.servers:
        found.extend(_reachability(view))
        found.extend(_startup(view, known.startups.get(view.name)))
        if (unread := known.unread_logs.get(view.name)) is not None:
            found.append(
                Finding(
                    "log-unreadable",
                    "warning",
                    f"its start-up log cannot be read: {unread}",
                    "correct `log:` of the server, or let this process read it; weights and KV bytes are not known so",
                    (view.name,),
                )
            )
        found.extend(_memory(view, readable=snapshot.nvml is not None and snapshot.nvml.up))
        for sentence in view.findings:
            found.append(Finding("disagreement", "warning", sentence, "see which of the two is meant", (view.name,)))
    by_gpu: dict[str, list[tuple[ServerView, GpuMemory]]] = {}
    for view in snapshot.servers:
        for row in view.memory:
            by_gpu.setdefault(row.uuid, []).append((view, row))
    for card in snapshot.gpus:
        here = by_gpu.get(card.reading.uuid, [])
        # with one card there is no question where a server will go that does not run yet
        later = _not_running(snapshot, known, card) if len(snapshot.gpus) == 1 else []
        found.extend(_card(card, here, known, later))
    if not snapshot.gpus:
        found.extend(_fractions_on_unseen_card(known.fractions))
    planned = [
        PlannedServer(
            view.name,
            known.commands[view.name],
            view.version,
            tuple(row.uuid for row in view.memory),
            place=known.containers.get(view.name, ""),
        )
        for view in snapshot.servers
        if view.name in known.commands
    ]
    for server in planned:
        shared = any(server.name in _names(here) and len(here) > 1 for here in by_gpu.values())
        found.extend(command_findings(server, shared=shared))
    found.extend(finding for finding in plan_findings(planned) if finding.id == "shared-multiproc-dir")
    found.extend(_host(snapshot))
    return found


def _names(rows: Iterable[tuple[ServerView, GpuMemory]]) -> tuple[str, ...]:
    return tuple(view.name for view, _ in rows)


def _reachability(view: ServerView) -> list[Finding]:
    names = (view.name,)
    if not view.scrape.up:
        reason = view.scrape.reason or "no answer yet"
        detail = f": {view.scrape.detail}" if view.scrape.detail else ""
        return [
            Finding(
                "unreachable",
                "error",
                f"{view.url} gives no metrics ({reason}{detail})",
                UNREACHABLE.get(reason, "is the URL right, and does the server's own log show an error?"),
                names,
            )
        ]
    found = []
    if view.reading is not None and not view.reading.layout.engine_metrics:
        found.append(
            Finding(
                "no-engine-metrics",
                "error",
                "/metrics answers but holds no engine metric",
                "remove --disable-log-stats; with several API servers check PROMETHEUS_MULTIPROC_DIR",
                names,
            )
        )
    if view.scrape.healthy is False:
        dead = view.state == "engine_dead"
        found.append(
            Finding(
                "unhealthy",
                "error",
                "/health says the engine is dead; /metrics still answers, its gauges are frozen and not shown"
                if dead
                else f"/health answers {view.scrape.health or 'something else than 200'}",
                "restart the server; its log says why the engine died"
                if dead
                else "look at the server's log and at a proxy in between: a dead engine of vLLM answers 503",
                names,
            )
        )
    if view.reading is not None and view.reading.layout.unmapped:
        unmapped = view.reading.layout.unmapped
        found.append(
            Finding(
                "unmapped-families",
                "info",
                f"{len(unmapped)} families are not known to this version: {', '.join(unmapped[:5])}"
                f"{' …' if len(unmapped) > 5 else ''}",
                "nothing is lost that was known; a newer vllmeter may map them",
                names,
            )
        )
    if view.version is None:
        found.append(
            Finding(
                "version-unknown",
                "info",
                "the vLLM version is not known: budgets are read as in the newest release",
                "set `version:` for it (with an API key, /version may be closed)",
                names,
            )
        )
    return found


def _startup(view: ServerView, facts: StartupFacts | None) -> list[Finding]:
    if facts is None:
        return []
    names = (view.name,)
    found = []
    if facts.failure is not None:
        found.append(
            Finding("start-failed", "error", f"its log says: {facts.failure.message}", facts.failure.remedy, names)
        )
    for name in facts.unknown_environment:
        found.append(
            Finding(
                "unknown-environment",
                "warning",
                f"vLLM does not know the environment variable {name} and ignores it",
                "check its name, or use the flag (weights to the CPU: --cpu-offload-gb, KV: --kv-offloading-size)",
                names,
            )
        )
    if facts.startup_plan:
        found.append(
            Finding(
                "startup-plan",
                "info",
                "a remembered KV size was applied silently (VLLM_ENABLE_STARTUP_PLAN)",
                "unset the variable to profile again after a change",
                names,
            )
        )
    return found


def _memory(view: ServerView, *, readable: bool) -> list[Finding]:
    found = []
    names = (view.name,)
    for row in view.memory:
        excess = over_budget(row)
        held = row.high_water.value if row.high_water.value is not None else row.used.value
        if excess is not None and excess > 0 and held is not None:
            assert row.budget.value is not None
            assert row.allowance.value is not None
            found.append(
                Finding(
                    "over-budget",
                    "warning",
                    f"held {gib(held)} at most, {gib(excess)} above its budget of {gib(row.budget.value)} plus "
                    f"{gib(row.allowance.value)} ({row.allowance.reason or 'nothing on top'})",
                    "late allocations (first large batches, LoRA, multimodal) or a leak: lower "
                    "--max-num-batched-tokens, or raise the budget and lower a neighbour's",
                    names,
                    row.gpu,
                )
            )
        asleep = view.sleep_state not in (None, "awake")
        if asleep and row.used.value is not None and not row.used.estimate and row.used.value > ASLEEP_HOLDS:
            found.append(
                Finding(
                    "asleep-but-holding",
                    "warning",
                    f"asleep ({view.sleep_state}) and still holding {gib(row.used.value)}",
                    "a neighbour's start or wake-up may run out of memory; restart it if it does not need to wake fast",
                    names,
                    row.gpu,
                )
            )
        budget, expected = row.budget.value, row.expected.value
        if (
            budget is not None
            and expected is not None
            and row.budget_suspended is None
            and held is not None
            and max(expected, held) < 0.7 * budget
            and budget - max(expected, held) > 512 * MIB
        ):
            found.append(
                Finding(
                    "budget-unused",
                    "info",
                    f"holds {gib(held)} of a budget of {gib(budget)}: {gib(budget - max(expected, held))} stay unused",
                    "load it first, memory grows with the largest batches; if it stays, lower --gpu-memory-utilization "
                    "(encoders and --num-gpu-blocks-override never fill their budget)",
                    names,
                    row.gpu,
                )
            )
    if readable and view.attribution.state == "unavailable" and view.scrape.up:
        found.append(
            Finding(
                "memory-not-attributed",
                "warning",
                f"its GPU memory is not known: {view.attribution.reason}",
                "run the exporter on the host or with `pid: host`, or set `match:` for the server",
                names,
            )
        )
    return found


def _not_running(snapshot: Snapshot, known: Evidence, card: GpuView) -> list[Claim]:
    """What configured servers will ask of the card that are not there now: nothing of theirs is in its sum yet."""
    total = card.cuda_total.value
    claims = []
    for view in snapshot.servers:
        if view.memory or view.scrape.up:
            continue
        fraction, size = known.fractions.get(view.name), known.sizes.get(view.name)
        if size is not None:
            claims.append(Claim(view.name, budget=size, allowance=0.0, context=0.0))
        elif fraction is not None and total is not None:
            on_top = 0.0 if regime_of(view.version).context_inside else float(CONTEXT_ASSUMED)
            claims.append(Claim(view.name, fraction * total, on_top, context=on_top, fraction=fraction))
    return claims


def _fractions_on_unseen_card(fractions: Mapping[str, float]) -> list[Finding]:
    """Without a visible card only this is certain: what adds up to more than 1 fits no single one."""
    share = sum(fractions.values())
    if len(fractions) < 2 or share <= 1:
        return []
    listed = " + ".join(f"{name} {fraction:g}" for name, fraction in fractions.items())
    return [
        Finding(
            "over-commit",
            "warning",
            f"the fractions fit no single card: {listed} = {share:.2f}. Which server runs on which card cannot be seen "
            "without NVML",
            "on one card lower them so that the sum leaves room for a CUDA context (0.3 to 0.7 GiB) per server",
            tuple(fractions),
        )
    ]


def _card(
    card: GpuView, here: Sequence[tuple[ServerView, GpuMemory]], known: Evidence, later: Sequence[Claim] = ()
) -> list[Finding]:
    found: list[Finding] = []
    claims = [
        Claim(
            server=view.name,
            budget=row.budget.value,
            allowance=row.allowance.value or 0.0,
            context=min(row.allowance.value or 0.0, float(CONTEXT_ASSUMED)),
            context_assumed=row.allowance.estimate,
            fixed=view.name in known.pooling
            or (row.parts.get("kv_cache", Quantity(None)).reason or "").startswith("no KV"),
            least=_least(row),
            fraction=None,
        )
        for view, row in here
        if row.budget.value is not None and row.budget_suspended is None
    ]
    foreign = float(sum(other.used_bytes or 0 for other in card.other))
    found.extend(overcommit_findings(card.gpu, card.cuda_total, [*claims, *later], foreign=foreign))
    starting = tuple(view.name for view, _ in here if view.state == "starting")
    if len(starting) > 1:
        found.append(
            Finding(
                "starting-together",
                "warning",
                f"{', '.join(starting)} start at the same time on one card: their KV sizes may come out wrong",
                "restart them one after the other",
                starting,
                card.gpu,
            )
        )
    free = card.reading.memory_free_bytes
    for view, row in here:
        asked = _asked_at_start(view, row, card)
        if free is None or asked is None or row.used.value is None or not regime_of(view.version).start_check:
            continue
        if row.budget_suspended is not None or row.used.estimate:
            continue
        # after its exit its own memory is free; the new process holds a context before it looks
        available = free + row.used.value - min(row.allowance.value or 0.0, float(CONTEXT_ASSUMED))
        if available < asked:
            found.append(
                Finding(
                    "restart-would-fail",
                    "warning",
                    f"a restart would be refused now: it asks for {gib(asked)} and {gib(available)} would be free "
                    "after its exit",
                    "lower its --gpu-memory-utilization, or stop a neighbour first",
                    (view.name,),
                    card.gpu,
                )
            )
    for other in card.other:
        if other.orphan:
            held = gib(other.used_bytes) if other.used_bytes is not None else "memory"
            found.append(
                Finding(
                    "orphan",
                    "warning",
                    f"an engine without its server still holds {held} ({other.detail or other.program})",
                    "end that process: its server was killed and nothing uses it",
                    (),
                    card.gpu,
                )
            )
    return found


def _asked_at_start(view: ServerView, row: GpuMemory, card: GpuView) -> float | None:
    """What vLLM's start-up check compares with the free memory: fraction × total, also with a set KV size."""
    text = view.settings.get("gpu_memory_utilization")
    if text is not None and card.cuda_total.value is not None:
        try:
            return float(text) * card.cuda_total.value
        except ValueError:
            return None
    return row.budget.value if row.budget.source in ("label", "log", "flags", "default") else None


def _least(row: GpuMemory) -> float | None:
    """What a server needs at least: everything but its KV cache, and a little of that."""
    weights = row.parts.get("weights", Quantity(None)).value
    if weights is None:
        return None
    rest = sum(row.parts.get(name, Quantity(None)).value or 0.0 for name in ("activation_peak", "non_torch"))
    return weights + rest + LEAST_KV


def _host(snapshot: Snapshot) -> list[Finding]:
    found = []
    nvml = snapshot.nvml
    if nvml is None or not nvml.up:
        reason = snapshot.nvml_words or (nvml.reason if nvml is not None else snapshot.nvml_reason) or "not read"
        off = reason.startswith("switched off")
        found.append(
            Finding(
                "nvml-unavailable",
                "info" if off else "warning",
                f"no GPU readings: {reason}",
                "meant so on a host without a GPU; otherwise leave `nvml: {enabled: false}` out"
                if off
                else "run where the NVIDIA driver is; in a container with the GPU and the `utility` capability",
            )
        )
        return found
    if snapshot.host_pid_namespace is False:
        found.append(
            Finding(
                "no-pid-host",
                "warning",
                "the exporter runs in its own PID namespace: the driver shows it no processes of other containers, so "
                "memory cannot be attributed",
                "run it with `pid: host` (Compose), `--pid=host` (Docker), `hostPID: true` (Kubernetes) or on the host",
            )
        )
    return found
