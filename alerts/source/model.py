# ruff: noqa: INP001
"""What a rule is, how thresholds get into it, and how it is written as YAML.

Placeholders are ``<<name>>`` (the number), ``<<name|percent>>``, ``<<name|bytes>>`` and ``<<name|duration>>``;
PromQL and Go templates use neither ``<<`` nor ``>>``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SEVERITIES = ("critical", "warning", "info")
UNITS = frozenset(
    ["ratio", "seconds", "bytes", "requests", "requests_per_second", "tokens", "tokens_per_second", "count", "factor"]
)
PLACEHOLDER = re.compile(r"<<([a-z0-9_]+)(?:\|([a-z]+))?>>")

SERVER = "on (job, instance, server)"
"""How series of one server are joined: names repeat across hosts, so ``instance`` is always part of it."""

RUN_ACTIVE = "server:vllmeter_run_active:max == 1"


@dataclass(frozen=True)
class Threshold:
    """One number of thresholds.yaml.  ``text`` is it as written into an expression."""

    name: str
    text: str
    unit: str
    why: str

    def shown(self, style: str | None = None) -> str:
        """The number for people: ``percent``, ``bytes``, ``duration``; without a style as it is."""
        if style is None:
            return self.text
        number = float(self.text)
        if style == "percent":
            return f"{number * 100:g} %"
        if style == "bytes":
            return f"{number / 2**20:g} MiB"
        if style == "duration":
            return f"{number:g} s" if number < 120 or number % 60 else f"{number / 60:g} min"
        raise ValueError(f"unknown style {style!r} in <<{self.name}|{style}>>: use percent, bytes or duration")


@dataclass(frozen=True)
class Recording:
    """One recording rule: ``name`` is ``level:metric:operations``."""

    name: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Alert:
    """One alert.  ``load_caused`` alerts are written twice: as ``severity`` without a run, as info during one.

    ``kind``: ``symptom`` (somebody is not served, or waits) or ``cause``; Alertmanager lets critical symptoms
    silence causes of the same server.  ``dashboard`` is the uid that ``dashboard_url`` points to.
    """

    name: str
    severity: str
    kind: str
    hold: str
    expr: str
    summary: str
    description: str
    dashboard: str
    load_caused: bool = False
    level: str = "server"
    """labels that its series carry: server, server_gpu, gpu, host, none"""


@dataclass(frozen=True)
class Group:
    """One rule group.  ``interval`` None = the server's evaluation interval."""

    name: str
    rules: Sequence[Recording | Alert]
    interval: str | None = None


@dataclass(frozen=True)
class Links:
    """Where annotations point to, and which scrape job the exporter runs under."""

    job: str = "vllmeter"
    runbooks: str = "https://github.com/vllmeter/vllmeter/blob/main/docs/runbooks"
    grafana: str = "http://127.0.0.1:3000"


def read_thresholds(path: Path) -> dict[str, Threshold]:
    """The table of thresholds.yaml; every entry needs value, unit and why, and nothing else."""
    out: dict[str, Threshold] = {}
    for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        if set(entry) != {"value", "unit", "why"}:
            raise ValueError(f"{path.name}: {name} has {sorted(entry)}, wanted value, unit and why")
        if entry["unit"] not in UNITS:
            raise ValueError(f"{path.name}: {name} has the unknown unit {entry['unit']!r}; one of {sorted(UNITS)}")
        out[name] = Threshold(name, str(entry["value"]), entry["unit"], entry["why"])
    return out


def fill(text: str, thresholds: Mapping[str, Threshold], used: set[str]) -> str:
    """``text`` with its placeholders replaced; names that were used are added to ``used``."""

    def one(match: re.Match[str]) -> str:
        name, style = match.groups()
        if name not in thresholds:
            raise ValueError(f"<<{name}>> is not in thresholds.yaml, in: {text.strip()[:80]}")
        used.add(name)
        return thresholds[name].shown(style)

    return PLACEHOLDER.sub(one, text)


def clean(expr: str) -> str:
    """An expression without common indentation and surrounding blank lines."""
    return textwrap.dedent(expr).strip("\n")


def indented(expr: str) -> str:
    return textwrap.indent(expr, "  ")


def during_run(expr: str, *, active: bool) -> str:
    """The alert's expression restricted to servers with (or without) an active run."""
    word = "and" if active else "unless"
    return f"(\n{indented(expr)}\n)\n{word} {SERVER} ({RUN_ACTIVE})"


def dashboard_url(alert: Alert, links: Links) -> str:
    """Link to the dashboard with the variables that the alert's labels can fill."""
    variables = {
        "server": ("host", "server"),
        "server_gpu": ("host", "server", "gpu"),
        "gpu": ("host", "gpu"),
        "host": ("host",),
        "none": (),
    }[alert.level]
    query = "&".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in variables)
    return f"{links.grafana}/d/{alert.dashboard}" + (f"?{query}" if query else "")


def rules_of(
    rule: Recording | Alert, thresholds: Mapping[str, Threshold], links: Links, used: set[str]
) -> list[dict[str, Any]]:
    """The rule (or, for a load-caused alert, the pair of rules) as YAML data."""
    expr = fill(clean(rule.expr), thresholds, used).replace("<job>", links.job)
    if isinstance(rule, Recording):
        out: dict[str, Any] = {"record": rule.name, "expr": expr}
        if rule.labels:
            out["labels"] = dict(rule.labels)
        return [out]
    if rule.severity not in SEVERITIES:
        raise ValueError(f"{rule.name}: severity {rule.severity!r} is none of {SEVERITIES}")
    if rule.kind not in ("symptom", "cause", "meta"):
        raise ValueError(f"{rule.name}: kind {rule.kind!r} is none of symptom, cause, meta")
    variants = [(rule.severity, expr)]
    if rule.load_caused:
        variants = [
            (rule.severity, during_run(expr, active=False)),
            ("info", during_run(expr, active=True)),
        ]
    return [
        {
            "alert": rule.name,
            "expr": text,
            **({"for": rule.hold} if rule.hold != "0s" else {}),
            "labels": {"severity": severity, "type": rule.kind},
            "annotations": {
                "summary": fill(rule.summary, thresholds, used),
                "description": " ".join(fill(rule.description, thresholds, used).replace("<job>", links.job).split()),
                "runbook_url": f"{links.runbooks}/{rule.name}.md",
                "dashboard_url": dashboard_url(rule, links),
            },
        }
        for severity, text in variants
    ]


class _Dumper(yaml.SafeDumper):
    """Block style, expressions as literal blocks, list items indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(header: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """A rule file.  ``header`` becomes its comment."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    body = yaml.dump({"groups": list(groups)}, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return comment + body
