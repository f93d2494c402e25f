"""The budget table and the findings of ``vllmeter check``, as text or as data.  Pure: a snapshot in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vllmeter.memory.budget import PARTS
from vllmeter.memory.findings import Finding, gib, worst
from vllmeter.memory.startup_log import StartupFacts
from vllmeter.snapshot import GpuMemory, GpuView, Quantity, ServerView, Snapshot

GIB: Final = 1 << 30
_SHORT: Final[Mapping[str, str]] = {
    "weights": "w",
    "kv_cache": "kv",
    "activation_peak": "act",
    "non_torch": "nt",
    "cuda_graphs": "gr",
    "context": "ctx",
}
_COLOURS: Final[Mapping[str, str]] = {"error": "31;1", "warning": "33", "info": "36", "head": "1", "dim": "2"}
COLUMNS: Final = (
    "server",
    "model",
    "version",
    "budget",
    "used",
    "high water",
    "expected",
    "parts",
    "KV tokens",
    "max conc.",
    "method",
)


def max_concurrency(view: ServerView, startup: StartupFacts | None = None) -> float | None:
    """Requests of full length that the KV cache holds at once: vLLM's own figure (label, else log)."""
    if view.reading is not None:
        said = view.reading.layout.max_concurrency
        if said is not None:
            return said
    return startup.max_concurrency if startup is not None else None


def _bytes(quantity: Quantity) -> str:
    """``4.50`` in GiB, ``~4.50`` for an estimate, ``-`` when absent."""
    if quantity.value is None:
        return "-"
    return f"{'~' if quantity.estimate else ''}{quantity.value / GIB:.2f}"


def _parts(row: GpuMemory) -> str:
    pieces = []
    for name in PARTS:
        quantity = row.parts.get(name)
        if quantity is not None and quantity.value is not None:
            pieces.append(f"{_SHORT[name]} {_bytes(quantity)}")
    return " ".join(pieces) or "-"


def _cells(view: ServerView, row: GpuMemory | None, startup: StartupFacts | None) -> tuple[str, ...]:
    tokens = view.kv_capacity_tokens
    concurrency = max_concurrency(view, startup)
    method = view.attribution.method if view.attribution.state != "unavailable" else "unavailable"
    if view.attribution.state == "estimated":
        method = f"{method} (estimate)"
    absent = Quantity(None)
    budget = _bytes(row.budget) if row is not None else "-"
    if row is not None and row.budget_suspended is not None:
        budget += " (not now)"
    return (
        view.name,
        view.model_name or "-",
        view.version or "-",
        budget,
        _bytes(row.used if row is not None else absent),
        _bytes(row.high_water if row is not None else absent),
        _bytes(row.expected if row is not None else absent),
        _parts(row) if row is not None else "-",
        f"{tokens.value:,.0f}" if tokens.value is not None else "-",
        f"{concurrency:.2f}" if concurrency is not None else "-",
        method,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    right = {COLUMNS.index(name) for name in ("budget", "used", "high water", "expected", "KV tokens", "max conc.")}
    lines = []
    for row in rows:
        cells = [
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _title(card: GpuView) -> str:
    used, total = card.reading.memory_used_bytes, card.reading.memory_total_bytes
    used_text = gib(used) if used is not None else "unknown"
    total_text = gib(total) if total is not None else "unknown"
    source = f" ({card.cuda_total.source})" if card.cuda_total.source else ""
    return (
        f"GPU {card.gpu}: {card.reading.name}, {used_text} used of {total_text}, "
        f"CUDA total {_bytes(card.cuda_total)} GiB{source}"
    )


def _sum_line(card: GpuView, rows: Sequence[GpuMemory]) -> str:
    """Σ budgets + what comes on top against the card, with the head room that is left."""
    total = card.cuda_total
    budgets = [row.budget for row in rows if row.budget.value is not None]
    if not budgets or total.value is None:
        why = "no budget is known" if not budgets else total.reason or "unknown"
        return f"  sum: not known ({why})"
    committed = sum(quantity.value or 0.0 for quantity in budgets)
    on_top = sum(row.allowance.value or 0.0 for row in rows if row.budget.value is not None)
    foreign = float(sum(other.used_bytes or 0 for other in card.other))
    room = total.value - committed - on_top - foreign
    mark = "~" if any(q.estimate for q in budgets) or any(row.allowance.estimate for row in rows) else ""
    missing = len(rows) - len(budgets)
    return (
        f"  sum: budgets {committed / GIB:.2f} + contexts and what else is outside {mark}{on_top / GIB:.2f}"
        + (f" + other programs {foreign / GIB:.2f}" if foreign else "")
        + f" of {total.value / GIB:.2f} GiB: head room {mark}{room / GIB:.2f} GiB"
        + (f" (without {missing} server(s) whose budget is not known)" if missing else "")
    )


def _notes(view: ServerView, row: GpuMemory) -> list[str]:
    notes = []
    for name, quantity in (("budget", row.budget), ("used", row.used)):
        if quantity.value is None and quantity.reason:
            notes.append(f"{view.name}: {name} not known: {quantity.reason}")
    if row.budget.value is not None:
        source = f"{row.budget.source}{', ' + row.budget.reason if row.budget.reason else ''}"
        notes.append(f"{view.name}: budget from {source}")
    if row.budget_suspended is not None:
        notes.append(f"{view.name}: not compared now: {row.budget_suspended}")
    return notes


def _held_down(card: GpuView) -> list[str]:
    """One line when heat or hardware holds the clock down now; the power limit is normal under load."""
    why = [reason for reason, on in card.reading.throttle.items() if on and ("thermal" in reason or "hw_" in reason)]
    return [f"  clock held down: {', '.join(why)}"] if why else []


def _details(view: ServerView, *, blind: bool) -> list[str]:
    """What ``--verbose`` says of a server: its state and why, its answer, processes, settings and start-up log."""
    scrape = view.scrape
    health = {True: "200", False: "not 200", None: "no answer"}[scrape.healthy]
    if isinstance(scrape.health, str):
        health = f"no answer ({scrape.health})"
    answer = f"no answer on /metrics ({scrape.reason or 'none yet'})"
    if scrape.up and scrape.duration is not None:
        answer = f"/metrics answered in {scrape.duration * 1000:.0f} ms"
    lines = [
        f"  {view.name}: {view.state}{f' ({view.state_reason})' if view.state_reason else ''}",
        f"    {answer}, /health: {health}",
    ]
    roles = ", ".join(f"{usage.role} {usage.processes}" for usage in view.host)
    pids = ", ".join(map(str, view.attribution.pids))
    found = "; ".join(part for part in (roles, f"PIDs on the GPU: {pids}" if pids else "") if part)
    lines.append(f"    processes: {found or (not blind and view.attribution.reason) or 'not known'}")
    if view.settings:
        known = ", ".join(f"{name} {value}" for name, value in sorted(view.settings.items()))
        lines.append(f"    settings: {known}")
    if view.startup:
        lines.append(f"    start-up log: {'; '.join(f'{name} {text}' for name, text in view.startup.items())}")
    unmapped = view.reading.layout.unmapped if view.reading is not None else ()
    if unmapped:
        lines.append(f"    families that are not known: {', '.join(unmapped)}")
    return lines


def render_check(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    *,
    startups: Mapping[str, StartupFacts] | None = None,
    colour: bool = False,
    verbose: bool = False,
) -> str:
    """The whole answer as text: one table per GPU, servers without a visible GPU, findings.

    ``colour`` only for terminals; ``verbose`` adds where each budget comes from and, per server, its state,
    processes, settings and start-up log.
    """
    known = startups or {}

    def paint(text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if colour else text

    lines: list[str] = []
    shown: set[str] = set()
    # Without NVML no server's memory is known: a finding says so once.
    blind = snapshot.nvml is None or not snapshot.nvml.up
    for card in snapshot.gpus:
        rows = [(view, row) for view in snapshot.servers for row in view.memory if row.uuid == card.reading.uuid]
        shown |= {view.name for view, _ in rows}
        lines.append(paint(_title(card), "head"))
        if rows:
            table = _table([COLUMNS, *(_cells(view, row, known.get(view.name)) for view, row in rows)])
            lines.append(paint(table[0], "dim"))
            lines.extend(table[1:])
            lines.append(_sum_line(card, [row for _, row in rows]))
        else:
            lines.append("  no configured server was found on it")
        rest = [
            f"{other.program}{' (orphan)' if other.orphan else ''} "
            f"{gib(other.used_bytes) if other.used_bytes is not None else 'unknown'}"
            for other in card.other
        ]
        if card.unattributed_bytes is not None:
            rest.append(f"unattributed {card.unattributed_bytes / GIB:.2f} GiB")
        if rest:
            lines.append(f"  other: {', '.join(rest)}")
        lines.extend(_held_down(card))
        for view, row in rows:
            notes = _notes(view, row)
            wanted = notes if verbose else [note for note in notes if ": budget from " not in note]
            lines.extend(paint(f"  {note}", "dim") for note in wanted)
        lines.append("")
    without = [view for view in snapshot.servers if view.name not in shown]
    if without:
        title = "Servers on no GPU that is visible here" if snapshot.gpus else "Servers"
        lines.append(paint(title, "head"))
        table = _table([COLUMNS, *(_cells(view, None, known.get(view.name)) for view in without)])
        lines.append(paint(table[0], "dim"))
        lines.extend(table[1:])
        lines.extend(
            paint(f"  {view.name}: {view.attribution.reason}", "dim")
            for view in without
            if view.attribution.reason and not blind
        )
        lines.append("")
    if verbose and snapshot.servers:
        lines.append(paint("In detail", "head"))
        for view in snapshot.servers:
            lines.extend(_details(view, blind=blind))
        lines.append("")
    if not snapshot.servers:
        lines += ["No server is configured and none was found.", ""]
    lines.extend(render_findings(findings, colour=colour))
    if snapshot.gpus and any(row.memory for row in snapshot.servers):
        lines += ["", paint("GiB; ~ estimate, - not known. Parts: " + _legend(), "dim")]
    return "\n".join(lines) + "\n"


def _legend() -> str:
    return ", ".join(f"{short} {name.replace('_', ' ')}" for name, short in _SHORT.items())


def render_findings(findings: Sequence[Finding], *, colour: bool = False) -> list[str]:
    """The findings as lines, worst first as given; one line saying so when there are none."""
    if not findings:
        return ["No findings."]
    lines = []
    for finding in findings:
        word = f"{finding.severity.upper():<7}"
        if colour:
            word = f"\x1b[{_COLOURS[finding.severity]}m{word}\x1b[0m"
        place = "".join(
            (
                f" {', '.join(finding.servers)}" if finding.servers else "",
                f" (GPU {finding.gpu})" if finding.gpu else "",
            )
        )
        lines.append(f"{word} {finding.id}{place}: {finding.message}")
        lines.append(f"        {finding.remedy}")
    count = {severity: sum(f.severity == severity for f in findings) for severity in ("error", "warning", "info")}
    lines.append(", ".join(f"{number} {severity}{'s' * (number != 1)}" for severity, number in count.items() if number))
    return lines


# --------------------------------------------------------------------------- JSON


def _quantity(quantity: Quantity) -> dict[str, Any]:
    data: dict[str, Any] = {"value": quantity.value}
    if quantity.source:
        data["source"] = quantity.source
    if quantity.estimate:
        data["estimate"] = True
    if quantity.reason:
        data["reason"] = quantity.reason
    return data


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding as plain data."""
    return {
        "id": finding.id,
        "severity": finding.severity,
        "servers": list(finding.servers),
        "gpu": finding.gpu,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def check_document(
    snapshot: Snapshot, findings: Iterable[Finding], *, startups: Mapping[str, StartupFacts] | None = None
) -> dict[str, Any]:
    """The same as :func:`render_check` as plain data for ``--format json``; bytes throughout, null with a reason."""
    known = startups or {}
    listed = list(findings)
    return {
        "vllmeter": snapshot.version,
        "time": snapshot.wall,
        "worst": worst(listed),
        "gpus": [
            {
                "gpu": card.gpu,
                "uuid": card.reading.uuid,
                "name": card.reading.name,
                "memory_total_bytes": card.reading.memory_total_bytes,
                "memory_used_bytes": card.reading.memory_used_bytes,
                "cuda_total_bytes": _quantity(card.cuda_total),
                "committed_bytes": _quantity(card.committed),
                "unattributed_bytes": card.unattributed_bytes,
                "other": [
                    {"program": o.program, "used_bytes": o.used_bytes, "orphan": o.orphan, "detail": o.detail}
                    for o in card.other
                ],
            }
            for card in snapshot.gpus
        ],
        "servers": [_server_data(view, known.get(view.name)) for view in snapshot.servers],
        "findings": [finding_data(finding) for finding in listed],
    }


def _server_data(view: ServerView, startup: StartupFacts | None) -> dict[str, Any]:
    return {
        "name": view.name,
        "url": view.url,
        "up": view.scrape.up,
        "healthy": view.scrape.healthy,
        "state": view.state,
        "model_name": view.model_name,
        "version": view.version,
        "attribution": {
            "state": view.attribution.state,
            "method": view.attribution.method,
            "reason": view.attribution.reason,
        },
        "kv_cache_capacity_tokens": _quantity(view.kv_capacity_tokens),
        "kv_cache_capacity_bytes": _quantity(view.kv_capacity_bytes),
        "max_concurrency": max_concurrency(view, startup),
        "memory": [
            {
                "gpu": row.gpu,
                "uuid": row.uuid,
                "budget_bytes": _quantity(row.budget),
                "allowance_bytes": _quantity(row.allowance),
                "expected_bytes": _quantity(row.expected),
                "used_bytes": _quantity(row.used),
                "high_water_bytes": _quantity(row.high_water),
                "budget_suspended": row.budget_suspended,
                "parts": {name: _quantity(row.parts[name]) for name in PARTS if name in row.parts},
            }
            for row in view.memory
        ],
    }
