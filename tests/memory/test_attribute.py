"""Whose memory is it: every set-up that users have, in a table of made-up hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory.attribution_world import (
    GIB,
    HOST_NET,
    INIT,
    MIB,
    compose,
    container,
    engine,
    estimate,
    facts,
    gpu,
    in_container,
    matched,
    nvml,
    others,
    process,
    server,
    split,
    table,
    used,
)
from vllmeter.evidence import evidence_of
from vllmeter.memory.attribute import MISFIT_BYTES, IdentityMemory, misfit
from vllmeter.snapshot import ContainerTable, GpuProcess, HostProcess, NvmlReading, Quantity

# --------------------------------------------------------------------------- bare processes


def test_three_servers_by_their_ports() -> None:
    """Each engine belongs to the server above it; the remainder is what no process holds."""
    result = split(
        nvml(gpu([(11, 1 * GIB), (21, 2 * GIB), (31, 5 * GIB)])),
        table(server(10, 8000), engine(11, 10), server(20, 8001), engine(21, 20), server(30, 8002), engine(31, 30)),
        facts("rerank", 8000),
        facts("m3", 8001),
        facts("chat", 8002),
    )
    assert used(result, "rerank") == {"GPU-0": 1 * GIB}
    assert used(result, "m3") == {"GPU-0": 2 * GIB}
    assert used(result, "chat") == {"GPU-0": 5 * GIB}
    usage = result.servers["chat"]
    assert (usage.attribution.state, usage.attribution.method) == ("measured", "listening_port")
    assert usage.attribution.pids == (31,)
    assert usage.used["GPU-0"].source == "nvml"
    assert usage.root == (30, 1030)
    assert usage.identity == {(30, 1030), (31, 1031)}
    assert usage.argv is not None
    assert result.gpus["GPU-0"].unattributed_bytes == 20 * MIB
    assert result.gpus["GPU-0"].other == ()


def test_the_same_model_three_times_is_told_apart() -> None:
    """Equal arguments but the port: never a guess by model name."""
    same = ("--served-model-name", "qwen")
    result = split(
        nvml(gpu([(11, GIB), (21, 2 * GIB)])),
        table(server(10, 8000, *same), engine(11, 10), server(20, 8001, *same), engine(21, 20)),
        facts("a", 8000, model_names=("qwen",)),
        facts("b", 8001, model_names=("qwen",)),
    )
    assert (used(result, "a"), used(result, "b")) == ({"GPU-0": GIB}, {"GPU-0": 2 * GIB})


def test_tensor_parallel_workers_on_several_gpus_are_one_server() -> None:
    """The workers hold the memory, the engine core none; one row per card."""
    result = split(
        nvml(gpu([(12, 30 * GIB)]), gpu([(13, 31 * GIB)], index=1)),
        table(server(10, 8000), engine(11, 10), engine(12, 11, "VLLM::Worker_TP0"), engine(13, 11, "VLLM::Worker_TP1")),
        facts("big", 8000),
    )
    assert used(result, "big") == {"GPU-0": 30 * GIB, "GPU-1": 31 * GIB}
    roles = {role.role: role.processes for role in result.servers["big"].roles}
    assert roles == {"api_server": 1, "engine_core": 1, "worker": 2}


def test_data_parallel_and_several_api_servers_are_one_server() -> None:
    """All engines and API servers hang below one process and share its socket; decoders in API servers count too."""
    result = split(
        nvml(gpu([(14, 10 * GIB), (15, 11 * GIB), (11, 300 * MIB)])),
        table(
            server(10, 8000),
            engine(11, 10, "VLLM::APIServer_0", listening_ports=(8000,)),
            engine(12, 10, "VLLM::APIServer_1", listening_ports=(8000,)),
            engine(13, 10, "VLLM::DPCoordinator"),
            engine(14, 10, "VLLM::EngineCore_DP0"),
            engine(15, 10, "VLLM::EngineCore_DP1"),
        ),
        facts("dp", 8000),
    )
    assert used(result, "dp") == {"GPU-0": 21 * GIB + 300 * MIB}
    roles = {role.role: role.processes for role in result.servers["dp"].roles}
    assert roles == {"api_server": 3, "engine_core": 2, "other": 1}


def test_an_engine_in_the_server_process_itself() -> None:
    """V0 without multiprocessing: the API server holds the memory."""
    result = split(nvml(gpu([(10, 3 * GIB)])), table(server(10, 8000)), facts("old", 8000))
    assert used(result, "old") == {"GPU-0": 3 * GIB}


def test_forked_children_of_old_releases_carry_the_same_arguments() -> None:
    """Before 0.10.1 a child shows its parent's command line; the topmost is the server."""
    child = server(11, 8000, ppid=10)
    result = split(nvml(gpu([(11, 3 * GIB)])), table(server(10, 8000), child), facts("old", 8000))
    assert used(result, "old") == {"GPU-0": 3 * GIB}
    assert {role.role for role in result.servers["old"].roles} == {"api_server", "engine_core"}


def test_a_program_that_embeds_vllm_is_found_by_its_port() -> None:
    """Own front ends start an engine core too; its creator lives, so it is no orphan."""
    result = split(
        nvml(gpu([(11, 3 * GIB)])),
        table(process(10, 1, ("python3", "my_api.py"), listening_ports=(8000,)), engine(11, 10)),
        facts("own", 8000),
    )
    assert used(result, "own") == {"GPU-0": 3 * GIB}


def test_a_wrapper_above_the_server_does_not_matter() -> None:
    """`uv run vllm serve`, `timeout`, a shell script."""
    result = split(
        nvml(gpu([(12, 3 * GIB)])),
        table(
            process(9, 1, ("bash", "start.sh")),
            process(10, 9, ("uv", "run", "vllm", "serve")),
            server(11, 8000, ppid=10),
            engine(12, 11),
        ),
        facts("x", 8000),
    )
    assert used(result, "x") == {"GPU-0": 3 * GIB}


def test_two_servers_below_one_supervisor_stay_apart() -> None:
    """Only what is below each server counts."""
    result = split(
        nvml(gpu([(21, 1 * GIB), (31, 2 * GIB)])),
        table(
            process(9, 1, ("python3", "/usr/bin/supervisord")),
            server(20, 8000, ppid=9),
            engine(21, 20),
            server(30, 8001, ppid=9),
            engine(31, 30),
        ),
        facts("a", 8000),
        facts("b", 8001),
    )
    assert (used(result, "a"), used(result, "b")) == ({"GPU-0": GIB}, {"GPU-0": 2 * GIB})


# --------------------------------------------------------------------------- other programs, orphans, reuse


def test_other_programs_are_listed_by_name() -> None:
    """Desktop, training, an unconfigured server, the MPS server, and what is not visible at all."""
    result = split(
        nvml(gpu([(11, GIB), (50, 300), (51, 400), (52, 500), (61, 600), (70, 700), (999, 800)])),
        table(
            server(10, 8000),
            engine(11, 10),
            process(50, 1, ("/usr/lib/xorg/Xorg", ":0")),
            process(51, 1, ("python3", "train.py", "--secret-thing")),
            process(52, 1, ("python3", "train.py")),
            server(60, 8009, "--served-model-name", "stray"),
            engine(61, 60),
            process(70, 1, ("nvidia-cuda-mps-server",), "nvidia-cuda-mps"),
        ),
        facts("a", 8000),
    )
    assert others(result) == {
        ("Xorg", False): 300,
        ("python train.py", False): 900,
        ("vllm serve stray", False): 600,
        ("mps-server", False): 700,
        ("unknown", False): 800,
    }
    detail = {row.program: row.detail for row in result.gpus["GPU-0"].other}
    assert "port 8009" in detail["vllm serve stray"]


@pytest.mark.parametrize("adopter", [None, "shell", "tini", "systemd --user"])
def test_an_orphaned_engine_is_reported_with_its_memory(adopter: str | None) -> None:
    """Its API server was killed; the engine lives on below an init, a shell or a subreaper and keeps the memory."""
    parents = {
        "shell": process(5, 1, ("bash", "start.sh")),
        "tini": process(5, 1, ("/sbin/tini", "--"), "tini"),
        "systemd --user": process(5, 1, ("/lib/systemd/systemd", "--user"), "systemd"),
    }
    parent = [parents[adopter]] if adopter else []
    result = split(
        nvml(gpu([(11, 4 * GIB), (12, GIB), (21, GIB)])),
        table(
            *parent,
            engine(11, 5 if parent else 1, "VLLM::EngineCore"),
            engine(12, 11, "VLLM::Worker_TP0"),
            server(20, 8001),
            engine(21, 20),
        ),
        facts("alive", 8001),
        facts("dead", 8000),
    )
    assert others(result) == {("vllm engine", True): 5 * GIB}
    assert used(result, "alive") == {"GPU-0": GIB}
    assert result.servers["dead"].attribution.state == "unavailable"
    assert any("orphaned" in finding for finding in result.findings)


def test_an_orphan_in_the_container_of_its_successor_is_not_counted_for_it() -> None:
    """A supervisor restarts the server inside the container while the old engine still holds memory."""
    home = {name: in_container("chat", name) for name in (9, 10, 11, 13)}
    result = split(
        nvml(gpu([(11, 4 * GIB), (13, 5 * GIB)])),
        table(
            process(9, 1, ("/sbin/tini",), "tini", **home[9]),
            server(10, 8000, ppid=9, **(home[10] | {"namespace_pids": (10, 7)})),
            engine(11, 10, **home[11]),
            engine(13, 9, **(home[13] | {"namespace_pids": (13, 5)})),
        ),
        facts("chat", 8002),
        containers=[container("chat", published_ports=(("0.0.0.0", 8002, 8000),))],
    )
    assert used(result, "chat") == {"GPU-0": 4 * GIB}
    assert others(result) == {("vllm engine", True): 5 * GIB}


def test_an_untitled_orphan_is_known_from_before() -> None:
    """Releases without titles: what was below a server and outlives it is its orphan, and says whose."""
    child = process(11, 10, ("python3", "-c", "spawn_main"))
    reading = nvml(gpu([(11, 3 * GIB)]))
    first = split(reading, table(server(10, 8000), child), facts("a", 8000))
    second = split(reading, table(replace(child, ppid=1), at=2.0), facts("a", 8000), memory=first.memory)
    assert others(second) == {("vllm engine", True): 3 * GIB}
    assert "was part of a" in second.gpus["GPU-0"].other[0].detail
    # It stays an orphan when a new server has taken the port
    third_table = table(replace(child, ppid=1), server(20, 8000), engine(21, 20), at=3.0)
    third = split(nvml(gpu([(11, 3 * GIB), (21, GIB)])), third_table, facts("a", 8000), memory=second.memory)
    fourth = split(nvml(gpu([(11, 3 * GIB), (21, GIB)])), third_table, facts("a", 8000), memory=third.memory)
    assert others(third) == others(fourth) == {("vllm engine", True): 3 * GIB}
    assert used(fourth, "a") == {"GPU-0": GIB}


def test_an_orphan_without_gpu_memory_is_named_as_well() -> None:
    """On a CPU, or when the driver shows no processes: /proc alone knows the engine that outlived its API server."""
    down = NvmlReading(1.0, 1.0, up=False, reason="library_not_found")
    world = (engine(11, 10, state="S"), engine(12, 11, "VLLM::Worker", state="S"))
    first = split(down, table(server(10, 8000), *world), facts("a", 8000))
    assert first.servers["a"].left_over == frozenset()
    left = (replace(world[0], ppid=1), world[1])
    second = split(down, table(*left, at=2.0), facts("a", 8000), memory=first.memory)
    assert {pid for pid, _ in second.servers["a"].left_over} == {11, 12}
    assert second.findings == ("a: its API server died, its engine processes live on (pid 11, 12); end them by pid",)
    known = evidence_of(second.servers["a"], table(*left), gpu_pids=(), own_connections=0, had_engine=False)
    assert (known.api_alive, known.engine_states) == (False, ("S", "S"))
    # A successor does not get them; when they have ended, nothing is left to say
    third = split(down, table(*left, server(20, 8000), at=3.0), facts("a", 8000), memory=second.memory)
    assert {pid for pid, _ in third.servers["a"].left_over} == {11, 12}
    assert {pid for pid, _ in third.servers["a"].identity} == {20}
    fourth = split(down, table(server(20, 8000), at=4.0), facts("a", 8000), memory=third.memory)
    assert fourth.findings == ()
    assert fourth.servers["a"].left_over == frozenset()


def test_a_reused_pid_does_not_inherit_an_owner() -> None:
    """The start time says that it is another process."""
    reading = nvml(gpu([(11, 3 * GIB)]))
    first = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000))
    stranger = replace(process(11, 1, ("python3", "train.py")), start_ticks=77)
    second = split(reading, table(server(10, 8000), stranger, at=2.0), facts("a", 8000), memory=first.memory)
    assert used(second, "a") == {}
    assert others(second) == {("python train.py", False): 3 * GIB}
    assert second.memory.processes.get(11) is None


def test_a_process_that_ends_between_the_two_readings_keeps_its_owner() -> None:
    """NVML still lists it, /proc does not; its server lives, so it counts there, for a while."""
    reading = nvml(gpu([(11, 3 * GIB), (12, GIB)]))
    tree = (server(10, 8000), engine(11, 10), engine(12, 10, "VLLM::Worker"))
    first = split(reading, table(*tree), facts("a", 8000))
    second = split(reading, table(*tree[:2], at=2.0), facts("a", 8000), memory=first.memory)
    assert used(second, "a") == {"GPU-0": 4 * GIB}
    late = split(reading, table(*tree[:2], at=60.0), facts("a", 8000), memory=second.memory)
    assert used(late, "a") == {"GPU-0": 3 * GIB}


def test_a_restart_shows_no_memory_of_the_dead_process() -> None:
    """The real recording: PID 1137 -> 1851; between them the server holds nothing, and its identity changes."""
    before = split(nvml(gpu([(1137, 5 * GIB)])), table(server(1010, 8002), engine(1137, 1010)), facts("chat", 8002))
    gone = split(nvml(gpu([(1137, 5 * GIB)])), table(at=2.0), facts("chat", 8002), memory=before.memory)
    assert used(gone, "chat") == {}
    assert gone.servers["chat"].attribution.state == "unavailable"
    assert others(gone) == {("ended process of chat", False): 5 * GIB}
    after = split(
        nvml(gpu([(1851, 5 * GIB)])),
        table(server(1724, 8002), engine(1851, 1724), at=30.0),
        facts("chat", 8002),
        memory=gone.memory,
    )
    assert used(after, "chat") == {"GPU-0": 5 * GIB}
    assert not before.servers["chat"].identity & after.servers["chat"].identity


def test_a_server_that_closed_its_socket_keeps_its_memory_while_it_lives() -> None:
    """Shutting down closes the port first; the memory is still its own.  Another configuration forgets that."""
    reading = nvml(gpu([(11, 3 * GIB)]))
    first = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000))
    closing = table(server(10, 8000, listening_ports=()), engine(11, 10), at=2.0)
    second = split(reading, closing, facts("a", 8000), memory=first.memory)
    assert used(second, "a") == {"GPU-0": 3 * GIB}
    other_port = split(reading, closing, facts("a", 8001), memory=first.memory)
    assert used(other_port, "a") == {}


# --------------------------------------------------------------------------- containers


def chat_in_docker(**more: Any) -> tuple[HostProcess, ...]:
    """A server in a container with its own network, port 8000 inside."""
    return (
        process(9, 1, ("/usr/bin/containerd-shim-runc-v2",), "containerd-shim"),
        server(10, 8000, ppid=9, **(in_container("chat", 10) | more)),
        engine(11, 10, **in_container("chat", 11, 50)),
    )


def rerank_in_docker() -> tuple[HostProcess, ...]:
    """Another, with the same port inside."""
    return (
        server(20, 8000, ppid=9, **in_container("rerank", 20)),
        engine(21, 20, **in_container("rerank", 21, 50)),
    )


TWO = nvml(gpu([(11, 4 * GIB), (21, GIB)]))


def test_a_published_port_through_dockers_api() -> None:
    """Host port 8002 is container port 8000."""
    result = split(
        TWO,
        table(*chat_in_docker(), *rerank_in_docker()),
        facts("x", 8002),
        facts("y", 8003),
        containers=[
            container("chat", 10, published_ports=(("0.0.0.0", 8002, 8000), ("::", 8002, 8000))),
            container("rerank", 20, published_ports=(("127.0.0.1", 8003, 8000),)),
        ],
    )
    assert (used(result, "x"), used(result, "y")) == ({"GPU-0": 4 * GIB}, {"GPU-0": GIB})
    assert result.servers["x"].attribution.method == "published_port"
    assert result.servers["x"].container == "chat"


def test_a_published_port_without_dockers_api() -> None:
    """docker-proxy's arguments name the container's address, and its network namespace has that address."""
    proxy = process(
        80, 1,
        ("/usr/bin/docker-proxy", "-proto", "tcp", "-host-ip", "0.0.0.0", "-host-port", "8002",
         "-container-ip", "172.18.0.2", "-container-port", "8000", "-use-listen-fd"),
        listening_ports=(8002,),
    )  # fmt: skip
    chat = in_container("chat", 10)["net_namespace"]
    result = split(
        TWO,
        table(proxy, *chat_in_docker(), *rerank_in_docker(), namespace_addresses={chat: ("127.0.0.1", "172.18.0.2")}),
        facts("x", 8002),
    )
    assert used(result, "x") == {"GPU-0": 4 * GIB}
    assert result.servers["x"].attribution.method == "published_port"


def test_podmans_conmon_names_the_container() -> None:
    """Podman's monitor holds the published port and has the id in its arguments."""
    chat = in_container("chat", 10)["container_id"]
    conmon = process(80, 1, ("/usr/bin/conmon", "-c", str(chat), "-u", "x"), "conmon", listening_ports=(8002,))
    result = split(TWO, table(conmon, *chat_in_docker(), *rerank_in_docker()), facts("x", 8002))
    assert used(result, "x") == {"GPU-0": 4 * GIB}


def test_an_address_inside_a_compose_network() -> None:
    """The exporter is a service too and scrapes http://chat:8000; the peer's address leads to the namespace."""
    chat = in_container("chat", 10)["net_namespace"]
    result = split(
        TWO,
        table(*chat_in_docker(), *rerank_in_docker(), namespace_addresses={chat: ("172.18.0.2",)}),
        facts("x", 8000, "chat-host", addresses=("172.18.0.2",)),
    )
    assert used(result, "x") == {"GPU-0": 4 * GIB}
    assert result.servers["x"].attribution.method == "listening_port"


@pytest.mark.parametrize(
    ("name", "host", "method"),
    [
        ("chat", "203.0.113.5", "compose_service"),
        ("x", "chat", "compose_service"),
        ("demo-chat-1", "h", "container_name"),
    ],
)
def test_compose_service_and_container_names(name: str, host: str, method: str) -> None:
    """A service name is the server's name or the URL's host."""
    result = split(
        TWO,
        table(*chat_in_docker(), *rerank_in_docker()),
        facts(name, 8000, host),
        containers=[
            replace(container("chat", 10, labels=compose("chat")), name="demo-chat-1"),
            replace(container("rerank", 20, labels=compose("rerank")), name="demo-rerank-1"),
        ],
    )
    assert used(result, name) == {"GPU-0": 4 * GIB}
    assert result.servers[name].attribution.method == method


def test_a_name_that_two_projects_share_is_not_guessed() -> None:
    """Two Compose projects with a service of the same name."""
    result = split(
        TWO,
        table(*chat_in_docker(), *rerank_in_docker()),
        facts("vllm", 8000, "vllm"),
        containers=[container("chat", labels=compose("vllm")), container("rerank", labels=compose("vllm"))],
    )
    assert result.servers["vllm"].attribution.state == "unavailable"


def test_the_port_outweighs_a_name() -> None:
    """Who really listens is a proof; a container that happens to have the name is not."""
    result = split(
        nvml(gpu([(11, 4 * GIB), (31, GIB)])),
        table(*chat_in_docker(), server(30, 8002), engine(31, 30)),
        facts("chat", 8002),
        containers=[container("chat", labels=compose("chat"))],
    )
    assert used(result, "chat") == {"GPU-0": GIB}


def test_everything_in_a_servers_own_container_counts_but_not_in_a_shared_one() -> None:
    """A container that exists for the server counts as a whole; a development container with a server started in it by
    `docker exec` does not: the training beside it is another program."""
    helper = process(12, 10, ("python3", "decode.py"), **in_container("chat", 12, 60))
    result = split(
        nvml(gpu([(11, 4 * GIB), (12, GIB)])),
        table(*chat_in_docker(), replace(helper, ppid=9)),
        facts("chat", 8002),
        containers=[container("chat", published_ports=(("", 8002, 8000),))],
    )
    assert used(result, "chat") == {"GPU-0": 5 * GIB}
    shared = split(
        nvml(gpu([(11, 4 * GIB), (12, GIB)])),
        table(*chat_in_docker(namespace_pids=(10, 33)), replace(helper, ppid=9)),
        facts("chat", 8002),
        containers=[container("chat", published_ports=(("", 8002, 8000),))],
    )
    assert used(shared, "chat") == {"GPU-0": 4 * GIB}
    assert others(shared) == {("python decode.py", False): GIB}


def test_three_servers_in_one_container_are_told_apart_by_port() -> None:
    """Everything in one container (a pod, a WSL development container)."""
    home = in_container("dev", 0, net=77)
    result = split(
        nvml(gpu([(11, GIB), (21, 2 * GIB)])),
        table(
            server(10, 8000, ppid=9, **(home | {"namespace_pids": (10, 20)})),
            engine(11, 10, **home),
            server(20, 8001, ppid=9, **(home | {"namespace_pids": (20, 21)})),
            engine(21, 20, **home),
        ),
        facts("a", 9000),
        facts("b", 9001),
        containers=[container("dev", published_ports=(("0.0.0.0", 9000, 8000), ("0.0.0.0", 9001, 8001)))],
    )
    assert (used(result, "a"), used(result, "b")) == ({"GPU-0": GIB}, {"GPU-0": 2 * GIB})


def test_an_nginx_in_front_is_no_server() -> None:
    """The port leads to a proxy: said, and not attributed; a name may still find the container."""
    world = table(process(80, 1, ("nginx: master",), "nginx", listening_ports=(8002,)), *chat_in_docker())
    result = split(nvml(gpu([(11, GIB)])), world, facts("x", 8002))
    assert "nginx" in result.servers["x"].attribution.reason
    named = split(nvml(gpu([(11, GIB)])), world, facts("chat", 8002), containers=[container("chat")])
    assert used(named, "chat") == {"GPU-0": GIB}


# --------------------------------------------------------------------------- Kubernetes, systemd


POD = "12345678-90ab-cdef-1234-567890abcdef"


def test_pods_by_uid_address_and_name() -> None:
    """containerd and CRI-O pods: by a configured uid, by the pod's address, or by the host name it has."""
    home = in_container("c1", 10, net=55) | {"pod_uid": POD, "container_runtime": "containerd"}
    world = table(
        server(10, 8000, ppid=9, **(home | {"environ": {"HOSTNAME": "vllm-chat-0"}})),
        engine(11, 10, **(home | {"namespace_pids": (11, 9)})),
        namespace_addresses={55: ("10.1.2.3",)},
    )
    reading = nvml(gpu([(11, 4 * GIB)]))
    for one, method in (
        (matched("a", pod=POD), "match_pod"),
        (facts("a", 8000, "10.1.2.3"), "listening_port"),
        (facts("vllm-chat-0", 1, "other"), "pod_name"),
    ):
        result = split(reading, world, one)
        assert used(result, one.name) == {"GPU-0": 4 * GIB}, method
        assert result.servers[one.name].attribution.method == method


def test_systemd_units() -> None:
    """By name; the unit's main process makes the whole unit the server's."""
    unit: dict[str, Any] = {"unit": "vllm-chat.service"}
    world = table(server(10, 8000, **unit), engine(11, 10, **unit), process(12, 1, ("python3", "sidecar.py"), **unit))
    reading = nvml(gpu([(11, 4 * GIB), (12, GIB)]))
    for one in (facts("vllm-chat", 1, "other"), facts("x", 8000), matched("x", unit="vllm-chat")):
        result = split(reading, world, one)
        assert used(result, one.name) == {"GPU-0": 5 * GIB}
        assert result.servers[one.name].unit == "vllm-chat.service"


def test_a_server_started_from_a_notebook_does_not_take_the_whole_unit() -> None:
    """jupyterhub.service runs a server and a training: only the tree counts."""
    unit: dict[str, Any] = {"unit": "jupyterhub.service"}
    world = table(
        process(5, 1, ("python3", "jupyterhub"), **unit),
        server(10, 8000, ppid=5, **unit),
        engine(11, 10, **unit),
        process(12, 5, ("python3", "train.py"), **unit),
    )
    result = split(nvml(gpu([(11, 4 * GIB), (12, GIB)])), world, facts("x", 8000))
    assert used(result, "x") == {"GPU-0": 4 * GIB}
    assert others(result) == {("python train.py", False): GIB}


# --------------------------------------------------------------------------- the configured match


def test_a_static_mapping_overrides_everything() -> None:
    """The port says one thing, the configuration another: the configuration counts."""
    world = table(server(10, 8000), engine(11, 10), *chat_in_docker()[:1], *rerank_in_docker())
    one = replace(facts("x", 8000), match=matched("x", container="rerank").match)
    result = split(TWO, world, one, containers=[container("rerank")])
    assert used(result, "x") == {"GPU-0": GIB}
    assert result.servers["x"].attribution.method == "match_container"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"port": 8000}, GIB),
        ({"command": r"--port 8001\b"}, 2 * GIB),
        ({"command": "vllm serve"}, "fits 2 servers"),
        ({"command": "("}, "match.command"),
        ({"command": "nothing like it"}, "no command line fits"),
        ({"unit": "none.service"}, "no process of unit"),
        ({"pod": POD}, "no process of pod"),
        ({"port": 9999}, "listens on port 9999"),
        ({"port": 8000, "command": "--port 8001"}, "port 8000"),
        ({"port": 8001, "command": "--port 8001"}, 2 * GIB),
    ],
)
def test_match_rules(rule: dict[str, Any], expected: object) -> None:
    """Each part, parts together (all must hold), and what does not fit: no fall-back, but a reason."""
    world = table(
        server(10, 8000), engine(11, 10), server(20, 8001), engine(21, 20), process(30, 1, ("grep", "--port 8001"))
    )
    result = split(nvml(gpu([(11, GIB), (21, 2 * GIB)])), world, matched("x", **rule))
    if isinstance(expected, str):
        assert used(result, "x") == {}
        assert expected in result.servers["x"].attribution.reason
    else:
        assert used(result, "x") == {"GPU-0": expected}


def test_a_container_name_without_dockers_api_falls_back_and_says_so() -> None:
    """Without the API no name can be checked; the port may still find it."""
    one = replace(facts("x", 8000), match=matched("x", container="chat").match)
    world = table(server(10, 8000), engine(11, 10))
    found = split(nvml(gpu([(11, GIB)])), world, one, containers=ContainerTable({}, "there is no such socket"))
    assert used(found, "x") == {"GPU-0": GIB}
    lost = split(nvml(gpu([(11, GIB)])), world, replace(one, port=1))
    assert "no Docker API" in lost.servers["x"].attribution.reason


def test_a_container_id_needs_no_api() -> None:
    """Twelve digits, as in `docker ps`."""
    short = str(in_container("chat", 1)["container_id"])[:12]
    result = split(TWO, table(*chat_in_docker(), *rerank_in_docker()), matched("x", container=short))
    assert used(result, "x") == {"GPU-0": 4 * GIB}


def test_container_and_port_together() -> None:
    """Two servers in one container, configured by container and port."""
    home = in_container("dev", 0, net=77)
    world = table(
        server(10, 8000, ppid=9, **home),
        engine(11, 10, **home),
        server(40, 8001, ppid=9, **home),
        engine(41, 40, **home),
        *rerank_in_docker(),
    )
    result = split(
        nvml(gpu([(11, GIB), (41, 2 * GIB)])),
        world,
        matched("a", container="dev", port=8000),
        matched("b", container="dev", port=8001),
        matched("c", container="dev"),
        containers=[container("dev"), container("rerank")],
    )
    assert (used(result, "a"), used(result, "b")) == ({"GPU-0": GIB}, {"GPU-0": 2 * GIB})
    assert "match them by port" in result.servers["c"].attribution.reason


def test_one_instance_configured_twice_is_counted_once() -> None:
    """The second name gets a reason instead of the same bytes again."""
    result = split(
        nvml(gpu([(11, GIB)])), table(server(10, 8000), engine(11, 10)), facts("a", 8000), facts("b", 8000, "localhost")
    )
    assert used(result, "a") == {"GPU-0": GIB}
    assert result.servers["b"].attribution.state == "unavailable"
    assert "configured twice" in result.servers["b"].attribution.reason
    assert result.findings


# --------------------------------------------------------------------------- weaker evidence


def test_hidden_sockets_fall_back_to_the_port_argument() -> None:
    """Another user's processes: the command line is still readable."""
    hidden: dict[str, Any] = {"listening_ports": None, "net_namespace": None}
    world = table(server(10, 8000, **hidden), engine(11, 10), server(20, 8001, **hidden), engine(21, 20))
    result = split(nvml(gpu([(11, GIB), (21, 2 * GIB)])), world, facts("b", 8001), facts("c", 8005))
    assert used(result, "b") == {"GPU-0": 2 * GIB}
    assert result.servers["b"].attribution.method == "port_argument"
    assert "CAP_SYS_PTRACE" in result.servers["c"].attribution.reason


def test_a_server_that_does_not_listen_yet_is_found_by_its_port_argument() -> None:
    """vLLM opens its port when the model is loaded; its memory is its own before that.  ZMQ's ports do not count."""
    reading = nvml(gpu([(11, 3 * GIB)]))
    for ports in ((), (41235,)):
        loading = table(server(10, 8000, listening_ports=ports), engine(11, 10))
        found = split(reading, loading, facts("a", 8000), facts("b", 8001))
        assert used(found, "a") == {"GPU-0": 3 * GIB}
        assert found.servers["a"].attribution.method == "port_argument"
        assert used(found, "b") == {}
    # It listens elsewhere (--config overrides the argument), or somebody else has the port
    elsewhere = table(server(10, 8000, listening_ports=(9000,)), engine(11, 10))
    assert used(split(reading, elsewhere, facts("a", 8000)), "a") == {}
    proxy = process(20, 1, ("nginx",), "nginx", listening_ports=(8000,))
    behind = table(server(10, 8000, listening_ports=()), engine(11, 10), proxy)
    assert used(split(reading, behind, facts("a", 8000)), "a") == {}
    # Two that could be it
    two = table(server(10, 8000, listening_ports=()), engine(11, 10), server(20, 8000, listening_ports=()))
    assert used(split(reading, two, facts("a", 8000)), "a") == {}


def test_without_any_known_network_namespace_the_socket_still_counts() -> None:
    """Recordings of older formats have no namespaces."""
    world = table(server(10, 8000, net_namespace=None), engine(11, 10), net_namespace=None)
    result = split(nvml(gpu([(11, GIB)])), world, facts("a", 8000))
    assert result.servers["a"].attribution.method == "listening_port"


def test_a_unique_served_model_name_is_enough_when_the_url_is_this_host() -> None:
    """A published port without proxy process and without Docker's API; not for a remote URL, not when ambiguous."""
    name = ("--served-model-name", "chat")
    home = in_container("chat", 10)
    world = table(server(10, 8000, *name, ppid=9, **home), engine(11, 10, **home), *rerank_in_docker())
    local = facts("x", 8002, model_names=("chat",))
    assert used(split(TWO, world, local), "x") == {"GPU-0": 4 * GIB}
    assert split(TWO, world, local).servers["x"].attribution.method == "served_model_name"
    assert used(split(TWO, world, replace(local, host="203.0.113.4")), "x") == {}
    assert used(split(TWO, world, local, facts("y", 8003, model_names=("chat",))), "x") == {}
    twin = server(40, 8000, *name, ppid=9, **in_container("twin", 40))
    assert used(split(TWO, table(*world.processes.values(), twin), local), "x") == {}


def test_ray_workers_go_to_the_only_ray_server() -> None:
    """They run below Ray's daemon; with two Ray servers nothing tells whose they are."""
    ray = ("--distributed-executor-backend", "ray")
    world = [
        server(10, 8000, *ray),
        engine(11, 10),
        process(40, 1, ("/ray/raylet",), "raylet"),
        process(41, 40, ("ray::RayWorkerWrapper.execute_method",), "ray::RayWorkerW"),
        process(42, 40, ("ray::IDLE",), "ray::IDLE"),
    ]
    reading = nvml(gpu([(41, 30 * GIB), (42, 5)]))
    result = split(reading, table(*world), facts("a", 8000))
    assert used(result, "a") == {"GPU-0": 30 * GIB}
    assert "Ray" in result.servers["a"].attribution.reason
    assert others(result) == {("ray::IDLE", False): 5}
    twice = split(reading, table(*world, server(20, 8001, *ray), engine(21, 20)), facts("a", 8000), facts("b", 8001))
    assert used(twice, "a") == used(twice, "b") == {}
    assert twice.gpus["GPU-0"].unattributed_bytes == 20 * MIB


def test_ray_started_by_the_server_itself_is_in_its_tree() -> None:
    """ray.init starts the daemon as a child."""
    world = table(
        server(10, 8000, "--distributed-executor-backend=ray"),
        process(40, 10, ("/ray/raylet",), "raylet"),
        process(41, 40, ("ray::RayWorkerWrapper",), "ray::RayWorkerW"),
    )
    assert used(split(nvml(gpu([(41, GIB)])), world, facts("a", 8000)), "a") == {"GPU-0": GIB}


# --------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    ("reading", "changes", "words"),
    [
        (NvmlReading(1.0, 1.0, up=False, reason="library_not_found"), {}, "NVML is down"),
        (NvmlReading(1.0, 1.0, up=True), {}, "no GPU"),
        (nvml(gpu([], used=5 * GIB)), {"host_pid_namespace": False}, "pid: host"),
        (nvml(gpu([], used=5 * GIB)), {}, "lists no process although"),
        (nvml(gpu([], used=5 * GIB)), {"host_pid_namespace": False, "same_pid_namespace": False}, "mounted /proc"),
        (nvml(gpu([(11, GIB)]), driver_version="535.104.05"), {"host_pid_namespace": False}, "gives host PIDs"),
        (nvml(gpu(None, used=5 * GIB, absent={"processes": "refused"})), {}, "refused"),
    ],
)
def test_unavailable_is_a_state_with_a_reason(reading: NvmlReading, changes: dict[str, Any], words: str) -> None:
    """Never 0, never a guess, and no remainder either."""
    result = split(reading, table(server(10, 8000), engine(11, 10), **changes), facts("a", 8000))
    attribution = result.servers["a"].attribution
    assert attribution.state == "unavailable"
    assert words in attribution.reason
    assert used(result, "a") == {}
    for found in result.gpus.values():
        assert found.unattributed_bytes is None
        assert found.reason
    assert result.servers["a"].roles  # the host side is still known


def test_reasons_do_not_change_from_tick_to_tick() -> None:
    """They are label values: a byte count in them would make a new series every second."""
    world = table(server(10, 8000), engine(11, 10), host_pid_namespace=False)
    texts = {
        split(nvml(gpu([], used=size)), world, facts("a", 8000)).servers["a"].attribution.reason
        for size in (5 * GIB, 6 * GIB)
    }
    assert len(texts) == 1


def test_own_namespace_with_own_processes_is_measured() -> None:
    """A container sees its own processes with local pids (H200 probe, 6b): those are right."""
    world = table(server(10, 8000), engine(11, 10), host_pid_namespace=False)
    result = split(nvml(gpu([(11, 1_080_033_280)], used=5_720_113_152)), world, facts("a", 8000), facts("far", 8001))
    assert used(result, "a") == {"GPU-0": 1_080_033_280}
    assert result.gpus["GPU-0"].unattributed_bytes == 5_720_113_152 - 1_080_033_280
    assert "pid: host" in result.servers["far"].attribution.reason


def test_an_old_driver_with_the_hosts_proc_works() -> None:
    """Before 535.113.01 NVML gives host pids, and the mounted /proc has them."""
    world = table(server(10, 8000), engine(11, 10), host_pid_namespace=False, same_pid_namespace=False)
    result = split(nvml(gpu([(11, GIB)]), driver_version="525.60.13"), world, facts("a", 8000))
    assert used(result, "a") == {"GPU-0": GIB}


def test_an_idle_device_with_an_empty_list_is_no_fault() -> None:
    """Nothing used, nothing listed: the server holds nothing yet."""
    result = split(nvml(gpu([], used=0)), table(server(10, 8000)), facts("a", 8000))
    attribution = result.servers["a"].attribution
    assert (attribution.state, used(result, "a")) == ("measured", {})
    assert "hold no GPU memory" in attribution.reason
    assert result.gpus["GPU-0"].unattributed_bytes == 0


@pytest.mark.parametrize("wsl", [True, False])
def test_without_process_memory_the_log_estimates(wsl: bool) -> None:
    """WSL2 and WDDM: marked as estimate, with no remainder; without a log it is unavailable."""
    world = table(server(10, 8000), engine(11, 10), wsl=wsl, host_pid_namespace=None)
    reading = nvml(gpu([(11, None)], used=7 * GIB))
    result = split(reading, world, facts("a", 8000, estimate=estimate(5.5 * GIB)), facts("b", 8001))
    quantity = result.servers["a"].used["GPU-0"]
    assert (quantity.value, quantity.source, quantity.estimate) == (5.5 * GIB, "estimate", True)
    assert result.servers["a"].attribution.state == "estimated"
    assert ("WSL2" if wsl else "WDDM") in result.servers["a"].attribution.reason
    assert result.servers["b"].attribution.state == "unavailable"
    assert result.gpus["GPU-0"].unattributed_bytes is None
    bare = split(reading, world, facts("a", 8000))
    assert bare.servers["a"].attribution.state == "unavailable"
    assert bare.servers["a"].used["GPU-0"].value is None


@pytest.mark.parametrize("rows", [[], None])
def test_wsl_without_any_list(rows: list[tuple[int, int]] | None) -> None:
    """The list may be empty or unsupported; a server of this host is still estimated, a remote one is not."""
    reading = nvml(gpu(rows, used=7 * GIB, absent={"processes": "not given"}))
    world = table(wsl=True, host_pid_namespace=None)
    remote = facts("b", 8000, "203.0.113.4", estimate=estimate(1.0))
    result = split(reading, world, facts("a", 8000, estimate=estimate(5 * GIB)), remote)
    assert used(result, "a") == {"GPU-0": 5 * GIB}
    assert result.servers["a"].attribution.state == "estimated"
    assert used(result, "b") == {}


def test_an_estimate_on_two_gpus_needs_to_know_which() -> None:
    """Not guessed."""
    reading = nvml(gpu([], used=0), gpu([], used=0, index=1))
    world = table(server(10, 8000), wsl=True)
    result = split(reading, world, facts("a", 8000, estimate=estimate(1.0)))
    assert "which of 2 GPUs" in result.servers["a"].attribution.reason


def test_an_estimate_is_not_used_where_memory_is_measured() -> None:
    """A measured number always wins, and a refused list stays unavailable."""
    world = table(server(10, 8000), engine(11, 10))
    one = facts("a", 8000, estimate=estimate(1.0))
    assert used(split(nvml(gpu([(11, GIB)])), world, one), "a") == {"GPU-0": GIB}
    refused = split(nvml(gpu(None, used=GIB, absent={"processes": "refused"})), world, one)
    assert refused.servers["a"].attribution.state == "unavailable"


def test_mig_instances_are_rows_and_the_parent_has_none() -> None:
    """Memory per GPU instance; the parent's row is never counted."""
    reading = nvml(
        gpu(None, uuid="GPU-p", mig_mode=True, memory_used_bytes=None),
        gpu([(11, 4 * GIB)], uuid="MIG-a", mig_mode=True, gpu_instance=3, mig_parent_uuid="GPU-p"),
        gpu([(21, GIB)], uuid="MIG-b", mig_mode=True, gpu_instance=5, mig_parent_uuid="GPU-p"),
    )
    world = table(server(10, 8000), engine(11, 10), server(20, 8001), engine(21, 20))
    result = split(reading, world, facts("a", 8000), facts("b", 8001))
    assert (used(result, "a"), used(result, "b")) == ({"MIG-a": 4 * GIB}, {"MIG-b": GIB})
    assert result.gpus["MIG-a"].gpu == "0:3"
    assert "instances" in (result.gpus["GPU-p"].reason or "")


def test_mig_without_permission_is_unavailable() -> None:
    """The list of the instance is refused."""
    words = "the driver refuses it to this process"
    reading = nvml(
        gpu(None, uuid="GPU-p", mig_mode=True),
        gpu(None, uuid="MIG-a", mig_mode=True, gpu_instance=3, absent={"processes": words}),
    )
    result = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000))
    assert result.servers["a"].attribution.reason == f"process list of MIG instance 0:3: {words}"


def test_mps_clients_are_measured_and_the_servers_part_is_its_own() -> None:
    """As on the H200: clients in both lists (already merged), the MPS server with 66 MiB."""
    rows = [
        GpuProcess(583, 69_206_016),
        GpuProcess(562, 1_614_807_040, frozenset({"compute", "mps"})),
        GpuProcess(592, 1_077_936_128, frozenset({"compute", "mps"})),
    ]
    world = table(
        server(560, 8000),
        engine(562, 560),
        server(590, 8001),
        engine(592, 590),
        process(583, 1, ("nvidia-cuda-mps-server",), "nvidia-cuda-mps"),
    )
    result = split(nvml(gpu(rows, used=2_772_172_800)), world, facts("a", 8000), facts("b", 8001))
    assert used(result, "a") == {"GPU-0": 1_614_807_040}
    assert others(result) == {("mps-server", False): 69_206_016}
    # 2,772,172,800 - 69,206,016 - 1,614,807,040 - 1,077,936,128
    assert result.gpus["GPU-0"].unattributed_bytes == 10_223_616


def test_mps_before_volta_is_unavailable() -> None:
    """Everything is inside the MPS server there."""
    world = table(server(10, 8000), engine(11, 10), process(70, 1, ("nvidia-cuda-mps-server",), "nvidia-cuda-mps"))
    result = split(nvml(gpu([(70, 6 * GIB)])), world, facts("a", 8000))
    assert result.servers["a"].attribution.state == "unavailable"
    assert "nvidia-cuda-mps-server" in result.servers["a"].attribution.reason
    assert others(result) == {("mps-server", False): 6 * GIB}


def test_unified_memory_is_measured_per_process_without_a_remainder() -> None:
    """GB10: the lists are real, used is the whole host's."""
    reading = nvml(gpu([(11, 20 * GIB)], used=60 * GIB, unified_memory=True))
    result = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000))
    assert used(result, "a") == {"GPU-0": 20 * GIB}
    assert "unified" in result.servers["a"].attribution.reason
    assert result.gpus["GPU-0"].unattributed_bytes is None


def test_a_lost_gpu_takes_only_its_own_part() -> None:
    """The other card is measured."""
    reading = nvml(
        gpu([(12, GIB)]),
        gpu(None, index=1, memory_used_bytes=None, absent={"processes": "fell off the bus"}),
    )
    world = table(server(10, 8000), engine(12, 10, "VLLM::Worker_TP0"), engine(13, 10, "VLLM::Worker_TP1"))
    result = split(reading, world, facts("a", 8000))
    assert used(result, "a") == {"GPU-0": GIB}
    assert "fell off" in (result.gpus["GPU-1"].reason or "")


def test_memory_v1_says_that_the_remainder_has_the_reserve_in_it() -> None:
    """Old drivers: the number is right, its meaning is told."""
    reading = nvml(gpu([(11, GIB)], memory_reserved_bytes=None, absent={"memory_reserved_bytes": "only memory v1"}))
    found = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000)).gpus["GPU-0"]
    assert found.unattributed_bytes == 20 * MIB
    assert "reserves" in (found.reason or "")


# --------------------------------------------------------------------------- the remainder


@pytest.mark.parametrize(
    ("missing", "dropped"), [(0, False), (1, False), (MISFIT_BYTES, False), (MISFIT_BYTES + 1, True), (GIB, True)]
)
def test_a_slightly_negative_remainder_stays_and_a_large_one_drops_the_tick(missing: int, dropped: bool) -> None:
    """Buffers shared between processes are real; 64 MiB and more means two different moments."""
    result = split(
        nvml(gpu([(11, 3 * GIB)], used=3 * GIB - missing)), table(server(10, 8000), engine(11, 10)), facts("a", 8000)
    )
    assert result.gpus["GPU-0"].unattributed_bytes == -missing
    assert (misfit(result) is not None) is dropped


# --------------------------------------------------------------------------- host side


def test_host_side_by_role() -> None:
    """Sums per role: CPU seconds, resident and shared memory, threads."""
    world = table(
        server(10, 8000, cpu_seconds=5.0, rss_bytes=600, shared_bytes=0, threads=10),
        engine(11, 10, cpu_seconds=7.0, rss_bytes=800, shared_bytes=50, threads=13),
        engine(12, 11, "VLLM::Worker_TP0", cpu_seconds=1.0),
        engine(13, 11, "VLLM::Worker_TP1", cpu_seconds=2.0),
    )
    roles = {role.role: role for role in split(nvml(gpu([(12, 1)])), world, facts("a", 8000)).servers["a"].roles}
    api = roles["api_server"]
    assert (api.cpu_seconds, api.rss_bytes, api.shared_bytes, api.threads) == (5.0, 600, 0, 10)
    assert (roles["engine_core"].shared_bytes, roles["engine_core"].processes) == (50, 1)
    assert (roles["worker"].cpu_seconds, roles["worker"].processes, roles["worker"].rss_bytes) == (3.0, 2, 200)


def test_an_unreadable_part_makes_the_sum_unknown() -> None:
    """Absent with a reason, never a partial sum."""
    reasons = {"rss_bytes": "hidden", "shared_bytes": "hidden"}
    hidden: dict[str, Any] = {"rss_bytes": None, "shared_bytes": None, "absent": reasons}
    world = table(server(10, 8000), engine(12, 10, "VLLM::Worker_TP0"), engine(13, 10, "VLLM::Worker_TP1", **hidden))
    roles = {role.role: role for role in split(nvml(gpu([(12, 1)])), world, facts("a", 8000)).servers["a"].roles}
    assert (roles["worker"].rss_bytes, roles["worker"].reason) == (None, "hidden")
    assert roles["worker"].cpu_seconds == 2.0


def test_cpu_seconds_do_not_fall_when_a_process_ends() -> None:
    """A counter over processes keeps what the ended ones used; a restart begins anew."""
    reading = nvml(gpu([(12, 1)]))

    def worker_cpu(result: object) -> float | None:
        return {role.role: role for role in result.servers["a"].roles}["worker"].cpu_seconds  # type: ignore[attr-defined]

    tree = (server(10, 8000), engine(12, 10, "VLLM::Worker_TP0", cpu_seconds=10.0))
    first = split(reading, table(*tree, engine(13, 10, "VLLM::Worker_TP1", cpu_seconds=4.0)), facts("a", 8000))
    assert worker_cpu(first) == 14.0
    second = split(reading, table(*tree, at=2.0), facts("a", 8000), memory=first.memory)
    assert worker_cpu(second) == 14.0
    later = table(server(10, 8000), engine(12, 10, "VLLM::Worker_TP0", cpu_seconds=11.0), at=3.0)
    assert worker_cpu(split(reading, later, facts("a", 8000), memory=second.memory)) == 15.0
    restarted = table(server(20, 8000), engine(21, 20, "VLLM::Worker_TP0", cpu_seconds=1.0), at=4.0)
    assert worker_cpu(split(nvml(gpu([(21, 1)])), restarted, facts("a", 8000), memory=second.memory)) == 1.0


def test_sm_use_is_summed_over_a_servers_processes() -> None:
    """Per card, at most the whole card; absent where no process has a value."""
    rows = [GpuProcess(12, 1, sm_utilization_ratio=0.7), GpuProcess(13, 1, sm_utilization_ratio=0.6)]
    world = table(server(10, 8000), engine(12, 10), engine(13, 10), server(20, 8001), engine(21, 20))
    result = split(nvml(gpu([*rows, GpuProcess(21, 1)])), world, facts("a", 8000), facts("b", 8001))
    assert result.servers["a"].sm_utilization == {"GPU-0": 1.0}
    assert result.servers["b"].sm_utilization == {}


def test_hidden_processes_are_a_finding() -> None:
    """hidepid is told where people look."""
    result = split(nvml(gpu([])), table(reason="/proc hides other users' processes"))
    assert result.findings == ("/proc hides other users' processes",)


def test_memory_is_bounded_by_what_lives() -> None:
    """Ended processes and removed servers are forgotten."""
    reading = nvml(gpu([(11, 1)]))
    memory = split(reading, table(server(10, 8000), engine(11, 10)), facts("a", 8000)).memory
    assert set(memory.processes) == {10, 11}
    memory = split(nvml(gpu([])), table(at=100.0), facts("b", 8000), memory=memory).memory
    assert memory == IdentityMemory()


def test_the_estimate_may_say_why_it_is_none() -> None:
    """The reason of the missing estimate reaches the person."""
    world = table(server(10, 8000), engine(11, 10), wsl=True)
    one = facts("a", 8000, estimate=Quantity(None, reason="the log has no summary line yet"))
    result = split(nvml(gpu([(11, None)])), world, one)
    assert "no summary line yet" in result.servers["a"].attribution.reason


def test_the_world_has_an_init() -> None:
    """The helper's own assumption: pid 1 is the host's init in the host's network."""
    assert table().processes[1] is INIT
    assert INIT.net_namespace == HOST_NET
