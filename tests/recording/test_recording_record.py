"""Recording live servers: complete, masked, and safe against everything that stops it."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from vllmeter.cli.record import record as record_command
from vllmeter.cli.replay import replay as replay_command
from vllmeter.config.settings import Server
from vllmeter.recording.format import (
    Answer,
    Down,
    Gpus,
    Header,
    Health,
    Phase,
    Processes,
    RecordedServer,
    RecordingReader,
    RecordingWriter,
    summarise,
)
from vllmeter.recording.masking import Masker
from vllmeter.recording.record import (
    Progress,
    Recorder,
    Target,
    boot_time,
    describe,
    server_flags,
    split_url,
    unique_names,
)
from vllmeter.recording.replay import ReplayServer
from vllmeter.recording.sources import ReplayGpuSource, ReplayProcessSource
from vllmeter.scrape.client import ScrapeClient
from vllmeter.scrape.outcome import Fetch
from vllmeter.snapshot import HostProcess, NvmlReading, ProcessTable

CAPTURES = Path(__file__).parent.parent / "captures"
H200 = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    """The two commands as the command line has them."""
    made = typer.Typer()
    made.command("record")(record_command)
    made.command("replay")(replay_command)
    return made


class Scripted:
    """A client that gives one answer after the other, then the last again."""

    def __init__(self, answers: Sequence[Fetch], healths: Sequence[int | str] = (200,)) -> None:
        self._answers = list(answers)
        self._healths = list(healths)

    def metrics(self) -> Fetch:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def health(self) -> int | str:
        return self._healths.pop(0) if len(self._healths) > 1 else self._healths[0]

    def version(self) -> str | None:
        return "0.26.0"

    def close(self) -> None:
        pass


def records_of(path: Path) -> list[Any]:
    """All records."""
    with RecordingReader(path) as reader:
        return list(reader)


def test_a_recording_of_a_replay_is_the_recording(tmp_path: Path) -> None:
    """Recording a replayed host gives its bodies, GPU readings, processes, flags and versions again."""
    path = tmp_path / "again.vmrec"
    with ReplayServer(H200, start=90.0, base_port=free_ports(3)) as server:
        targets = [
            Target(e.name, e.recorded.port, ScrapeClient(Server(name=e.name, url=e.url))) for e in server.endpoints
        ]
        processes = ReplayProcessSource(server.control_url)
        gpu = ReplayGpuSource(server.control_url)
        recorder = Recorder(path, targets, gpu=gpu, processes=processes, interval=0.2, state="test")
        seen: list[Progress] = []
        recorder.run(1.5, seen.append, every=0.3)
        live = server.player.header
        gpu.close()
        processes.close()
    assert seen
    assert seen[-1].up == 3
    assert seen[-1].gpu == "ok"
    summary = summarise(path)
    assert summary.truncated is None
    assert summary.header.vllm == "0.26.0"
    assert summary.header.gpus == live.gpus
    assert summary.header.driver == live.driver
    assert [s.name for s in summary.header.servers] == [s.name for s in live.servers]
    assert summary.header.servers[2].model == "Qwen3-1.7B"
    assert summary.header.servers[2].flags["gpu_memory_utilization"] == "0.06"
    assert summary.header.servers[2].flags["enforce_eager"] == "true"
    assert summary.header.servers[2].max_model_len == 4096
    assert all(count >= 3 for count in summary.answers.values())
    found = records_of(path)
    bodies = [r for r in found if isinstance(r, Answer) and r.server == "vllm-qwen3"]
    assert b"vllm:num_requests_running" in bodies[0].body
    assert bodies[0].took is not None
    assert bodies[0].content_type.startswith("text/plain")
    readings = [r.reading for r in found if isinstance(r, Gpus)]
    assert [p.pid for p in readings[0].gpus[0].processes or ()] == [734, 795, 1137]
    assert 1010 in next(r.table for r in found if isinstance(r, Processes)).processes
    assert Health(found[-1].t, "vllm-qwen3", 200).status in {r.status for r in found if isinstance(r, Health)}


def free_ports(count: int) -> int:
    """First of ``count`` successive ports that are free now."""
    import socket

    for first in range(30011, 32000, 41):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, sock in enumerate(sockets):
                sock.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        else:
            return first
        finally:
            for sock in sockets:
                sock.close()
    raise AssertionError("no free ports")


def test_all_sources_of_one_sample_get_one_clock(tmp_path: Path) -> None:
    """GPUs and processes of a sample are asked for the same moment, and stand in the recording under it."""
    ticks = iter(range(1_000_000))
    calls: dict[str, list[tuple[float, ...]]] = {"gpu": [], "processes": []}

    class Gpu:
        def read(self, at: float, wall: float) -> NvmlReading:
            calls["gpu"].append((at, wall))
            time.sleep(0.002)
            return NvmlReading(at, wall, up=True, reason=None)

        def close(self) -> None:
            """Nothing is open."""

    class Table:
        def read(self, at: float, _pids: Sequence[int]) -> ProcessTable:
            calls["processes"].append((at,))
            return ProcessTable(at, {})

    # every look at the clock finds it moved: a source with a time of its own cannot agree by chance
    path = tmp_path / "x.vmrec"
    recorder = Recorder(
        path,
        [],
        gpu=Gpu(),
        processes=Table(),
        interval=1.0,
        clock=lambda: 1000.0 + next(ticks) * 0.25,
        wall=lambda: 5000.0 + next(ticks),
    )
    recorder.start()
    deadline = time.monotonic() + 10
    while len(calls["processes"]) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.stop()
    recorder.close()
    found = records_of(path)
    # the first of each was asked for the header
    gpu, processes = [at for at, _ in calls["gpu"][1:]], [at for (at,) in calls["processes"][1:]]
    assert len(processes) >= 5
    assert set(processes) <= set(gpu)
    assert len({wall - at for at, wall in calls["gpu"]}) > 1
    zero = recorder._zero
    assert [r.t for r in found if isinstance(r, Gpus)] == pytest.approx([at - zero for at in gpu])
    assert [r.t for r in found if isinstance(r, Processes)] == pytest.approx([at - zero for at in processes])


def test_every_way_of_failing_is_recorded(tmp_path: Path) -> None:
    """Refused and timed out are Down with the reason, an HTTP error keeps its status, health is kept on change."""
    path = tmp_path / "x.vmrec"
    client = Scripted(
        [
            Fetch(0.01, b"x 1\n", "text/plain", 200),  # asked once for the header
            Fetch(0.01, b"x 1\n", "text/plain", 200),
            Fetch(0.01, reason="refused"),
            Fetch(0.01, reason="timeout"),
            Fetch(0.01, status=503, reason="http_5xx"),
            Fetch(0.01, b"x 2\n", "text/plain", 200),
        ],
        [500],
    )
    recorder = Recorder(path, [Target("a", 8000, client)], interval=0.02)
    recorder.phase("load test")
    recorder.run(0.4)
    found = records_of(path)
    assert [r.name for r in found if isinstance(r, Phase)] == ["load test"]
    kinds = [
        (type(r).__name__, getattr(r, "why", None) or getattr(r, "status", None))
        for r in found
        if isinstance(r, (Answer, Down))
    ]
    assert kinds[:5] == [("Answer", 200), ("Down", "refused"), ("Down", "timeout"), ("Answer", 503), ("Answer", 200)]
    assert {r.status for r in found if isinstance(r, Health)} == {500}
    progress = recorder.progress()
    assert progress.failures == 3
    assert progress.gpu == "not asked"


def test_secrets_do_not_reach_the_file(tmp_path: Path) -> None:
    """Keys in labels, command lines, environment, flags and phases are nowhere in the file."""
    secret = "sk-" + "verysecret12345"
    body = f'x{{model_name="/home/ann/m",key="{secret}",api_key="hunter2"}} 1\n'.encode()
    item = HostProcess(
        7,
        1,
        5,
        "vllm",
        ("vllm", "serve", "/home/ann/m", "--port", "8000", "--api-key", "hunter2"),
        environ={"HF_TOKEN": "hunter2"},
    )

    class Table:
        def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
            return ProcessTable(at, {7: item})

    class Gpu:
        def read(self, at: float, wall: float) -> NvmlReading:
            return NvmlReading(at, wall, up=False, reason="library_not_found")

        def close(self) -> None:
            pass

    path = tmp_path / "x.vmrec"
    client = Scripted([Fetch(0.01, body, "text/plain", 200)])
    recorder = Recorder(
        path,
        [Target("a", 8000, client)],
        gpu=Gpu(),
        processes=Table(),
        masker=Masker(["box9"], ["ann"]),
        interval=0.05,
    )
    recorder.phase(f"on box9 with {secret}")
    recorder.run(0.2)
    import lzma

    text = lzma.decompress(path.read_bytes()).decode()
    for word in (secret, "hunter2", "/home/ann", "box9", "verysecret"):
        assert word not in text
    header = summarise(path).header
    assert header.servers[0].flags["api_key"] == "masked"
    assert header.servers[0].model == "/home/user/m"
    assert header.masked
    assert recorder.progress().gpu == "library_not_found"


def test_a_full_disk_stops_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write that fails ends the recording with the error; earlier records stay readable."""
    path = tmp_path / "x.vmrec"
    client = Scripted([Fetch(0.01, b"x 1\n", "text/plain", 200)])
    recorder = Recorder(path, [Target("a", 8000, client)], interval=0.02)
    original = RecordingWriter.write
    count = 0

    def failing(self: RecordingWriter, record: Any) -> None:
        nonlocal count
        count += 1
        if count > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, record)

    monkeypatch.setattr(RecordingWriter, "write", failing)
    begun = time.monotonic()
    recorder.run(30)
    assert time.monotonic() - begun < 10
    assert recorder.error is not None
    assert recorder.error.errno == errno.ENOSPC
    assert sum(isinstance(r, Answer) for r in records_of(path)) >= 3


def test_a_late_server_delays_nobody(tmp_path: Path) -> None:
    """While one server takes long to answer, the others are recorded at their interval."""
    release = threading.Event()

    class Late(Scripted):
        def metrics(self) -> Fetch:
            if self.asked:
                release.wait(5)
            self.asked = True
            return super().metrics()

        def close(self) -> None:
            release.set()

        asked = False

    good = Fetch(0.01, b"x 1\n", "text/plain", 200)
    targets = [Target("late", 1, Late([good])), Target("quick", 2, Scripted([good]))]
    recorder = Recorder(tmp_path / "x.vmrec", targets, interval=0.05)
    recorder.run(0.5)
    answers = summarise(tmp_path / "x.vmrec").answers
    assert answers["quick"] >= 5
    assert "late" not in answers


def test_ctrl_c_keeps_the_recording(tmp_path: Path) -> None:
    """SIGINT ends the command with code 0, a whole file and a hint how to play it."""
    path = tmp_path / "x.vmrec"
    with ReplayServer(CAPTURES / "vllm-0.26.0-h200-pressure.vmrec", base_port=free_ports(3)) as server:
        code = (
            "import typer\nfrom vllmeter.cli.record import record\napp = typer.Typer()\napp.command()(record)\napp()\n"
        )
        command = [sys.executable, "-c", code, str(path), "--url", server.endpoints[0].url + "/metrics", "--no-nvml"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        ) as process:
            end = time.monotonic() + 20
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(1.3)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "vllmeter replay" in out
    summary = summarise(path)
    assert summary.truncated is None
    assert sum(summary.answers.values()) >= 1


def test_mistakes_on_the_command_line(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, a URL that is none, a file that exists, a bad configuration: one clear line and code 1."""
    monkeypatch.chdir(tmp_path)
    existing = tmp_path / "there.vmrec"
    existing.write_text("precious")
    (tmp_path / "bad.yaml").write_text("severs: []\n")
    cases = [
        (["record", "x.vmrec"], "no server to record; give --url"),
        (["record", "x.vmrec", "-u", "localhost:8000"], "is no URL of a vLLM server"),
        (["record", str(existing), "-u", "http://127.0.0.1:1"], "exists; give another name, or --force"),
        (["record", "x.vmrec", "-u", "http://127.0.0.1:1", "--duration", "soon"], "soon"),
        (["record", "x.vmrec", "-c", "bad.yaml"], "bad.yaml:1:"),
        (["record", "x.vmrec", "-c", "none.yaml"], "no such file"),
        (["record", str(existing), "--copy", str(H200)], "exists; give another name"),
        (["record", "x.vmrec", "--copy", "none.vmrec"], "cannot be opened"),
        (
            ["record", "x.vmrec", "--copy", str(H200), "--from", "60", "--to", "10"],
            "--to 10 is not later than --from 60",
        ),
        (["replay", str(existing)], "not a vllmeter recording"),
        (["replay", str(H200), "--start", "lunch"], "phases: start, idle"),
        (["replay", str(H200), "--speed", "0"], "speed must be above 0"),
        (["replay", str(H200), "--copies", "0"], "copies must be at least 1"),
    ]
    for arguments, message in cases:
        result = RUNNER.invoke(app, arguments)
        assert result.exit_code == 1, (arguments, result.output)
        assert message in result.output, (arguments, result.output)
    assert existing.read_text() == "precious"


def test_nothing_answered_is_an_error(app: typer.Typer, tmp_path: Path) -> None:
    """A recording without a single answer is written (it may be the point) but ends with code 1."""
    path = tmp_path / "x.vmrec"
    port = free_ports(1)
    arguments = ["record", str(path), "-u", f"http://127.0.0.1:{port}", "--duration", "1s", "--no-nvml"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert "no server answered" in result.output
    assert {r.why for r in records_of(path) if isinstance(r, Down)} == {"refused"}


def test_copy_and_info_commands(app: typer.Typer, tmp_path: Path) -> None:
    """A slice is written and described: duration, servers with flags, phases, notes."""
    path = tmp_path / "part.vmrec"
    result = RUNNER.invoke(app, ["record", str(path), "--copy", str(H200), "--from", "85", "--to", "95"])
    assert result.exit_code == 0, result.output
    assert "10 s" in result.output
    result = RUNNER.invoke(app, ["replay", str(path), "--info"])
    assert result.exit_code == 0
    facts = ("10 s", "NVIDIA H200", "580.159.04", "vllm-qwen3 port 8002", "--max-num-seqs 64", "pressure-64")
    for text in facts:
        assert text in result.output
    result = RUNNER.invoke(app, ["record", str(path), "--copy", str(path), "--force"])
    assert result.exit_code == 1
    assert "is the source itself" in result.output


def test_replay_command_prints_a_configuration_and_ends(app: typer.Typer, tmp_path: Path) -> None:
    """Without looping it ends at the end, with code 0, and has written the configuration."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, Header(0.0, (RecordedServer("a", 1),))) as writer:
        writer.write(Answer(0.0, "a", b"x 1\n"))
    config = tmp_path / "r.yaml"
    arguments = ["replay", str(path), "--no-loop", "--speed", "5", "--write-config", str(config)]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert re.search(r"url: http://127\.0\.0\.1:\d+\n", config.read_text())
    assert config.read_text() in result.output


def test_a_cut_recording_is_played_with_a_note(app: typer.Typer, tmp_path: Path) -> None:
    """A recording that was cut plays what is there and says so."""
    path = tmp_path / "x.vmrec"
    writer = RecordingWriter(path, Header(0.0, (RecordedServer("a", 1),)))
    writer.write(Answer(0.0, "a", b"x 1\n"))
    writer.flush()
    result = RUNNER.invoke(app, ["replay", str(path), "--no-loop", "--speed", "5"])
    writer.close()
    assert result.exit_code == 0, result.output
    assert "the end mark is missing" in result.output


@pytest.mark.parametrize(
    "text, expected",
    [
        ("http://127.0.0.1:8000", ("http://127.0.0.1:8000", 8000)),
        ("http://127.0.0.1:8000/metrics/", ("http://127.0.0.1:8000", 8000)),
        ("https://gpu.example/gen", ("https://gpu.example/gen", 443)),
        ("http://[::1]:8001", ("http://[::1]:8001", 8001)),
    ],
)
def test_urls_are_taken_as_people_give_them(text: str, expected: tuple[str, int]) -> None:
    """With or without /metrics and a slash at the end."""
    assert split_url(text) == expected


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://a b", "http://x:99999", "http://u:p@x"]
)
def test_what_is_no_url_is_refused(text: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(ValueError, match=r"URL of a vLLM server|valid port"):
        split_url(text)


def test_small_parts() -> None:
    """Names are made unique, the boot time is read, flags come from the right process, the progress line is short."""
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a-2", "a-3"]
    assert boot_time("cpu 1 2\nbtime 1796000000\n") == 1796000000.0
    assert boot_time("") is None
    table = ProcessTable(
        0.0,
        {
            1: HostProcess(1, 0, 0, "init", ("init",)),
            2: HostProcess(2, 1, 0, "vllm", ("vllm", "serve", "m1", "--port", "8001", "--enforce-eager")),
            3: HostProcess(3, 1, 0, "vllm", ("vllm", "serve", "m2", "--port", "8002")),
        },
    )
    assert server_flags(table, 8001) == {"model": "m1", "port": "8001", "enforce_eager": "true"}
    assert server_flags(table, 9) == {}
    assert server_flags(None, 8001) == {}
    line = describe(Progress(65.0, 10, 1, 2, 3, "ok", 2048))
    assert line == "1:05  servers up 2/3  answers 10  failures 1  GPU ok  2 kB"


def test_an_interval_of_nothing_is_refused(tmp_path: Path) -> None:
    """It would ask without pause."""
    with pytest.raises(ValueError, match="interval"):
        Recorder(tmp_path / "x.vmrec", [], interval=0)
