"""A recording, the exporter, a real Prometheus and Alertmanager: what breaks is told, and told to be over."""

from __future__ import annotations

import dataclasses
import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.programs import CAPTURES, ROOT, exporter, free_port, program, prometheus_programs, query, wait_until
from vllmeter.recording.replay import ReplayServer
from vllmeter.snapshot import GpuProcess, NvmlReading

PROGRAMS = prometheus_programs()
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
RECORDING = CAPTURES / "vllm-0.26.0-h200-orphan-and-hang.vmrec"
"""Process states and CPU times are recorded in it: what tells a hung engine from a busy one within 30 s."""
RUNNING_LOAD = 98.0
"""Position shortly before the recorded memory pressure, which preempts 19 requests of chat."""
UNDER_PRESSURE = 114.0
LIGHT_LOAD = 36.0
"""From here on 85 s of light load on all three servers."""


class SharedCard(ReplayServer):
    """The recording's card, on which another program can take nearly all that is free."""

    crowded = False

    def __enter__(self) -> SharedCard:
        super().__enter__()
        return self

    def _nvml(self, at: float, wall: float) -> NvmlReading:
        reading = super()._nvml(at, wall)
        if not self.crowded or not reading.gpus:
            return reading
        gpu = reading.gpus[0]
        assert gpu.memory_free_bytes is not None
        assert gpu.memory_used_bytes is not None
        taken = gpu.memory_free_bytes - (100 << 20)
        full = dataclasses.replace(
            gpu,
            memory_used_bytes=gpu.memory_used_bytes + taken,
            memory_free_bytes=gpu.memory_free_bytes - taken,
            processes=(*(gpu.processes or ()), GpuProcess(pid=999_999, used_bytes=taken)),
        )
        return dataclasses.replace(reading, gpus=(full, *reading.gpus[1:]))


class Mailbox:
    """What Alertmanager posted: (moment, status, labels, annotations)."""

    def __init__(self) -> None:
        self.notices: list[tuple[float, str, dict[str, str], dict[str, str]]] = []

    def first(self, alert: str, status: str, server: str = "", after: float = 0.0) -> float | None:
        """Moment of the first notice of an alert at or after a moment."""
        for moment, state, labels, _ in list(self.notices):
            same = labels["alertname"] == alert and labels.get("server", "") == server
            if same and state == status and moment >= after:
                return moment
        return None

    def words(self, alert: str) -> dict[str, str]:
        return next(notes for _, _, labels, notes in self.notices if labels["alertname"] == alert)

    @contextmanager
    def receive(self) -> Iterator[int]:
        """A webhook receiver; gives its port."""
        notices = self.notices

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    notices.append((time.monotonic(), alert["status"], alert["labels"], alert["annotations"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)


def alertmanager_config(folder: Path, webhook: int) -> Path:
    """alertmanager.yml as it is shipped, with another webhook and without receivers whose secret files are absent."""
    text = (ROOT / "alerts/alertmanager.yml").read_text(encoding="utf-8")
    path = folder / "alertmanager.yml"
    path.write_text(text.replace("127.0.0.1:9099", f"127.0.0.1:{webhook}"), encoding="utf-8")
    return path


def prometheus_config(folder: Path, exporter_port: int, alertmanager_port: int) -> Path:
    """prometheus.yml as it is shipped, with other ports."""
    data = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    data["rule_files"] = [str((ROOT / "prometheus" / pattern).resolve()) for pattern in data["rule_files"]]
    text = yaml.safe_dump(data, sort_keys=False)
    path = folder / "prometheus.yml"
    path.write_text(
        text.replace("127.0.0.1:9877", f"127.0.0.1:{exporter_port}").replace(
            "127.0.0.1:9093", f"127.0.0.1:{alertmanager_port}"
        ),
        encoding="utf-8",
    )
    return path


@pytest.mark.skipif("debian" not in PROGRAMS, reason="no Prometheus here (Debian package prometheus)")
@pytest.mark.skipif(ALERTMANAGER is None, reason="no Alertmanager here (Debian package prometheus-alertmanager)")
def test_faults_reach_a_person_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, hung, over budget, card full, preemption storm: each arrives at the webhook, and each is resolved."""
    mailbox = Mailbox()
    exporter_port, prometheus_port, alertmanager_port = free_port(), free_port(), free_port()
    base = f"http://127.0.0.1:{prometheus_port}"
    config = tmp_path / "vllmeter.yaml"
    with mailbox.receive() as webhook, SharedCard(RECORDING, start=LIGHT_LOAD) as replay:
        fair = replay.config()
        tight = fair.replace("budget: {fraction: 0.02}", "budget: {bytes: 500MiB}")
        assert tight != fair
        config.write_text(fair, encoding="utf-8")
        with (
            exporter(config, tmp_path / "exporter.log", exporter_port) as watcher,
            program(
                [
                    str(ALERTMANAGER),
                    f"--config.file={alertmanager_config(tmp_path, webhook)}",
                    f"--storage.path={tmp_path / 'alertmanager'}",
                    f"--web.listen-address=127.0.0.1:{alertmanager_port}",
                    "--cluster.listen-address=",
                ],
                tmp_path / "alertmanager.log",
                f"http://127.0.0.1:{alertmanager_port}/-/ready",
            ),
            program(
                [
                    PROGRAMS["debian"],
                    f"--config.file={prometheus_config(tmp_path, exporter_port, alertmanager_port)}",
                    f"--storage.tsdb.path={tmp_path / 'data'}",
                    f"--web.listen-address=127.0.0.1:{prometheus_port}",
                ],
                tmp_path / "prometheus.log",
                f"{base}/-/ready",
            ),
        ):
            wait_until(lambda: len(query(base, "vllmeter_server_up == 1")) == 3, 40, "three servers in Prometheus")
            assert query(base, 'ALERTS{alertname!="VllmeterWatchdog"}') == []

            # ------------------------------------------------------------ break things
            begun: dict[tuple[str, str], float] = {}
            replay.seek(RUNNING_LOAD)
            now = time.monotonic()
            begun["VllmeterPreemptionStorm", "chat"] = now
            replay.fault("embed", "kill")
            begun["VllmeterServerUnreachable", "embed"] = now
            replay.crowded = True
            begun["VllmeterCardNearlyFull", ""] = now
            config.write_text(tight, encoding="utf-8")
            watcher.send_signal(1)  # SIGHUP
            begun["VllmeterServerOverBudget", "rerank"] = now
            wait_until(lambda: replay.position()["position"] >= UNDER_PRESSURE, 30, "the pressure")
            replay.fault("chat", "freeze")
            begun["VllmeterServerStuck", "chat"] = time.monotonic()

            def all_told(status: str, since: dict[tuple[str, str], float]) -> bool:
                return all(
                    mailbox.first(alert, status, server, since[alert, server]) is not None for alert, server in since
                )

            def wait_for(status: str, since: dict[tuple[str, str], float], patience: float) -> None:
                """Waits until all are told; else says which are not, and what Prometheus thinks."""
                deadline = time.monotonic() + patience
                while not all_told(status, since):
                    if time.monotonic() > deadline:
                        told = sorted({(n[1], n[2]["alertname"], n[2].get("server", "")) for n in mailbox.notices})
                        alerts = [
                            (a["metric"]["alertname"], a["metric"].get("server", ""), a["metric"]["alertstate"])
                            for a in query(base, "ALERTS")
                        ]
                        states = [
                            (a["metric"]["server"], a["metric"]["state"])
                            for a in query(base, "vllmeter_server_state == 1")
                        ]
                        pytest.fail(
                            f"not all {status} in {patience} s\ntold: {told}\nPrometheus: {alerts}\nstates: {states}"
                        )
                    time.sleep(0.2)

            wait_for("firing", begun, 110)
            took = {key: (mailbox.first(key[0], "firing", key[1], since) or 0) - since for key, since in begun.items()}

            # ------------------------------------------------------------ repair them
            mended = time.monotonic()
            replay.crowded = False
            config.write_text(fair, encoding="utf-8")
            watcher.send_signal(1)
            replay.fault("*", "none")
            replay.seek(LIGHT_LOAD)
            over = dict.fromkeys(begun, mended)
            wait_for("resolved", over, 150)
            ended = {key: (mailbox.first(key[0], "resolved", key[1], mended) or 0) - mended for key in begun}

    with capsys.disabled():
        print("\nfrom the fault to the notification, and from the repair to the resolution:")
        for alert, server in begun:
            print(f"  {alert:<28} {server:<14} {took[alert, server]:5.1f} s {ended[alert, server]:6.1f} s")
    unreachable = mailbox.words("VllmeterServerUnreachable")
    assert unreachable["summary"] == "vLLM server embed on 127.0.0.1 is unreachable"
    assert unreachable["runbook_url"].endswith("/VllmeterServerUnreachable.md")
    # It fires from the first evaluation on, before Prometheus knows the Alertmanager, and is sent again a minute later.
    assert mailbox.first("VllmeterWatchdog", "firing") is not None
    # Nothing else was sent: no second alert for the same trouble, and no note (severity info).
    told = {labels["alertname"] for _, _, labels, _ in mailbox.notices}
    assert told <= {alert for alert, _ in begun} | {"VllmeterWatchdog"} | ALSO_TRUE
    assert all(
        labels["severity"] != "info" or labels["alertname"] == "VllmeterWatchdog" for _, _, labels, _ in mailbox.notices
    )


ALSO_TRUE = {
    # The recorded pressure and the hang make these true as well, and which of them comes depends on the second.
    "VllmeterKvCachePressure",
    "VllmeterTtftJitterHigh",
    "VllmeterQueueGrowing",
    "VllmeterTtftObjectiveBurnFast",
}
