"""Finding the servers of a host from its processes, and saying what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes.fake_proc import hexid
from vllmeter.host.discover import Discovery, discover
from vllmeter.snapshot import ContainerFacts, ContainerTable, HostProcess, ProcessTable

HOST = 1
BRIDGE = 2


def serve(pid: int, *arguments: str, ports: tuple[int, ...] | None = (), **more: Any) -> HostProcess:
    """A `vllm serve` process in the host's network."""
    process = HostProcess(
        pid,
        0,
        pid,
        "vllm",
        argv=("/venv/bin/python3", "/venv/bin/vllm", "serve", *arguments),
        listening_ports=ports,
        net_namespace=HOST,
    )
    return replace(process, **more)


def look(*processes: HostProcess, containers: Sequence[ContainerFacts] = (), **more: Any) -> Discovery:
    """Discover among these processes."""
    table = ProcessTable(1.0, {process.pid: process for process in processes}, net_namespace=HOST, **more)
    return discover(table, ContainerTable({one.id: one for one in containers}))


def test_three_servers_of_the_real_host() -> None:
    """The users' three servers: names from the served model, URLs from the ports that they listen on."""
    found = look(
        serve(1, "/models/r", "--served-model-name", "bge-reranker-base", "--port", "8000", ports=(8000,)),
        serve(2, "/models/bge-m3", "--port", "8001", ports=(8001, 41000)),
        serve(3, "/models/Qwen3-1.7B", "--host", "0.0.0.0", "--port=8002", ports=(8002,)),
    )
    assert [(one.name, one.url, one.method) for one in found.servers] == [
        ("bge-reranker-base", "http://127.0.0.1:8000", "listening"),
        ("bge-m3", "http://127.0.0.1:8001", "listening"),
        ("Qwen3-1.7B", "http://127.0.0.1:8002", "listening"),
    ]
    assert found.skipped == ()
    assert found.lines()[0].startswith("found bge-reranker-base at http://127.0.0.1:8000: pid 1")


@pytest.mark.parametrize(
    ("arguments", "ports", "url"),
    [
        (("m",), (8000,), "http://127.0.0.1:8000"),
        (("m", "--host", "192.0.2.7", "--port", "9"), (9,), "http://192.0.2.7:9"),
        (("m", "--host", "::"), (8000,), "http://[::1]:8000"),
        (("m", "--host", "::1"), (8000,), "http://[::1]:8000"),
        (("m", "--ssl-certfile", "c", "--ssl-keyfile", "k"), (8000,), "https://127.0.0.1:8000"),
        (("m", "--config", "x.yaml"), (8123, 45123), "http://127.0.0.1:8123"),
        (("m", "--port", "8005"), None, "http://127.0.0.1:8005"),
    ],
)
def test_urls(arguments: tuple[str, ...], ports: tuple[int, ...] | None, url: str) -> None:
    """Bound address, TLS, a port from a config file, and hidden sockets."""
    assert [one.url for one in look(serve(1, *arguments, ports=ports)).servers] == [url]


@pytest.mark.parametrize(
    ("arguments", "ports", "words"),
    [
        (("m", "--uds", "/run/v.sock"), (), "unix socket"),
        (("m", "--headless"), (), "headless"),
        (("m", "--port", "8005"), (), "does not listen yet"),
        (("m", "--port", "8005"), (8100, 8200), "8100, 8200"),
    ],
)
def test_what_cannot_be_used_is_skipped_with_the_reason(
    arguments: tuple[str, ...], ports: tuple[int, ...], words: str
) -> None:
    """Nothing is left out silently."""
    found = look(serve(1, *arguments, ports=ports))
    assert found.servers == ()
    assert words in found.skipped[0].reason
    assert words in found.lines()[0]


def test_children_with_the_same_arguments_are_not_servers() -> None:
    """Old releases fork: the topmost process is the server."""
    child = serve(2, "m", ports=(8000,), ppid=1)
    found = look(serve(1, "m", ports=(8000,), ppid=0), child)
    assert [one.pid for one in found.servers] == [1]


def test_equal_names_get_their_ports() -> None:
    """Two instances of one model."""
    found = look(serve(1, "m", "--port", "1", ports=(1,)), serve(2, "m", "--port", "2", ports=(2,)))
    assert [one.name for one in found.servers] == ["m-1", "m-2"]


def test_two_processes_at_one_url_are_one_server() -> None:
    """Hidden sockets and the default port: the one that is seen listening is kept."""
    found = look(serve(1, "a", ports=None), serve(2, "b", ports=(8000,)))
    assert [one.pid for one in found.servers] == [2]
    assert "pid 2 has http://127.0.0.1:8000 too" in found.skipped[0].reason


CHAT = ContainerFacts(
    hexid("chat"),
    "demo-chat-1",
    labels={"com.docker.compose.service": "chat"},
    published_ports=(("0.0.0.0", 8002, 8000),),
    addresses=("172.18.0.2",),
)


def inside(**more: Any) -> HostProcess:
    """A server in a container with a network of its own."""
    values: dict[str, Any] = {"container_id": CHAT.id, "net_namespace": BRIDGE} | more
    return serve(1, "/m/qwen", ports=(8000,), **values)


def test_a_published_port_is_used_and_the_service_names_the_server() -> None:
    """Docker's API tells the way in."""
    found = look(inside(), containers=[CHAT]).servers[0]
    assert (found.name, found.url, found.method, found.container) == (
        "chat",
        "http://127.0.0.1:8002",
        "published",
        "demo-chat-1",
    )


def test_an_unpublished_container_is_reached_by_its_address() -> None:
    """It works, and the note says that the address changes."""
    found = look(inside(), containers=[replace(CHAT, published_ports=())]).servers[0]
    assert (found.url, found.method) == ("http://172.18.0.2:8000", "container")
    assert "changes" in found.note


def test_without_docker_the_proxy_or_the_namespace_leads_in() -> None:
    """docker-proxy's arguments, else the addresses of its network namespace."""
    spaces = {BRIDGE: ("127.0.0.1", "fe80::1", "172.18.0.2")}
    proxy = HostProcess(
        9, 1, 9, "docker-proxy",
        argv=("docker-proxy", "-proto", "tcp", "-host-ip", "127.0.0.1", "-host-port", "8002",
              "-container-ip", "172.18.0.2", "-container-port", "8000"),
    )  # fmt: skip
    found = look(inside(), proxy, namespace_addresses=spaces).servers[0]
    assert (found.url, found.method) == ("http://127.0.0.1:8002", "published")
    found = look(inside(), namespace_addresses=spaces).servers[0]
    assert (found.url, found.name) == ("http://172.18.0.2:8000", "qwen")


def test_podmans_monitor_holds_the_published_port() -> None:
    """conmon names the container; with two published ports it cannot tell which is which."""
    monitor = HostProcess(8, 0, 8, "conmon", argv=("conmon", "-c", CHAT.id), listening_ports=(8002,))
    assert look(inside(), monitor).servers[0].url == "http://127.0.0.1:8002"
    two = replace(monitor, listening_ports=(8002, 9002))
    assert look(inside(), two, namespace_addresses={BRIDGE: ("10.88.0.4",)}).servers[0].url == "http://10.88.0.4:8000"


def test_a_container_that_cannot_be_reached_is_skipped_with_the_remedy() -> None:
    """Neither Docker's API nor its namespace can be seen."""
    found = look(inside(net_namespace=None, listening_ports=None))
    assert "docker.socket" in found.skipped[0].reason


def test_what_limits_the_look_is_said() -> None:
    """Own PID namespace, hidden processes, a container engine that does not answer; and that nothing was found."""
    table = ProcessTable(1.0, {}, host_pid_namespace=False, reason="hidepid")
    found = discover(table, ContainerTable({}, "there is no such socket"))
    assert found.servers == ()
    text = "\n".join(found.lines())
    for words in ("hidepid", "pid: host", "no such socket", "no `vllm serve` process"):
        assert words in text


def test_a_unit_names_its_server() -> None:
    """vllm-chat.service is a better name than a path."""
    assert look(serve(1, "/m/q", ports=(8000,), unit="vllm-chat.service")).servers[0].name == "vllm-chat"
    assert look(serve(1, "/m/q", ports=(8000,), unit="ssh.service")).servers[0].name == "q"
