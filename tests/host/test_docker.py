"""The container engine's API over a unix socket: facts, secrets, faults, time bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.fake_docker import FakeDocker, container
from fakes.fake_proc import hexid
from vllmeter.host.docker import DockerReader, EngineError, fetch_containers, parse_container
from vllmeter.snapshot import ContainerTable

CHAT, RERANK = hexid("chat"), hexid("rerank")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeDocker]:
    """An engine with two Compose services."""
    engine = FakeDocker(tmp_path)
    engine.documents = [
        container(
            CHAT,
            "demo-chat-1",
            pid=300,
            service="chat",
            ports={
                "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8002"}, {"HostIp": "::", "HostPort": "8002"}],
                "9000/udp": [{"HostIp": "0.0.0.0", "HostPort": "9000"}],
                "7000/tcp": None,
            },
            address="172.18.0.2",
            command=["/models/qwen", "--api-key", "s3cret"],
        ),
        container(RERANK, "demo-rerank-1", pid=310, service="rerank", status="Up 4 seconds"),
        container(hexid("old"), "old", running=False),
    ]
    yield engine
    engine.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait at most five seconds."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_running_containers_with_names_pids_ports_and_labels(engine: FakeDocker) -> None:
    """Everything that attribution uses, and nothing secret."""
    found = fetch_containers(engine.path, 2.0)
    assert set(found) == {CHAT, RERANK}
    chat = found[CHAT]
    assert (chat.name, chat.pid, chat.service) == ("demo-chat-1", 300, "chat")
    assert chat.image == "vllm/vllm-openai:v0.26.0"
    assert chat.command == ("vllm", "serve", "/models/qwen", "--api-key", "***")
    assert chat.published_ports == (("0.0.0.0", 8002, 8000), ("::", 8002, 8000))
    assert chat.addresses == ("172.18.0.2",)
    assert chat.labels == {"com.docker.compose.project": "demo", "com.docker.compose.service": "chat"}
    assert chat.started == pytest.approx(1796126400.5)
    assert "s3cret" not in repr(found)


def test_only_read_requests_of_two_kinds_are_made(engine: FakeDocker) -> None:
    """A read-only proxy that allows GET /containers is enough."""
    fetch_containers(engine.path, 2.0)
    assert set(engine.requests) == {"/containers/json", f"/containers/{CHAT}/json", f"/containers/{RERANK}/json"}


def test_known_containers_are_not_asked_again_unless_young_or_renamed(engine: FakeDocker) -> None:
    """Up for hours under the same name: nothing changed; "Up 4 seconds" may be a restart."""
    first = fetch_containers(engine.path, 2.0)
    engine.requests.clear()
    assert fetch_containers(engine.path, 2.0, first) == first
    assert engine.requests == ["/containers/json", f"/containers/{RERANK}/json"]
    engine.documents[0]["Name"] = "/renamed"
    assert fetch_containers(engine.path, 2.0, first)[CHAT].name == "renamed"


def test_a_container_that_ends_meanwhile_is_left_out(engine: FakeDocker) -> None:
    """404 between list and detail is no fault."""
    engine.handle = lambda path: (404, b"{}") if RERANK in path else None
    assert set(fetch_containers(engine.path, 2.0)) == {CHAT}


FAULTS: dict[str, tuple[Callable[[str], tuple[int, bytes] | None], str]] = {
    "proxy refuses": (lambda path: (403, b"no"), "refuses"),
    "server error": (lambda path: (500, b"no"), "HTTP 500"),
    "no such path": (lambda path: (404, b"no"), "container engine"),
    "html": (lambda path: (200, b"<html>"), "no JSON"),
    "other json": (lambda path: (200, b'{"a": 1}'), "no list"),
    "too large": (lambda path: (200, b"[" + b" " * (9 << 20) + b"]"), "too large"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_words(engine: FakeDocker, name: str) -> None:
    """Every answer that is of no use is named."""
    handle, words = FAULTS[name]
    engine.handle = handle
    with pytest.raises(EngineError, match=words):
        fetch_containers(engine.path, 2.0)


def test_odd_documents_are_skipped(engine: FakeDocker) -> None:
    """Wrong types inside a document never raise."""
    odd = [None, [], "x", {"Id": 5}, {"Id": CHAT}, {"Id": CHAT, "State": {"Running": True}, "Config": [], "Name": None}]
    for document in odd:
        parse_container(document)
    assert parse_container({"Id": CHAT, "State": {"Running": True, "Pid": 0}}) is not None
    listed = json.dumps([1, {"Id": "short"}, {}]).encode()
    engine.handle = lambda path: (200, listed)
    assert fetch_containers(engine.path, 2.0) == {}


def test_no_socket_and_a_dead_socket_are_reasons(tmp_path: Path) -> None:
    """The two usual states of a machine without Docker."""
    with pytest.raises(EngineError, match="no such socket"):
        fetch_containers(str(tmp_path / "none.sock"), 1.0)
    engine = FakeDocker(tmp_path)
    engine.close()
    with pytest.raises(EngineError, match="not running"):
        fetch_containers(engine.path, 1.0)


def test_the_reader_returns_at_once_and_has_the_facts_soon(engine: FakeDocker) -> None:
    """The engine is asked in the background; the first answer is empty with a reason."""
    engine.delay = 0.1
    reader = DockerReader(engine.path, every=0.05)
    begun = time.monotonic()
    table = reader.read(time.monotonic())
    assert time.monotonic() - begun < 0.1
    assert table == ContainerTable({}, "not asked yet")
    assert reader.wait(5.0)
    table = reader.read(time.monotonic())
    assert (set(table.containers), table.reason) == ({CHAT, RERANK}, None)
    reader.close()


def test_a_slow_engine_is_a_reason_and_old_facts_end(engine: FakeDocker, caplog: pytest.LogCaptureFixture) -> None:
    """Bounded in time; what is known stays for a minute with the reason, then it is gone."""
    reader = DockerReader(engine.path, timeout=0.1, every=0.02)
    assert reader.wait(5.0)
    engine.delay = 1.0
    until(lambda: reader.read(time.monotonic()).reason is not None)
    table = reader.read(time.monotonic())
    assert table.reason is not None
    assert "no answer in time" in table.reason
    assert set(table.containers) == {CHAT, RERANK}
    assert reader.read(time.monotonic() + 61.0).containers == {}
    engine.delay = 0.0
    until(lambda: reader.read(time.monotonic()).reason is None)
    reader.close()
    reader.close()
    assert caplog.text.count("no answer in time") == 1


def test_the_first_engine_that_answers_is_used(engine: FakeDocker, tmp_path: Path) -> None:
    """Docker's socket, else Podman's."""
    reader = DockerReader([str(tmp_path / "none.sock"), engine.path])
    assert reader.wait(5.0)
    assert reader.read(time.monotonic()).reason is None
    reader.close()


def test_a_surprise_in_the_thread_is_a_reason() -> None:
    """The thread lives on."""

    def fetch(path: str, timeout: float, known: object) -> dict[str, object]:
        raise KeyError("surprise")

    reader = DockerReader("/x", fetch=fetch)  # type: ignore[arg-type]
    assert reader.wait(5.0)
    assert "KeyError" in (reader.read(time.monotonic()).reason or "")
    reader.close()
