"""Log following: files, rotation, Docker's JSON and API, the journal, and whole servers through LogWatch."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllmeter.config.settings import Log
from vllmeter.host.logs import (
    DockerApiSource,
    DockerFileSource,
    FileSource,
    JournalSource,
    LogWatch,
    source_of,
)
from vllmeter.memory.startup_log import Failure, StartupFacts

REAL = Path(__file__).resolve().parents[1] / "captures" / "logs" / "vllm-0.26.0__h200__chat-two-starts.log"


def test_a_file_is_followed_line_by_line(tmp_path: Path) -> None:
    """Only complete lines come out, each once."""
    path = tmp_path / "v.log"
    path.write_bytes(b"one\ntw")
    source = FileSource(path)
    assert source.poll(0) == ["one"]
    assert source.reason is None
    with path.open("ab") as out:
        out.write(b"o\r\nthree\n\xff\n")
    assert source.poll(1) == ["two", "three", "\ufffd"]
    assert source.poll(2) == []
    source.close()


def test_a_renamed_log_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    """logrotate and Docker rename: lines written to the old file before we looked again are not lost."""
    path = tmp_path / "v.log"
    path.write_text("a\n")
    source = FileSource(path)
    assert source.poll(0) == ["a"]
    with path.open("a") as old:
        path.rename(tmp_path / "v.log.1")
        old.write("b\n")
        old.flush()
        assert source.poll(1) == ["b"]  # the new file does not exist yet
        old.write("c\n")
        old.flush()
        path.write_text("d\n")
        assert source.poll(2) == ["c", "d"]
    source.close()


def test_a_truncated_log_begins_anew(tmp_path: Path) -> None:
    """copytruncate: the same file, shorter: reading starts at its beginning and forgets the unfinished line."""
    path = tmp_path / "v.log"
    path.write_text("first line\nunfinished")
    source = FileSource(path)
    assert source.poll(0) == ["first line"]
    path.write_text("x\n")
    assert source.poll(1) == ["x"]
    source.close()


def test_the_rotated_predecessor_is_read_first(tmp_path: Path) -> None:
    """The start may stand in PATH.1 when the exporter begins later."""
    (tmp_path / "v.log.1").write_text("start\n")
    (tmp_path / "v.log").write_text("later\n")
    source = FileSource(tmp_path / "v.log")
    assert source.poll(0) + source.poll(1) == ["start", "later"]
    source.close()


def test_what_cannot_be_read_is_a_reason_and_works_later(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe: a reason each; when the file appears it is read."""
    path = tmp_path / "v.log"
    source = FileSource(path)
    assert source.poll(0) == []
    assert "No such file" in (source.reason or "")
    path.write_text("now\n")
    assert source.poll(1) == ["now"]
    assert source.reason is None
    source.close()
    folder = FileSource(tmp_path)
    assert folder.poll(0) == []
    assert folder.reason
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    blocked = FileSource(pipe)
    assert blocked.poll(0) == []
    assert "no regular file" in (blocked.reason or "")


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A megabyte without a line end is dropped, what follows is read."""
    path = tmp_path / "v.log"
    path.write_bytes(b"x" * (3 << 20))
    source = FileSource(path)
    assert source.poll(0) == []
    with path.open("ab") as out:
        out.write(b"\nnext\n")
    assert source.poll(1)[-1] == "next"
    source.close()


def test_docker_json_and_cri_lines_are_unwrapped(tmp_path: Path) -> None:
    """Docker's JSON and Kubernetes' text form, with lines cut into pieces, give the original lines."""
    path = tmp_path / "v.log"
    path.write_text(
        json.dumps({"log": "one\n", "stream": "stderr", "time": "t"})
        + "\n"
        + json.dumps({"log": "a long ", "stream": "stderr"})
        + "\n"
        + json.dumps({"log": "line\n", "stream": "stderr"})
        + "\n"
        + '{"log": broken\n'
        + "2026-12-01T12:00:00.1Z stderr P cut \n2026-12-01T12:00:00.2Z stderr F here\n"
    )
    source = FileSource(path)
    assert source.poll(0) == ["one", "a long line", '{"log": broken', "cut here"]
    source.close()


def container(root: Path, identity: str, name: str, started: str, text: str, driver: str = "json-file") -> None:
    folder = root / identity
    folder.mkdir(parents=True)
    config = {
        "Name": "/" + name,
        "State": {"StartedAt": started},
        "Config": {"Labels": {"com.docker.compose.service": name.rsplit("-", maxsplit=1)[-1]}},
    }
    (folder / "config.v2.json").write_text(json.dumps(config))
    (folder / "hostconfig.json").write_text(json.dumps({"LogConfig": {"Type": driver}}))
    lines = "".join(json.dumps({"log": line + "\n"}) + "\n" for line in text.split("|"))
    (folder / f"{identity}-json.log").write_text(lines)


def test_docker_logs_are_found_by_name_service_or_id(tmp_path: Path) -> None:
    """Name, Compose service and id lead to the newest container; a recreated one is found again."""
    container(tmp_path, "a" * 64, "rag-qwen", "2026-12-01T10:00:00Z", "old")
    for name in ("rag-qwen", "qwen", "a" * 12):
        source = DockerFileSource(name, tmp_path)
        assert source.poll(0) == ["old"], name
        source.close()
    source = DockerFileSource("rag-qwen", tmp_path)
    assert source.poll(0) == ["old"]
    container(tmp_path, "b" * 64, "rag-qwen", "2026-12-01T11:00:00Z", "new")
    assert source.poll(5) == []
    assert source.poll(11) == ["new"]
    assert source.reason is None
    source.close()


def test_docker_logs_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    """No such container, another log driver, no folder: each with what to do."""
    container(tmp_path, "a" * 64, "x", "t", "l", driver="journald")
    source = DockerFileSource("x", tmp_path)
    assert source.poll(0) == []
    assert "journald" in (source.reason or "")
    missing = DockerFileSource("nope", tmp_path)
    assert missing.poll(0) == []
    assert "no container 'nope'" in (missing.reason or "")
    nowhere = DockerFileSource("x", tmp_path / "gone")
    assert nowhere.poll(0) == []
    assert "docker.socket" in (nowhere.reason or "")


# --------------------------------------------------------------------------- Docker API


class FakeDocker:
    """A Docker engine on a unix socket that answers what the log source asks."""

    def __init__(self, path: Path) -> None:
        self.started = "2026-12-01T12:00:00.5Z"
        self.identity = "c" * 64
        self.lines: list[tuple[str, str]] = []
        self.tty = False
        self.asked: list[str] = []
        self.status = 200
        self.by_service = False
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(5)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = connection.recv(4096)
                    if not piece:
                        break
                    request += piece
                path = request.split(b" ", 2)[1].decode()
                self.asked.append(path)
                status, body = self._answer(path)
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)

    def _answer(self, path: str) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b"{}"
        if path.startswith("/containers/json"):
            return 200, json.dumps([{"Id": self.identity}]).encode()
        if "/logs" in path:
            out = b""
            for stamp, line in self.lines:
                payload = f"{stamp} {line}\n".encode()
                out += payload if self.tty else b"\x02\0\0\0" + len(payload).to_bytes(4, "big") + payload
            return 200, out
        if self.by_service and self.identity not in path:
            return 404, b"{}"
        data = {"Id": self.identity, "State": {"StartedAt": self.started}, "Config": {"Tty": self.tty}}
        return 200, json.dumps(data).encode()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[tuple[FakeDocker, str]]:
    path = tmp_path / "d.sock"
    engine = FakeDocker(path)
    yield engine, str(path)
    engine.close()


@pytest.mark.parametrize("tty", [False, True])
def test_logs_over_the_docker_api(docker: tuple[FakeDocker, str], tty: bool) -> None:
    """From the container's start on, each line once, multiplexed or from a terminal."""
    engine, path = docker
    engine.tty = tty
    engine.lines = [("2026-12-01T12:00:00.600000000Z", "one"), ("2026-12-01T12:00:01.000000000Z", "two words")]
    source = DockerApiSource("x", path)
    assert source.poll(0) == ["one", "two words"]
    assert source.reason is None
    # since = the start (12:00:00.5 UTC), asked from just before it
    assert "since=1796126400.499999999" in engine.asked[-1]
    engine.lines.append(("2026-12-01T12:00:02.000000000Z", "three"))
    assert source.poll(1) == []
    assert source.poll(4) == ["three"]
    assert "since=1796126401.000000000" in engine.asked[-1]


def test_a_restarted_container_is_read_from_its_new_start(docker: tuple[FakeDocker, str]) -> None:
    """Another start time begins anew, whatever was read before."""
    engine, path = docker
    engine.lines = [("2026-12-01T12:00:01.000000000Z", "one")]
    source = DockerApiSource("x", path)
    assert source.poll(0) == ["one"]
    engine.started = "2026-12-01T13:00:00.000000001+01:00"
    engine.lines = [("2026-12-01T12:00:00.9Z", "again")]
    assert source.poll(10) == ["again"]


def test_a_compose_service_is_found_over_the_api(docker: tuple[FakeDocker, str]) -> None:
    """A name that is no container is looked up as a Compose service."""
    engine, path = docker
    engine.by_service = True
    engine.lines = [("2026-12-01T12:00:01.000000000Z", "one")]
    assert DockerApiSource("qwen", path).poll(0) == ["one"]
    assert any("com.docker.compose.service%3Dqwen" in asked for asked in engine.asked)


def test_an_engine_that_refuses_or_is_absent_is_a_reason(docker: tuple[FakeDocker, str], tmp_path: Path) -> None:
    """Status 500 and no socket at all: reasons, not exceptions."""
    engine, path = docker
    engine.status = 500
    source = DockerApiSource("x", path)
    assert source.poll(0) == []
    assert "status 500" in (source.reason or "")
    absent = DockerApiSource("x", str(tmp_path / "gone.sock"))
    assert absent.poll(0) == []
    assert "No such file" in (absent.reason or "")


# --------------------------------------------------------------------------- journal


def fake_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def poll_until(source: Any, wanted: int, seconds: float = 5.0) -> list[str]:
    lines: list[str] = []
    deadline = time.monotonic() + seconds
    while len(lines) < wanted and time.monotonic() < deadline:
        lines += source.poll(time.monotonic())
        time.sleep(0.02)
    return lines


def test_the_journal_gives_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages as text or as bytes, several lines in one entry, rubbish between; the unit is one argument."""
    entries = [
        {"MESSAGE": "one", "__CURSOR": "c1"},
        {"MESSAGE": "two\nthree"},
        {"MESSAGE": [255, 97]},
        {"MESSAGE": None},
        [1],
    ]
    text = "\n".join(json.dumps(entry) for entry in entries) + "\nrubbish"
    (tmp_path / "out").write_text(text + "\n")
    fake_journalctl(tmp_path, monkeypatch, f"cat {tmp_path}/out; sleep 60")
    source = JournalSource("vllm-a.service")
    assert poll_until(source, 4) == ["one", "two", "three", "\ufffda"]
    assert source.reason is None
    source.close()
    assert "--unit=vllm-a.service" in (tmp_path / "arguments").read_text()


def test_a_journal_that_ends_is_started_again_behind_its_last_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When journalctl ends, it is started again after a while and goes on at the cursor."""
    (tmp_path / "out").write_text(json.dumps({"MESSAGE": "one", "__CURSOR": "c;1"}) + "\n")
    fake_journalctl(tmp_path, monkeypatch, f"cat {tmp_path}/out")
    source = JournalSource("u", every=0.1)
    assert poll_until(source, 2)[:2] == ["one", "one"]
    source.close()
    first, second = (tmp_path / "arguments").read_text().splitlines()[:2]
    assert "--lines=all" in first
    assert "--after-cursor=c;1" in second


def test_no_journalctl_is_a_reason() -> None:
    """In a container without systemd the reason says where to run."""
    source = JournalSource("u", command="no-such-program-here")
    assert source.poll(0) == []
    assert "run the exporter on the host" in (source.reason or "")


# --------------------------------------------------------------------------- LogWatch


def test_sources_follow_the_setting(tmp_path: Path) -> None:
    """file, journal, docker with and without the API."""
    assert isinstance(source_of(Log(file=tmp_path)), FileSource)
    assert isinstance(source_of(Log(journal="u")), JournalSource)
    assert isinstance(source_of(Log(docker="c")), DockerFileSource)
    assert isinstance(source_of(Log(docker="c"), docker_socket=tmp_path), DockerApiSource)


def test_facts_of_a_real_log_arrive_and_follow_a_restart(tmp_path: Path) -> None:
    """The recorded log, written in two parts: facts of the first start, then of the second."""
    lines = REAL.read_text().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if n and line.startswith("CMD"))
    path = tmp_path / "v.log"
    path.write_text("".join(lines[:cut]))
    seen: list[tuple[str, StartupFacts, Failure | None]] = []
    watch = LogWatch(lambda *facts: seen.append(facts))
    watch.apply({"chat": Log(file=path), "none": None})
    watch.poll(0)
    name, facts, failure = seen[-1]
    assert (name, facts.number, facts.ready, failure) == ("chat", 1, True, None)
    count = len(seen)
    watch.poll(1)
    assert len(seen) == count  # nothing new, nothing reported
    with path.open("a") as out:
        out.write("".join(lines[cut:]))
    watch.poll(2)
    assert seen[-1][1].number == 2
    assert seen[-1][1].workers[0].pid == 1851
    assert watch.reason("chat") is None
    watch.stop()


def test_changed_settings_are_taken_over_and_reasons_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that goes is not followed any more; an unreadable log is one line, not one per second."""
    watch = LogWatch(lambda *_: None)
    watch.apply({"a": Log(file=tmp_path / "gone.log")})
    with caplog.at_level("WARNING", logger="vllmeter.logs"):
        for now in range(3):
            watch.poll(now)
    assert len(caplog.records) == 1
    assert "server=a" in caplog.text
    assert "No such file" in (watch.reason("a") or "")
    watch.apply({})
    assert watch.reason("a") is None


def test_the_thread_polls_and_stops(tmp_path: Path) -> None:
    """start() follows by itself, stop() ends the thread."""
    path = tmp_path / "v.log"
    path.write_text("(EngineCore pid=1) INFO Available KV cache memory: 2.0 GiB\n")
    arrived = threading.Event()
    watch = LogWatch(lambda *_: arrived.set(), every=0.02)
    watch.apply({"a": Log(file=path)})
    watch.start()
    assert arrived.wait(5)
    watch.stop()
