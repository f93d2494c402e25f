"""`vllmeter stack`: the three programs of one host from one command, and what it says when one is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vllmeter.demo.stack import free_port
from vllmeter.recording.replay import ReplayServer

RECORDING = Path(__file__).parents[1] / "captures" / "vllm-0.26.0-h200-three-instances.vmrec"


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not installed")
def test_one_command_runs_all_and_ends_all(tmp_path: Path) -> None:
    """Prometheus has the servers of the configuration, and after Ctrl-C no process and no open port is left."""
    with ReplayServer(RECORDING, base_port=free_port(0)) as replay:
        config = tmp_path / "vllmeter.yaml"
        config.write_text(replay.config() + f"listen: 127.0.0.1:{free_port(0)}\n")
        command = [
            sys.executable,
            "-m",
            "vllmeter",
            "stack",
            "--config",
            str(config),
            "--folder",
            str(tmp_path / "data"),
        ]
        command += ["--prometheus-port", str(free_port(0)), "--alertmanager-port", str(free_port(0))]
        log = tmp_path / "said"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 60
            while "Ctrl-C stops" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            (prometheus,) = re.findall(r"prometheus +(http://\S+)", log.read_text())
            while True:
                with urllib.request.urlopen(prometheus + "/api/v1/query?query=vllmeter_server_up", timeout=5) as answer:
                    if len(json.load(answer)["data"]["result"]) == 3:
                        break
                assert time.monotonic() < deadline
                time.sleep(0.5)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(20)
        assert code == 0, log.read_text()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(prometheus, timeout=2)
        assert (tmp_path / "data" / "prometheus").is_dir()


def test_without_prometheus_it_says_what_to_install(tmp_path: Path) -> None:
    """One sentence, no traceback, nothing started."""
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "vllmeter", "stack", "--folder", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "apt-get install prometheus" in done.stderr
    assert "Traceback" not in done.stderr
