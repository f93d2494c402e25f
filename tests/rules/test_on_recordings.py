"""The rules on what the exporter exposes for real recordings: the right alerts at the right moments, no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fakes.programs import CAPTURES
from fakes.stepper import Stepper, settings_of
from rules.labels import TARGET
from rules.promtool_files import RAW, ROOT, alert_files, as_test_file, closure, load_rules
from vllmeter.recording.player import Player

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
RULES = load_rules()
EXPRESSION = 'count by (alertname, server, severity) (ALERTS{alertstate="firing", alertname!="VllmeterWatchdog"})'

Told = Mapping[int, set[tuple[str, str, str]]]
"""second -> (alert, server, severity) that fire then"""

SEEN = ("VllmeterPreemptionsSeen", "vllm-qwen3", "info")
STORM = ("VllmeterPreemptionStorm", "vllm-qwen3", "warning")
RESTARTED = ("VllmeterServerRestarted", "vllm-qwen3", "info")

THREE: Told = {
    # short and long prompts: nothing
    60: set(),
    90: set(),
    # pressure from 108 s on, 19 preemptions
    120: {SEEN},
    150: {SEEN, STORM},
    # restart with another flag, 162 s to 209 s: nobody is paged for it
    195: {SEEN},
    225: {SEEN, RESTARTED},
    # 25 of the hour's 140 requests waited longer than 2.5 s, and the last of them not five minutes ago.
    285: {SEEN, RESTARTED, ("VllmeterTtftObjectiveBurnFast", "vllm-qwen3", "critical")},
}
WITH_RUN: Told = {
    # The same while a run of the server is active: what load causes is a note.
    60: set(),
    120: {SEEN},
    150: {SEEN, ("VllmeterPreemptionStorm", "vllm-qwen3", "info")},
    285: {SEEN, RESTARTED, ("VllmeterTtftObjectiveBurnFast", "vllm-qwen3", "info")},
}
BROKEN: Told = {
    # The embedder's API server is killed at 121 s, the chat engine is stopped at about 130 s: too short to page.
    90: set(),
    135: {("VllmeterPreemptionsSeen", "chat", "info"), ("VllmeterPreemptionStorm", "chat", "warning")},
    170: {("VllmeterPreemptionsSeen", "chat", "info"), ("VllmeterPreemptionStorm", "chat", "warning")},
}


def exposed(recording: str, seconds: int, *, run: bool) -> list[dict[str, str]]:
    """What Prometheus would have stored, a sample every five seconds, as promtool's input (read by rules only)."""
    names = {name for rule in RULES for name in RAW.findall(rule["expr"])}
    values: dict[str, dict[int, float]] = {}
    target = {"job": "vllmeter", "instance": "a:9877", "host": "a"}
    assert set(target) == TARGET
    with Player(CAPTURES / recording, wall=1.0, loop=False) as player:
        stepper = Stepper(settings_of(player), {server.name: "0.26.0" for server in player.header.servers})
        for second in range(seconds + 1):
            moment = player.at(stepper.at)
            stepper.wall_zero = moment.wall - stepper.at
            stepper.moment(moment)
            if run and second == 0:
                stepper.mark_run("base", "mixed", "", start=True)
            if second % 5 == 0:
                for family in text_string_to_metric_families(stepper.metrics(openmetrics=False).decode()):
                    for sample in family.samples:
                        if sample.name in names:
                            labels = {**sample.labels, **target}
                            text = ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
                            values.setdefault(f"{sample.name}{{{text}}}", {})[second // 5] = sample.value
                up = ", ".join(f'{key}="{value}"' for key, value in target.items())
                values.setdefault(f"up{{{up}}}", {})[second // 5] = 1.0
            stepper.at += 1
    out = []
    for series, have in values.items():
        parts, before = ["_"], False
        for index in range(seconds // 5 + 1):
            # Prometheus marks a series stale with the first scrape that lacks it.
            parts.append(repr(have[index]) if index in have else "stale" if before else "_")
            before = index in have
        out.append({"series": series, "values": " ".join(parts)})
    return out


@pytest.mark.promtool
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on the PATH (Debian package prometheus)")
@pytest.mark.parametrize(
    ("recording", "run", "told"),
    [
        ("vllm-0.26.0-h200-three-instances.vmrec", False, THREE),
        ("vllm-0.26.0-h200-three-instances.vmrec", True, WITH_RUN),
        ("vllm-0.26.0-h200-orphan-and-hang.vmrec", False, BROKEN),
    ],
    ids=["three-instances", "in-a-run", "orphan-and-hang"],
)
def test_alerts_on_a_recording(recording: str, run: bool, told: Told, tmp_path: Path) -> None:
    """Exactly the alerts that a person would expect fire at each moment of a recording of real servers."""
    alerts = [name for names in alert_files(RULES).values() for name in names]
    checks = []
    for second, expected in told.items():
        samples = [
            {"labels": f'{{alertname="{alert}", severity="{severity}", server="{server}"}}', "value": 1}
            for alert, server, severity in sorted(expected)
        ]
        checks.append({"expr": EXPRESSION, "eval_time": f"{second}s", "exp_samples": samples})
    if "three-instances" in recording and not run:
        # from 162 to 203 s no process of the chat model holds the card: whether it could start is asked all the same
        room = 'count by (server) (server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff{server="vllm-qwen3"})'
        known = [{"labels": '{server="vllm-qwen3"}', "value": 1}]
        checks += [{"expr": room, "eval_time": f"{at}s", "exp_samples": known} for at in (150, 180, 225)]
    test = {
        "interval": "5001ms",
        "input_series": exposed(recording, max(told), run=run),
        "promql_expr_test": checks,
    }
    path = tmp_path / "recording.yaml"
    path.write_text(as_test_file(closure(RULES, alerts), "15s", [test], str(ROOT)), encoding="utf-8")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:5000]
