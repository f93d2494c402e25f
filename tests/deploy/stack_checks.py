"""What the legs ask running containers: one check per command, a sentence for each answer, exit code 1 on a wrong one.

Standard library only.  Every check retries until its time is over, since what it asks about takes a few seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Wrong(Exception):  # noqa: N818 - a verdict, not a fault
    """An answer is not what it must be."""


def fetch(url: str) -> str:
    """Body of a GET; Wrong with the reason."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())
    except (OSError, urllib.error.URLError) as error:
        raise Wrong(f"{url}: {error}") from error


def metrics(exporter: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Family -> [(labels, value)]."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in fetch(exporter + "/metrics").splitlines():
        match = SERIES.match(line)
        if match is not None and not line.startswith("#"):
            found.setdefault(match[1], []).append((dict(LABEL.findall(match[2] or "")), float(match[3])))
    return found


def query(store: str, expression: str) -> list[dict[str, Any]]:
    """Instant query of Prometheus or VictoriaMetrics."""
    data = json.loads(fetch(f"{store}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
    result: list[dict[str, Any]] = data["data"]["result"]
    return result


def until(what: Callable[[], str], patience: float) -> None:
    """Repeats a check until it holds; prints its sentence."""
    deadline = time.monotonic() + patience
    while True:
        try:
            sys.stdout.write(f"  ok: {what()}\n")
            return
        except Wrong as error:
            if time.monotonic() > deadline:
                sys.stdout.write(f"  WRONG: {error}\n")
                raise
        time.sleep(0.5)


def check_answers(arguments: argparse.Namespace) -> None:
    """Prometheus scrapes the exporter, and its rules and alerts are loaded and evaluated without error."""

    def up() -> str:
        rows = query(arguments.prometheus, "vllmeter_server_up == 1")
        names = sorted(row["metric"]["server"] for row in rows)
        if len(names) != 3:
            raise Wrong(f"vllmeter_server_up is 1 for {names}, not for three servers")
        if any("host" not in row["metric"] for row in rows):
            raise Wrong("the label host is missing")
        return f"Prometheus has three servers: {', '.join(names)}"

    def rules() -> str:
        groups = json.loads(fetch(arguments.prometheus + "/api/v1/rules"))["data"]["groups"]
        all_rules = [rule for group in groups for rule in group["rules"]]
        bad = [f"{rule['name']}: {rule.get('lastError')}" for rule in all_rules if rule["health"] == "err"]
        alerts = [rule for rule in all_rules if rule["type"] == "alerting"]
        if bad:
            raise Wrong("; ".join(bad))
        if len(all_rules) < 20 or len(alerts) < 20:
            raise Wrong(f"only {len(all_rules)} rules, {len(alerts)} of them alerts")
        waiting = [rule["name"] for rule in all_rules if rule["health"] != "ok"]
        if waiting:
            raise Wrong(f"not evaluated yet: {waiting[:3]}")
        return f"{len(all_rules) - len(alerts)} recording rules and {len(alerts)} alerts evaluate"

    def recorded() -> str:
        rows = query(arguments.prometheus, '{__name__=~"server:vllmeter_.*"}')
        if not rows:
            raise Wrong("no recording rule has a result")
        return f"{len(rows)} series of recording rules"

    def writable() -> str:
        request = urllib.request.Request(arguments.prometheus + "/api/v1/write", data=b"", method="POST")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise Wrong("the remote-write receiver is off") from error
        return "the remote-write receiver is on"

    for one in (up, rules, recorded, writable):
        until(one, 60)


SITUATIONS = {
    "seen": ("measured", None),
    "hidden": ("unavailable", "pid: host"),
    "unseen": ("unavailable", "that can be seen"),
}


def check_attribution(arguments: argparse.Namespace) -> None:
    """Every server has exactly the bytes that the (fake) driver reports for its engine, and the sum holds."""
    wanted = dict(item.split("=") for item in arguments.bytes)
    state, reason = SITUATIONS[arguments.situation]

    def attributed() -> str:
        found = metrics(arguments.exporter)
        rows = found.get("vllmeter_attribution_info", [])
        if {row["server"] for row, _ in rows} != set(wanted):
            raise Wrong(f"servers {[row['server'] for row, _ in rows]}, not {sorted(wanted)}")
        for row, _ in rows:
            if row["state"] != state or (reason is not None and reason not in row["reason"]):
                raise Wrong(f"{row['server']}: {row}")
            if arguments.method and row["method"] != arguments.method:
                raise Wrong(f"{row['server']}: method {row['method']}, not {arguments.method}")
        used = {row["server"]: value for row, value in found.get("vllmeter_server_gpu_memory_used_bytes", [])}
        if state == "measured":
            if used != {name: float(value) for name, value in wanted.items()}:
                raise Wrong(f"used bytes {used}, the driver says {wanted}")
            total = found["vllmeter_gpu_memory_used_bytes"][0][1]
            parts = [*used.values()]
            parts += [value for _, value in found.get("vllmeter_gpu_memory_other_bytes", [])]
            parts += [value for _, value in found["vllmeter_gpu_memory_unattributed_bytes"]]
            if sum(parts) != total:
                raise Wrong(f"the parts add up to {sum(parts)}, used are {total}")
        elif used or (arguments.situation == "hidden" and "vllmeter_gpu_memory_unattributed_bytes" in found):
            raise Wrong(f"numbers where nothing can be known: {used}")
        methods = sorted({row["method"] for row, _ in rows})
        return f"{state} by {', '.join(methods)}" + ("; the sum holds" if state == "measured" else "; no number")

    until(attributed, 40)


def check_alert(arguments: argparse.Namespace) -> None:
    """A line of the webhook's log (standard input is not used: the leg passes a file that grows)."""

    def arrived() -> str:
        with open(arguments.log, encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().splitlines()
        for line in lines:
            if all(word in line.split() for word in arguments.words):
                return f"the webhook got: {line}"
        raise Wrong(f"the webhook got nothing with {arguments.words}; {len(lines)} lines")

    until(arrived, arguments.patience)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    answers = commands.add_parser("answers")
    answers.add_argument("--prometheus", required=True)
    answers.set_defaults(run=check_answers)
    attribution = commands.add_parser("attribution")
    attribution.add_argument("--exporter", required=True)
    attribution.add_argument("--situation", choices=SITUATIONS, required=True)
    attribution.add_argument("--method")
    attribution.add_argument("bytes", nargs="+", help="SERVER=BYTES")
    attribution.set_defaults(run=check_attribution)
    alert = commands.add_parser("alert")
    alert.add_argument("--log", required=True)
    alert.add_argument("--patience", type=float, default=90)
    alert.add_argument("words", nargs="+")
    alert.set_defaults(run=check_alert)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except Wrong:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
