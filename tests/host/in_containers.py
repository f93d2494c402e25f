"""Checks attribution among real containers; run by the test leg of that name, with what to expect as argument.

The processes, namespaces, sockets and the container engine are real; only the driver is a fake, which lists the
engines that a driver would show to this caller: all of them in the host's PID namespace, none in another.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "exporter"), str(ROOT / "tests")]

from fakes.fake_pynvml import FakeDevice, FakePynvml, entry  # noqa: E402
from vllmeter.gpu.reader import NvmlReader  # noqa: E402
from vllmeter.host.discover import discover  # noqa: E402
from vllmeter.host.docker import DockerReader  # noqa: E402
from vllmeter.host.proc import ProcReader  # noqa: E402
from vllmeter.memory.attribute import AttributionResult, MatchRule, ServerFacts, attribute  # noqa: E402
from vllmeter.snapshot import ContainerTable, ProcessTable  # noqa: E402

SIZES = {"chat": 4_000, "rerank": 1_000, "embed": 2_000}
REMAINDER = 500


def look(
    servers: list[ServerFacts], containers: ContainerTable | None, proc: str = "/proc"
) -> tuple[ProcessTable, AttributionResult]:
    """One tick among the real processes."""
    reader = ProcReader(proc)
    table = reader.read(time.monotonic(), [])
    rows = []
    used = sum(SIZES.values()) + REMAINDER if table.host_pid_namespace else 5 << 30
    for process in table.processes.values():
        parent = table.processes.get(process.ppid)
        if process.argv and process.argv[0] == "VLLM::EngineCore" and parent is not None and parent.argv:
            size = next(size for name, size in SIZES.items() if f"/models/{name}" in parent.argv)
            rows.append(entry(process.pid, size))
    if not table.host_pid_namespace:
        rows = []
    reading = NvmlReader(FakePynvml([FakeDevice(used=used, compute=rows)])).read(1.0, 1.0)
    table = reader.read(time.monotonic(), [row.pid for row in rows])
    return table, attribute(reading, table, servers, containers=containers)


def expect(result: AttributionResult, methods: dict[str, str]) -> None:
    """Each server has its own bytes, found by that method, and the parts add up."""
    for name, method in methods.items():
        usage = result.servers[name]
        values = [quantity.value for quantity in usage.used.values()]
        print(f"{name}: {usage.attribution.method} {values} {usage.container}")
        assert usage.attribution.state == "measured", usage.attribution
        assert usage.attribution.method == method, (usage.attribution.method, method)
        assert values == [SIZES[name]], values
    split = next(iter(result.gpus.values()))
    listed = sum(other.used_bytes or 0 for other in split.other) + sum(SIZES[name] for name in methods)
    assert listed == sum(SIZES.values()), split
    assert split.unattributed_bytes == REMAINDER, split


def on_the_host(ports: list[int], socket: str) -> None:
    """Without and with the engine's API: published ports, host network, names, discovery."""
    local = [ServerFacts(name, "127.0.0.1", port) for name, port in zip(SIZES, ports, strict=True)]
    by_port = {"chat": "published_port", "rerank": "published_port", "embed": "listening_port"}
    table, result = look(local, None)
    assert table.host_pid_namespace is True
    expect(result, by_port)
    found = {server.url for server in discover(table).servers}
    assert {f"http://127.0.0.1:{port}" for port in ports} <= found, found

    reader = DockerReader(socket)
    assert reader.wait(10.0)
    containers = reader.read(time.monotonic())
    reader.close()
    assert containers.reason is None, containers.reason
    assert "s3cret" not in repr(containers)
    assert "s3cret" not in repr(table)
    expect(look(local, containers)[1], by_port)
    named = [
        ServerFacts("chat", "192.0.2.1", 1),
        ServerFacts("rerank", "svc-rerank", 1),
        ServerFacts("embed", "192.0.2.1", 1, match=MatchRule(container="vllmeter-embed")),
    ]
    expect(
        look(named, containers)[1],
        {"chat": "compose_service", "rerank": "container_name", "embed": "match_container"},
    )
    names = {server.name for server in discover(table, containers).servers}
    assert {"chat", "svc-rerank", "vllmeter-embed"} <= names, names


def in_a_container(proc: str) -> None:
    """In a PID namespace of its own nothing can be attributed, and the reason says what to do."""
    table, result = look([ServerFacts("chat", "127.0.0.1", 1)], None, proc)
    attribution = result.servers["chat"].attribution
    print(attribution)
    assert table.host_pid_namespace is False
    assert attribution.state == "unavailable"
    assert "pid: host" in attribution.reason
    assert next(iter(result.gpus.values())).unattributed_bytes is None
    assert ("mounted" in attribution.reason) is (proc != "/proc")


def with_pid_host(address: str) -> None:
    """As a neighbour in the containers' network, with the host's pids: by the address that the scrape goes to."""
    table, result = look([ServerFacts("chat", "chat.example", 8000, addresses=(address,))], None)
    assert table.host_pid_namespace is True
    expect(result, {"chat": "listening_port"})


if __name__ == "__main__":
    situation, *arguments = sys.argv[1:]
    if situation == "host":
        on_the_host([int(port) for port in arguments[:3]], arguments[3])
    elif situation == "own-namespace":
        in_a_container(arguments[0])
    else:
        with_pid_host(arguments[0])
    print(f"{situation}: right")
