"""Units for one host without containers: verified by systemd, and their commands really started together."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vllmeter.cli.assets import export
from vllmeter.config.load import load_config
from vllmeter.demo.stack import Stack, free_port
from vllmeter.memory.compose_file import read_compose
from vllmeter.memory.flags import parse_command
from vllmeter.recording.replay import ReplayServer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
RECORDING = ROOT / "tests/captures/vllm-0.26.0-h200-three-instances.vmrec"


def text(unit: Path) -> str:
    """The unit with continued lines joined."""
    return unit.read_text(encoding="utf-8").replace("\\\n", " ")


def command(name: str) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", text(FOLDER / f"{name}.service"), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    """No unknown key, no bad value, no missing program (those of /opt stand for what a user installs)."""
    for other in UNITS:
        body = re.sub(
            r"/opt/\w+/bin/\w+|/usr/bin/(?:prometheus(?:-alertmanager)?|curl)\b", "/bin/true", other.read_text()
        )
        (tmp_path / other.name).write_text(body)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_exporter_has_two_rights_and_may_look_at_others() -> None:
    """What the container has; ProtectProc or PrivateDevices would blind it."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text(FOLDER / "vllmeter.service"))
    service = unit["Service"]
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert "ProtectProc" not in service
    assert "PrivateDevices" not in service


def test_the_servers_are_those_of_the_compose_file() -> None:
    """Same models, same budgets, flags that vLLM knows, one port each, and the exporter's file names them."""
    compose = {server.command.model: server for server in read_compose((ROOT / "compose.yaml").read_text()).servers}
    settings = {server.name: server for server in load_config(FOLDER / "vllmeter.yaml").servers}
    for name in ("chat", "embed"):
        parsed = parse_command(command(f"vllm-{name}"))
        assert parsed is not None
        assert parsed.problems == ()
        assert parsed.fraction == compose[parsed.model].command.fraction
        assert settings[name].url == f"http://127.0.0.1:{parsed.port}"
        match = settings[name].match
        assert match is not None
        assert match.unit == f"vllm-{name}.service"
        assert f"http://127.0.0.1:{parsed.port}/health" in text(FOLDER / f"vllm-{name}.service")


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


@pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("prometheus-alertmanager") is None,
    reason="Debian's prometheus and prometheus-alertmanager are not installed",
)
def test_the_commands_of_the_units_run_together(tmp_path: Path) -> None:
    """Exporter, Prometheus and Alertmanager as the units start them, on the assets that the package exports."""
    etc, ports = tmp_path / "etc", {port: free_port(0) for port in (9877, 9090, 9093)}
    export(etc)
    with ReplayServer(RECORDING, base_port=free_port(0)) as replay:
        (etc / "vllmeter.yaml").write_text(replay.config() + f"listen: 127.0.0.1:{ports[9877]}\n")

        def here(words: list[str]) -> list[str]:
            out = [word.replace("/etc/vllmeter", str(etc)).replace("/var/lib", str(tmp_path)) for word in words]
            return [re.sub(r"127\.0\.0\.1:(\d+)$", lambda m: f"127.0.0.1:{ports[int(m[1])]}", word) for word in out]

        config = etc / "prometheus/prometheus.yml"
        config.write_text(
            re.sub(r"127\.0\.0\.1:(9877|9093)", lambda m: f"127.0.0.1:{ports[int(m[1])]}", config.read_text())
        )
        base = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        stack = Stack(tmp_path / "logs")
        try:
            stack.start("alertmanager", here(command("vllmeter-alertmanager")), base[9093] + "/-/ready")
            exporter = [sys.executable, "-m", "vllmeter", *here(command("vllmeter"))[1:]]
            stack.start("exporter", exporter, base[9877] + "/-/ready")
            # The first alert may be made before Alertmanager was looked up; it is sent again after a minute by default.
            prometheus = [*here(command("vllmeter-prometheus")), "--rules.alert.resend-delay=2s"]
            stack.start("prometheus", prometheus, base[9090] + "/-/ready")
            deadline = time.monotonic() + 40
            while True:
                servers = get(base[9090] + "/api/v1/query?query=vllmeter_server_up")["data"]["result"]
                alerts = {alert["labels"]["alertname"] for alert in get(base[9093] + "/api/v2/alerts")}
                if len(servers) == 3 and "VllmeterWatchdog" in alerts:
                    break
                assert time.monotonic() < deadline, (servers, alerts)
                time.sleep(0.5)
        finally:
            stack.stop()
