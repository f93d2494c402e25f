"""A replay is a set of real HTTP servers that behave like the recorded ones."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from vllmeter.config.load import parse_config
from vllmeter.gpu.source import GpuSource
from vllmeter.host.source import ProcessSource
from vllmeter.recording import replay as replay_module
from vllmeter.recording.format import Answer, Down, Header, Health, RecordedServer, RecordingReader, RecordingWriter
from vllmeter.recording.replay import FAULT_MODES, ReplayError, ReplayServer, server_processes
from vllmeter.recording.sources import ReplayGpuSource, ReplayProcessSource
from vllmeter.snapshot import HostProcess

CAPTURES = Path(__file__).parent.parent / "captures"
H200 = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CHAT = "vllm-qwen3"


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Stands still until moved."""
    return Clock()


@pytest.fixture
def served(clock: Clock) -> Iterator[ReplayServer]:
    """The three-instance recording on free ports, on a clock that tests move."""
    with ReplayServer(H200, clock=clock, wall=lambda: 2e9, base_port=free_ports(3)) as server:
        yield server


def free_ports(count: int) -> int:
    """First of ``count`` successive ports that are free now."""
    for first in range(21000, 29000, 37):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def url(server: ReplayServer, name: str = CHAT) -> str:
    """Base URL of a served server."""
    return next(endpoint.url for endpoint in server.endpoints if endpoint.name == name)


def get(address: str, **options: Any) -> requests.Response:
    """One GET without proxies."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(address, **{"timeout": 5, **options})


def post(address: str, document: Any, **options: Any) -> requests.Response:
    """One POST without proxies."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(address, data=json.dumps(document), timeout=5, **options)


def eventually(check: Callable[[], bool]) -> None:
    """Waits up to three seconds for something that another thread does."""
    end = time.monotonic() + 3
    while not check():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def refused(address: str) -> bool:
    """Whether nothing listens there."""
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) != 0


def test_the_recorded_bodies_are_served(served: ReplayServer, clock: Clock) -> None:
    """/metrics gives the body of the moment with its content type; only start times differ from the recording."""
    clock.now += 30.2
    with RecordingReader(H200) as reader:
        wanted = [r for r in reader if isinstance(r, Answer) and r.server == CHAT and r.t <= 30.2][-1]
    answer = get(url(served) + "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    pairs = list(zip(answer.content.split(b"\n"), wanted.body.split(b"\n"), strict=True))
    moved = [a for a, b in pairs if a != b]
    assert moved
    assert all(b"_created" in line or line.startswith(b"process_start_time_seconds ") for line in moved)
    assert get(url(served) + "/metrics/").content == answer.content


def test_the_other_endpoints_of_vllm(served: ReplayServer) -> None:
    """/health, /version and /v1/models answer as the recorded server would; anything else is 404."""
    base = url(served)
    assert get(base + "/health").status_code == 200
    assert get(base + "/health").content == b""
    assert get(base + "/version").json() == {"version": "0.26.0"}
    model = get(base + "/v1/models").json()["data"][0]
    assert model["id"] == "Qwen3-1.7B"
    assert model["max_model_len"] == 4096
    assert get(base + "/nothing").status_code == 404
    assert post(base + "/metrics", {}).status_code == 405


def test_a_stopped_server_refuses_and_comes_back(served: ReplayServer, clock: Clock) -> None:
    """In the recorded restart the port is really closed; open connections are reset; others go on; it comes back."""
    base = url(served)
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(base + "/metrics", timeout=5).status_code == 200
        clock.now += 163
        eventually(lambda: refused(base))
        with pytest.raises(requests.ConnectionError):
            session.get(base + "/metrics", timeout=5)
        assert get(url(served, "vllm-embed") + "/health").status_code == 200
        assert served.position()["servers"][CHAT]["up"] is False
        clock.now += 46
        eventually(lambda: not refused(base))
        assert b"vllm:num_preemptions_total" in session.get(base + "/metrics", timeout=5).content


def test_nobody_can_take_the_port_of_a_stopped_server(served: ReplayServer, clock: Clock) -> None:
    """While it is down the port stays bound, so it cannot be lost to another program."""
    clock.now += 163
    eventually(lambda: refused(url(served)))
    port = int(url(served).rsplit(":", 1)[1])
    with socket.socket() as sock, pytest.raises(OSError):
        sock.bind(("127.0.0.1", port))


def test_recorded_ports_are_used_when_free_and_others_when_taken() -> None:
    """A taken port is replaced by a free one, and the endpoint says which."""
    header = Header(0.0, (RecordedServer("a", free_ports(1)),))
    port = header.servers[0].port
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(temporary([Answer(0.0, "a", b"x 1\n")], header))
        with ReplayServer(path) as server:
            assert server.endpoints[0].port == port
        blocker = stack.enter_context(socket.socket())
        blocker.bind(("127.0.0.1", port))
        blocker.listen()
        with ReplayServer(path) as server:
            assert server.endpoints[0].port != port
            assert get(server.endpoints[0].url + "/metrics").content == b"x 1\n"
        with pytest.raises(ReplayError, match="cannot listen on"):
            ReplayServer(path, base_port=port).start()


@contextlib.contextmanager
def temporary(records: list[Any], header: Header | None = None) -> Iterator[Path]:
    """A recording of one server "a"."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.vmrec"
        with RecordingWriter(path, header or Header(1000.0, (RecordedServer("a", 0),))) as writer:
            for record in records:
                writer.write(record)
        yield path


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like vLLM's server it closes a connection after a time without requests (5 s; shorter here)."""
    assert replay_module.KEEP_ALIVE_SECONDS == 5.0
    monkeypatch.setattr(replay_module, "KEEP_ALIVE_SECONDS", 0.2)
    with (
        temporary([Answer(0.0, "a", b"x 1\n")]) as path,
        ReplayServer(path) as server,
        socket.create_connection(("127.0.0.1", server.endpoints[0].port), timeout=5) as sock,
    ):
        for _ in range(2):
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            received = b""
            while not received.endswith(b"x 1\n"):
                received += sock.recv(1000)
        assert sock.recv(1) == b""


def test_the_http_side_survives_odd_requests(served: ReplayServer) -> None:
    """Pieces, pipelines, HEAD, HTTP/1.0 and rubbish get proper answers."""
    port = int(url(served).rsplit(":", 1)[1])

    def talk(*pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.02)
            out = b""
            while data := sock.recv(65536):
                out += data
            return out

    assert talk(b"GET /health HT", b"TP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    both = talk(b"GET /health HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert both.count(b"HTTP/1.1 200 OK") == 2
    assert both.endswith(b'{"version": "0.26.0"}\n')
    head = talk(b"HEAD /version HTTP/1.0\r\n\r\n")
    assert b"content-length: 22\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert talk(b"rubbish\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert talk(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert talk(b"GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert talk(b"x" * 70_000).startswith(b"HTTP/1.1 413 ")


def test_position_seek_and_phases_over_the_control_port(served: ReplayServer, clock: Clock) -> None:
    """The control port tells where the replay is and moves it by second or by phase name."""
    control = served.control_url
    clock.now += 10
    position = get(control + "/replay/position").json()
    assert position["position"] == pytest.approx(10.0)
    assert position["phase"] == "base-2048-short"
    assert position["loop"] == 0
    assert position["servers"][CHAT]["recorded_port"] == 8002
    moved = post(control + "/replay/seek", {"phase": "pressure-64"}).json()
    assert moved["position"] == pytest.approx(85.0, abs=0.1)
    assert moved["loop"] == 1
    assert post(control + "/replay/seek", {"position": 5}).json()["position"] == 5.0
    assert served.seek(12.5)["position"] == 12.5


@pytest.mark.parametrize(
    "path, document, message",
    [
        ("/replay/seek", {"phase": "nope"}, "phases of this recording: start, idle"),
        ("/replay/seek", {"position": 1e9}, "outside the recording"),
        ("/replay/seek", {}, "accepted: POST /replay/seek"),
        ("/replay/seek", [], "accepted: POST /replay/seek"),
        ("/replay/seek", {"position": None}, "accepted: POST"),
        ("/replay/fault", {"server": "nope", "mode": "kill"}, "servers: vllm-reranker, vllm-embed, vllm-qwen3"),
        ("/replay/fault", {"server": CHAT, "mode": "explode"}, "modes: none, kill, freeze"),
        ("/replay/fault", {"server": CHAT}, "accepted: POST"),
    ],
)
def test_mistakes_on_the_control_port_are_explained(
    served: ReplayServer, path: str, document: Any, message: str
) -> None:
    """A wrong request gets 400 with what would be accepted."""
    answer = post(served.control_url + path, document)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_web_pages_cannot_use_the_control_port(served: ReplayServer) -> None:
    """Requests that come from a page of another site (Origin) are refused; it listens on loopback only."""
    answer = post(served.control_url + "/replay/fault", {"mode": "kill"}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert not refused(url(served))
    assert served.control_url.startswith("http://127.0.0.1:")
    assert get(served.control_url + "/other").status_code == 404


def test_gpus_and_processes_over_http(served: ReplayServer, clock: Clock) -> None:
    """The HTTP sources give the recorded view, stamped with the caller's times; they fit the protocols."""
    gpus: GpuSource = ReplayGpuSource(served.control_url)
    source = ReplayProcessSource(served.control_url)
    processes: ProcessSource = source
    clock.now += 209
    reading = gpus.read(5.0, 6.0)
    assert (reading.at, reading.wall, reading.up) == (5.0, 6.0, True)
    assert [p.pid for p in reading.gpus[0].processes or ()] == [734, 795, 1851]
    assert reading.duration_seconds is not None
    table = processes.read(7.0, [1851])
    assert table.at == 7.0
    assert table.processes[1786].listening_ports == (8002,)
    served.stop()
    assert gpus.read(8.0, 9.0).reason == "replay_unreachable"
    assert gpus.read(8.0, 9.0).gpus == ()
    assert processes.read(8.0, []).reason == "replay_unreachable"
    gpus.close()
    source.close()


def test_a_killed_server_takes_its_processes_along(served: ReplayServer) -> None:
    """kill: refused, its processes gone from both views, and used memory drops by what they held."""
    before = served.nvml(0.0, 0.0).gpus[0]
    served.fault(CHAT, "kill")
    eventually(lambda: refused(url(served)))
    after = served.nvml(0.0, 0.0).gpus[0]
    assert [p.pid for p in after.processes or ()] == [734, 795]
    held = next(p.used_bytes for p in before.processes or () if p.pid == 1137)
    assert held is not None
    assert before.memory_used_bytes is not None
    assert after.memory_used_bytes == before.memory_used_bytes - held
    assert set(served.processes(0.0).processes) == {537, 559, 734, 795}
    served.fault(CHAT, "none")
    eventually(lambda: not refused(url(served)))
    assert served.nvml(0.0, 0.0).gpus[0] == before


def test_a_dead_engine(served: ReplayServer, clock: Clock) -> None:
    """health503: /health 503, /metrics frozen at the moment of death, only the engine's process gone."""
    clock.now += 90
    before = get(url(served) + "/metrics").content
    served.fault(CHAT, "health503")
    clock.now += 20
    assert get(url(served) + "/health").status_code == 503
    assert get(url(served) + "/metrics").content == before
    assert 1137 not in served.processes(0.0).processes
    assert 1010 in served.processes(0.0).processes
    assert served.position()["servers"][CHAT]["fault"] == "health503"


def test_a_frozen_engine(served: ReplayServer, clock: Clock) -> None:
    """freeze: /health 200, /metrics keeps its values, the engine's process is stopped and computes nothing."""
    clock.now += 90
    before = get(url(served) + "/metrics").content
    served.fault(CHAT, "freeze")
    clock.now += 20
    assert get(url(served) + "/health").status_code == 200
    assert get(url(served) + "/metrics").content == before
    assert served.processes(0.0).processes[1137].state == "T"
    engine = next(p for p in served.nvml(0.0, 0.0).gpus[0].processes or () if p.pid == 1137)
    assert engine.sm_utilization_ratio == 0.0
    served.fault("*", "none")
    assert get(url(served) + "/metrics").content != before


def test_faults_of_the_answer(served: ReplayServer) -> None:
    """500, 401, truncated, malformed, huge, reset and slow answers are what they say."""
    metrics = url(served) + "/metrics"
    good = get(metrics).content
    for mode in ("500", "401"):
        served.fault(CHAT, mode)
        assert get(metrics).status_code == int(mode)
        assert get(url(served) + "/health").status_code == 200
    served.fault(CHAT, "truncate")
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        get(metrics)
    served.fault(CHAT, "malformed")
    bad = get(metrics).content
    assert bad != good
    assert bad.replace(b'vllm:broken{engine="0" 1.0 what is this\n', b"") == good
    served.fault(CHAT, "huge", size=1_000_000)
    assert 990_000 < len(get(metrics).content) <= 1_000_000
    served.fault(CHAT, "reset")
    with pytest.raises(requests.ConnectionError):
        get(metrics)
    served.fault(CHAT, "slow", seconds=0.3)
    begun = time.monotonic()
    assert get(metrics).content == good
    assert time.monotonic() - begun >= 0.3
    served.fault(CHAT, "hang")
    with pytest.raises(requests.ReadTimeout):
        get(metrics, timeout=0.3)


def test_a_fault_can_end_by_itself(served: ReplayServer, clock: Clock) -> None:
    """``lasting`` switches the fault off after that many seconds."""
    answer = post(served.control_url + "/replay/fault", {"server": CHAT, "mode": "kill", "lasting": 5})
    assert answer.json()["servers"][CHAT]["fault"] == "kill"
    eventually(lambda: refused(url(served)))
    clock.now += 6
    eventually(lambda: not refused(url(served)))


def test_every_fault_mode_is_documented() -> None:
    """docs/recordings.md has a row for each mode."""
    text = (Path(__file__).parents[2] / "docs" / "recordings.md").read_text()
    for mode in FAULT_MODES:
        assert f"| `{mode}` |" in text


def test_recorded_ways_of_not_answering() -> None:
    """A recorded timeout is an open port that never answers; a recorded error status comes back."""
    records = [
        Answer(0.0, "a", b"x 1\n"),
        Answer(1.0, "a", b"oops", "text/plain", 503),
        Health(2.0, "a", 503),
        Down(3.0, "a", "timeout"),
        Down(4.0, "a", "reset"),
    ]
    clock = Clock()
    with temporary(records) as path, ReplayServer(path, clock=clock, loop=False) as server:
        base = server.endpoints[0].url
        assert get(base + "/metrics").content == b"x 1\n"
        clock.now += 1.5
        assert get(base + "/metrics").status_code == 503
        clock.now += 1
        assert get(base + "/health").status_code == 503
        clock.now += 1
        with pytest.raises(requests.ReadTimeout):
            get(base + "/metrics", timeout=0.2)
        clock.now += 1
        with pytest.raises(requests.ConnectionError):
            get(base + "/metrics")


def test_a_loop_restarts_every_server(served: ReplayServer, clock: Clock) -> None:
    """After the end the first body comes again, with start times of the new round."""
    first = get(url(served) + "/metrics").content
    clock.now += 299.1
    again = get(url(served) + "/metrics").content
    assert again != first
    assert b"process_start_time_seconds 2.000000299e+09" in again
    assert served.position()["loop"] == 1


def test_the_printed_configuration_is_valid(served: ReplayServer) -> None:
    """What ``config()`` and /replay/config give is accepted by the configuration loader and names every server."""
    settings = parse_config(served.config())
    assert [server.name for server in settings.servers] == ["vllm-reranker", "vllm-embed", CHAT]
    chat = settings.servers[2]
    assert chat.url == url(served)
    assert chat.budget is not None
    assert chat.budget.fraction == 0.06
    assert chat.match is not None
    assert chat.match.port == 8002
    assert settings.nvml.replay == served.control_url
    assert yaml.safe_load(get(served.control_url + "/replay/config").text) == yaml.safe_load(served.config())


def test_two_hundred_copies_at_one_hertz() -> None:
    """Two hundred servers answer three rounds of requests, each in well under a second."""
    slice_path = CAPTURES / "vllm-0.26.0-h200-pressure.vmrec"
    with ReplayServer(slice_path, copies=67, base_port=free_ports(201)) as server:
        assert len(server.endpoints) == 201
        assert len({endpoint.name for endpoint in server.endpoints}) == 201
        assert server.endpoints[3].name == "vllm-reranker-2"
        durations: list[float] = []
        failures: list[object] = []

        def work(part: int) -> None:
            with requests.Session() as session:
                session.trust_env = False
                for _ in range(3):
                    begun = time.monotonic()
                    for endpoint in server.endpoints[part::4]:
                        answer = session.get(endpoint.url + "/metrics", timeout=5)
                        if answer.status_code != 200 or len(answer.content) < 40_000:
                            failures.append(answer)
                    durations.append(time.monotonic() - begun)

        threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    # About 0.3 s on two idle cores; the machine is shared, so the bound is wide.
    assert sorted(durations)[len(durations) // 2] < 3


def test_stopping_gives_the_ports_back() -> None:
    """After stop() nothing listens, no thread is left, and starting twice is a mistake that is told."""
    with temporary([Answer(0.0, "a", b"x 1\n")]) as path:
        server = ReplayServer(path)
        server.start()
        with pytest.raises(ReplayError, match="running already"):
            server.start()
        base, control = server.endpoints[0].url, server.control_url
        server.stop()
        server.stop()
        assert refused(base)
        assert refused(control)
        assert not [thread for thread in threading.enumerate() if thread.name == "replay"]
        with pytest.raises(ReplayError, match="copies"):
            ReplayServer(path, copies=0)


def test_processes_of_a_server_are_found_by_port() -> None:
    """By listening port or --port in the command line, with all descendants; others are left out."""
    table = {
        1: HostProcess(1, 0, 0, "init"),
        10: HostProcess(10, 1, 0, "vllm", ("vllm", "serve", "--port", "8000")),
        11: HostProcess(11, 10, 0, "engine", ("VLLM::EngineCore",)),
        12: HostProcess(12, 11, 0, "worker"),
        20: HostProcess(20, 1, 0, "vllm", ("vllm", "serve", "--port=8001")),
        30: HostProcess(30, 1, 0, "vllm", listening_ports=(8002,)),
    }
    assert server_processes(table, 8000) == ({10}, {11, 12})
    assert server_processes(table, 8001) == ({20}, set())
    assert server_processes(table, 8002) == ({30}, set())
    assert server_processes(table, 9999) == (set(), set())
