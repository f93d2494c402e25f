"""What the leg `fleet` asks: does the central store answer as the Prometheus beside the exporters does, and is
nothing missing after the store was away.

    fleet_checks.py compare --reference URL --store URL --cluster NAME   dashboards' queries and rules
    fleet_checks.py gaps --store URL --cluster NAME --since SECONDS --interval SECONDS
    fleet_checks.py series --exporter URL --servers N        series per server, as JSON
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "grafana" / "source"))

import fill_in  # noqa: E402

OVER_TIME = re.compile(r"\b(?:rate|increase|delta|irate|deriv|changes|resets|\w+_over_time|histogram_quantile)\s*\(")
EXTRAPOLATED = re.compile(r"\b(?:rate|increase|delta|deriv)\s*\(")


def dashboard_queries(source: fill_in.Remote, begin: float, end: float) -> Iterator[tuple[str, str]]:
    """(place, PromQL) of every panel, filled in as Grafana does."""
    for file in sorted((ROOT / "grafana/dashboards").glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        filled = fill_in.fill(document, source, fill_in.View(begin, end, 15.0, 5.0))
        for placed in fill_in.unrolled(document, filled):
            for target in placed.panel.get("targets", ()):
                if target.get("expr"):
                    yield f"{file.stem}: {placed.panel.get('title', '?')}", filled.into(target["expr"], placed.scoped)


def rule_queries() -> Iterator[tuple[str, str]]:
    """(rule, PromQL) of every recording rule and alert, and of what the recording rules left behind at the edge."""
    for pattern in ("prometheus/rules/*.rules.yaml", "alerts/*.alerts.yaml"):
        for file in sorted(ROOT.glob(pattern)):
            for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
                for rule in group["rules"]:
                    yield rule.get("record") or rule["alert"], rule["expr"]
                    if "record" in rule:
                        yield f"recorded {rule['record']}", rule["record"]


def vector(source: fill_in.Remote, query: str, at: float) -> dict[frozenset[tuple[str, str]], float]:
    """Labels (without what the edge adds on the way) -> value."""
    rows = source.instant(query, at)
    return {
        frozenset((key, value) for key, value in row["metric"].items() if key not in ("cluster", "__name__")): float(
            row["value"][1]
        )
        for row in rows
    }


class Store(fill_in.Remote):
    """VictoriaMetrics, asked for one cluster's series: several write to it."""

    def __init__(self, url: str, cluster: str) -> None:
        super().__init__(url)
        self._only = f"cluster={cluster}"

    def get(self, path: str, **parameters: Any) -> Any:
        """With the filter that VictoriaMetrics puts into every selector."""
        return super().get(path, extra_label=self._only, **parameters)


def near(one: float, two: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    return one == two or abs(one - two) <= tolerance * max(abs(one), abs(two))


def compare(arguments: argparse.Namespace) -> int:
    """Same series everywhere; same values but for rates, which the two compute in different ways."""
    reference, store = fill_in.Remote(arguments.reference), Store(arguments.store, arguments.cluster)
    at = math.floor(time.time()) - 10.0
    counts: Counter[str] = Counter()
    worst = 0.0
    wrong: list[str] = []
    seen: set[str] = set()
    for place, query in [*dashboard_queries(reference, at - 60, at), *rule_queries()]:
        if query in seen:
            continue
        seen.add(query)
        try:
            ours, theirs = vector(reference, query, at), vector(store, query, at)
        except OSError as error:
            detail = error.read().decode()[:200] if hasattr(error, "read") else error
            wrong.append(f"{place}: {detail}\n    {query}")
            continue
        kind = "extrapolated" if EXTRAPOLATED.search(query) else "over time" if OVER_TIME.search(query) else "plain"
        if not ours and not theirs:
            counts["both empty"] += 1
            continue
        if set(ours) != set(theirs):
            counts[f"{kind}: other series"] += 1
            missing, more = set(ours) - set(theirs), set(theirs) - set(ours)
            wrong.append(f"{place} [{kind}]: of {len(ours)}, {len(missing)} missing, {len(more)} more\n    {query}")
            continue
        off = [
            abs(ours[key] - theirs[key]) / max(abs(ours[key]), abs(theirs[key]))
            for key in ours
            if not near(ours[key], theirs[key], 1e-6)
        ]
        counts[f"{kind}: {'equal' if not off else 'different'}"] += 1
        if off:
            worst = max(worst, *off)
            # VictoriaMetrics' rate() starts at the sample before its window and does not extrapolate; Prometheus' does
            # the opposite. In short windows over bursts, and in windows longer than the data, they differ much.
            if kind != "extrapolated":
                wrong.append(f"{place} [{kind}]: differs by {max(off):.1%}\n    {query}")
    sys.stdout.write(f"{len(seen)} queries: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) + "\n")
    sys.stdout.write(f"largest relative difference of a rate: {worst:.1%} (computed in another way: docs/scaling.md)\n")
    plain = counts["plain: equal"]
    if plain < 150:
        wrong.append(f"only {plain} queries had an answer to compare")
    for what, query in (("series", '{__name__=~".+"}'), ("of rules", '{__name__=~".+:.+"}')):
        rows = reference.instant(f"count({query})", at)
        sys.stdout.write(f"{what} at the edge: {rows[0]['value'][1] if rows else 0}\n")
    for line in wrong:
        sys.stdout.write(f"  {line}\n")
    return int(bool(wrong))


def gaps(arguments: argparse.Namespace) -> int:
    """No two neighbouring samples of any target are further apart than two intervals, over the whole time."""
    query = urllib.parse.urlencode({"match[]": f'up{{cluster="{arguments.cluster}"}}', "start": arguments.since})
    with urllib.request.urlopen(f"{arguments.store}/api/v1/export?{query}", timeout=30) as answer:
        rows = [json.loads(line) for line in answer.read().decode().splitlines()]
    if not rows:
        sys.stdout.write("no samples at all\n")
        return 1
    stamps = sorted(stamp / 1000 for row in rows for stamp in row["timestamps"])
    longest = max(b - a for a, b in itertools.pairwise(stamps))
    sys.stdout.write(f"{len(stamps)} samples over {stamps[-1] - stamps[0]:.0f} s, longest gap {longest:.1f} s\n")
    return int(longest > 2 * arguments.interval or stamps[0] - arguments.since > 20)


def series(arguments: argparse.Namespace) -> int:
    """Series by server of one exporter, and of the exporter and its GPUs themselves."""
    with urllib.request.urlopen(arguments.exporter + "/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    servers: Counter[str] = Counter()
    other = 0
    for line in lines:
        match = re.search(r'[{,]server="([^"]+)"', line)
        if match:
            servers[match[1]] += 1
        else:
            other += 1
    buckets = sum("_bucket{" in line for line in lines)
    json.dump({"all": len(lines), "buckets": buckets, "other": other, "servers": servers}, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return int(len(servers) != arguments.servers)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compare")
    one.add_argument("--reference", required=True)
    one.add_argument("--store", required=True)
    one.add_argument("--cluster", required=True)
    one.set_defaults(run=compare)
    two = commands.add_parser("gaps")
    two.add_argument("--store", required=True)
    two.add_argument("--cluster", required=True)
    two.add_argument("--since", type=float, required=True)
    two.add_argument("--interval", type=float, required=True)
    two.set_defaults(run=gaps)
    three = commands.add_parser("series")
    three.add_argument("--exporter", required=True)
    three.add_argument("--servers", type=int, required=True)
    three.set_defaults(run=series)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
