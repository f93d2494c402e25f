"""A real Prometheus scrapes the real exporter: nothing to complain about, in its log or for promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from fakes.programs import H200, ROOT, exporter, free_port, get, program, prometheus_programs, query, wait_until
from fakes.stepper import Stepper, settings_of
from vllmeter.recording.player import Player
from vllmeter.recording.replay import ReplayServer

PROGRAMS = prometheus_programs()


def scrape_config(tmp_path: Path, exporter_port: int) -> Path:
    """prometheus.yml as it is shipped, with another port and without an Alertmanager (nothing listens there here)."""
    data = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    data["rule_files"] = [str((ROOT / "prometheus" / pattern).resolve()) for pattern in data["rule_files"]]
    data.pop("alerting", None)
    text = yaml.safe_dump(data, sort_keys=False).replace("127.0.0.1:9877", f"127.0.0.1:{exporter_port}")
    assert f"127.0.0.1:{exporter_port}" in text
    path = tmp_path / "prometheus.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("release", ["debian", "3.x"])
def test_prometheus_scrapes_without_a_warning(release: str, tmp_path: Path) -> None:
    """The shipped scrape job, both formats it may ask for, all rules: not one warning or error line in its log."""
    if release not in PROGRAMS:
        pytest.skip(f"no Prometheus {release} here (Debian package prometheus; VLLMETER_PROMETHEUS3 for 3.x)")
    port, own = free_port(), free_port()
    log = tmp_path / "prometheus.log"
    with ReplayServer(H200, base_port=None, start=95.0) as replay:
        config = tmp_path / "vllmeter.yaml"
        config.write_text(replay.config(), encoding="utf-8")
        command = [
            PROGRAMS[release],
            f"--config.file={scrape_config(tmp_path, port)}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ]
        with (
            exporter(config, tmp_path / "exporter.log", port),
            program(command, log, f"http://127.0.0.1:{own}/-/ready"),
        ):
            base = f"http://127.0.0.1:{own}"
            wait_until(lambda: len(query(base, "vllmeter_server_up == 1")) == 3, 30, "three servers in Prometheus")
            wait_until(lambda: len(query(base, "count_over_time(vllmeter_nvml_up[1m]) >= 3")) == 1, 40, "three scrapes")
            hosts = {item["metric"]["host"] for item in query(base, "vllmeter_server_up")}
            assert hosts == {"127.0.0.1"}
            assert query(base, "scrape_samples_scraped > 1000")
            assert len(query(base, "vllmeter_server_gpu_memory_used_bytes")) == 3
            time.sleep(1)
    bad = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if re.search(r"level=(warn|error)\b|level=(WARN|ERROR)\b", line) and not HARMLESS.search(line)
    ]
    assert bad == []


HARMLESS = re.compile(r"Received an OS signal|Received SIGTERM")
"""How Prometheus reports that the test ends it."""


@pytest.mark.parametrize("openmetrics", [False, True])
def test_promtool_finds_nothing_to_improve(openmetrics: bool) -> None:
    """``promtool check metrics`` is the judge of names, units, help texts and types."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian package prometheus)")
    if openmetrics:
        # promtool reads the classic text only: the OpenMetrics body is compared with it in tests/web.
        return
    player = Player(H200, loop=False)
    stepper = Stepper(settings_of(player), {s.name: "0.26.0" for s in player.header.servers})
    stepper.play(player, player.phase_start("pressure-64"), player.phase_start("pressure-64") + 30)
    player.close()
    done = subprocess.run(
        [promtool, "check", "metrics"], input=stepper.get("/metrics"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_reload_readiness_and_a_bad_file(tmp_path: Path) -> None:
    """The real process: ready after the first round, a reload adds a server, a bad file keeps the old configuration."""
    port = free_port()
    config = tmp_path / "vllmeter.yaml"
    with ReplayServer(H200, start=95.0) as replay:
        config.write_text(replay.config(), encoding="utf-8")
        with exporter(config, tmp_path / "exporter.log", port) as process:
            base = f"http://127.0.0.1:{port}"
            wait_until(lambda: "ok" in _quiet(f"{base}/-/ready"), 15, "readiness")
            wait_until(lambda: get(f"{base}/metrics").count("vllmeter_server_up{") == 3, 10, "three servers")
            good = replay.config()
            more = good.replace("servers:", "servers:\n  - {name: gone, url: 'http://127.0.0.1:9'}", 1)
            config.write_text(more, encoding="utf-8")
            process.send_signal(1)  # SIGHUP
            wait_until(lambda: get(f"{base}/metrics").count("vllmeter_server_up{") == 4, 10, "the fourth server")
            config.write_text(good + "serverss: []\n", encoding="utf-8")
            process.send_signal(1)
            wait_until(
                lambda: "vllmeter_config_last_reload_successful 0" in get(f"{base}/metrics"), 10, "the failed reload"
            )
            assert get(f"{base}/metrics").count("vllmeter_server_up{") == 4
            assert "gone" in get(f"{base}/config")


def _quiet(url: str) -> str:
    try:
        return get(url)
    except OSError:
        return ""


def test_a_baseline_set_meanwhile_shows_without_a_reload(tmp_path: Path) -> None:
    """`vllmeter baseline set` runs in another process; the exporter sees the new file within seconds."""
    from vllmeter.runs.baseline import FILE

    port = free_port()
    config = tmp_path / "vllmeter.yaml"
    state = tmp_path / "state"
    config.write_text(
        f"state_dir: {state}\nnvml: {{enabled: false}}\nservers:\n  - {{name: chat, url: 'http://127.0.0.1:9'}}\n",
        encoding="utf-8",
    )
    with exporter(config, tmp_path / "exporter.log", port):
        base = f"http://127.0.0.1:{port}/metrics"
        assert "vllmeter_baseline_info" not in get(base)
        state.mkdir()
        stored = {
            "schema": 1,
            "baselines": [{"server": "chat", "scenario": "long", "run": "r1", "recorded": 1.0, "ttft": {"mean": 0.1}}],
        }
        (state / FILE).write_text(json.dumps(stored), encoding="utf-8")
        wait_until(lambda: 'vllmeter_baseline_info{server="chat"' in get(base), 10, "the baseline")
