"""The sum property, under made-up hosts of any shape, and on the real H200 recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.fake_proc import FakeProc
from fakes.fake_pynvml import FakeDevice, FakePynvml, entry
from memory.attribution_world import adds_up, facts, in_container, matched, others, process, server, table, used
from vllmeter.gpu.reader import NvmlReader
from vllmeter.host.proc import ProcReader
from vllmeter.memory.attribute import IdentityMemory, ServerFacts, attribute, misfit
from vllmeter.snapshot import (
    ContainerFacts,
    ContainerTable,
    GpuProcess,
    GpuReading,
    HostProcess,
    NvmlReading,
    ProcessTable,
)

MIB = 1 << 20

# --------------------------------------------------------------------------- any host at all

TITLES = ["VLLM::EngineCore", "VLLM::EngineCore_DP1", "VLLM::Worker_TP0", "VLLM::APIServer_0", "ray::RayWorkerWrapper"]
PROGRAMS = [("python3", "train.py"), ("bash", "x.sh"), ("/sbin/tini",), ("nginx",), ("docker-proxy",), ("conmon", "-c")]
CONTAINERS = [None, "a", "b"]
UNITS = [None, "vllm.service", "ssh.service"]


@st.composite
def hosts(draw: st.DrawFn) -> dict[int, HostProcess]:
    """Any forest of processes: servers, engines, orphans, wrappers, in and out of containers, loops included."""
    count = draw(st.integers(0, 14))
    pids = list(range(2, 2 + count))
    out: dict[int, HostProcess] = {}
    for pid in pids:
        parent = draw(st.sampled_from([0, 1, 99, *pids]))
        home = draw(st.sampled_from(CONTAINERS))
        more: dict[str, Any] = {
            "unit": draw(st.sampled_from(UNITS)),
            "start_ticks": draw(st.integers(1, 2)),
            "listening_ports": draw(st.sampled_from([None, (), (8000,), (8001,), (8000, 8001)])),
        }
        if home is not None:
            more |= in_container(home, pid, draw(st.sampled_from([1, 7])))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            out[pid] = server(pid, draw(st.sampled_from([8000, 8001])), ppid=parent, **more)
        elif kind == 1:
            title = draw(st.sampled_from(TITLES))
            out[pid] = process(pid, parent, (title,), title[:15], **more)
        elif kind == 2:
            out[pid] = process(pid, parent, draw(st.sampled_from(PROGRAMS)), **more)
        else:
            out[pid] = process(pid, parent, None, "hidden", **more)
    return out


@st.composite
def gpus(draw: st.DrawFn) -> tuple[GpuReading, ...]:
    """Up to three GPUs with any lists: unknown sizes, unreadable lists, pids that nobody knows."""
    out = []
    for index in range(draw(st.integers(0, 3))):
        rows = draw(
            st.none()
            | st.lists(
                st.builds(
                    GpuProcess,
                    st.integers(2, 20),
                    st.none() | st.integers(0, 1 << 37),
                    st.sampled_from([frozenset({"compute"}), frozenset({"compute", "mps"})]),
                    sm_utilization_ratio=st.none() | st.floats(0, 1),
                ),
                unique_by=lambda row: row.pid,
                max_size=8,
            )
        )
        instance = draw(st.sampled_from([None, None, 3]))
        out.append(
            GpuReading(
                index,
                f"GPU-{index}",
                "x",
                memory_total_bytes=1 << 40,
                memory_used_bytes=draw(st.none() | st.integers(0, 1 << 38)),
                memory_reserved_bytes=draw(st.none() | st.just(1)),
                processes=None if rows is None else tuple(rows),
                mig_mode=draw(st.sampled_from([None, False, True])),
                gpu_instance=instance,
                unified_memory=draw(st.booleans()) and draw(st.booleans()),
            )
        )
    return tuple(out)


SERVERS = [
    facts("one", 8000),
    facts("two", 8001),
    facts("alias", 8000, "localhost", model_names=("/m/model",)),
    facts("a", 8000, "a"),
    matched("unit", unit="vllm.service"),
    matched("command", command="serve"),
    matched("container", container="b", port=8000),
]


@given(
    world=hosts(),
    cards=gpus(),
    configured=st.lists(st.sampled_from(SERVERS), unique_by=lambda one: one.name, max_size=7),
    own_namespace=st.sampled_from([True, False, None]),
    same=st.booleans(),
    wsl=st.booleans(),
    driver=st.sampled_from(["580.1", "525.60.13", None, "odd"]),
    docker=st.sampled_from([None, "down", "up"]),
)
@settings(max_examples=400, deadline=None)
def test_the_parts_always_add_up(
    world: dict[int, HostProcess],
    cards: tuple[GpuReading, ...],
    configured: list[ServerFacts],
    own_namespace: bool | None,
    same: bool,
    wsl: bool,
    driver: str | None,
    docker: str | None,
) -> None:
    """Whatever the host looks like: per GPU Σ servers + other + unattributed = used or a reason; no pid has two owners;
    running it again with its own memory gives the same split."""
    reading = NvmlReading(1.0, 1.0, up=True, gpus=cards, driver_version=driver)
    view = table(*world.values(), host_pid_namespace=own_namespace, same_pid_namespace=same, wsl=wsl)
    engine = {
        None: None,
        "down": ContainerTable({}, "down"),
        "up": ContainerTable(
            {
                one.id: one
                for one in (
                    ContainerFacts(str(in_container("a", 1)["container_id"]), "a", published_ports=(("", 8000, 8000),)),
                    ContainerFacts(str(in_container("b", 1)["container_id"]), "b"),
                )
            }
        ),
    }[docker]
    result = attribute(reading, view, configured, containers=engine)
    adds_up(reading, result)
    owners: dict[int, str] = {}
    for name, usage in result.servers.items():
        for pid, _ in usage.identity:
            assert pid not in owners, (pid, name, owners[pid])
            owners[pid] = name
    misfit(result)
    again = attribute(reading, view, configured, containers=engine, memory=result.memory)
    adds_up(reading, again)
    assert {name: usage.identity for name, usage in again.servers.items()} == {
        name: usage.identity for name, usage in result.servers.items()
    }
    assert again.gpus == result.gpus


# --------------------------------------------------------------------------- the real recording

RECORDING = json.loads((Path(__file__).parent / "h200_processes.json").read_text(encoding="utf-8"))
CONFIGURED = (facts("bge-reranker-base", 8000), facts("bge-m3", 8001), facts("Qwen3-1.7B", 8002))
PORTS = {537: 8000, 559: 8001, 1010: 8002}


def recorded_table(*, restarted: bool, chat: bool, at: float) -> ProcessTable:
    """The process tree of the recording (its parent, the load script, included)."""
    processes = [process(535, 1, ("python3", "driver.py"))]
    for pid, ppid, comm, argv in RECORDING["tree"]:
        if pid in (1010, 1137) and (restarted or not chat):
            continue
        ports = (PORTS[pid],) if pid in PORTS else ()
        processes.append(process(pid, ppid, argv, comm, listening_ports=ports))
    if restarted and chat:
        argv = next(row[3] for row in RECORDING["tree"] if row[0] == 1010)
        processes.append(process(1786, 535, argv, "python3", listening_ports=(8002,)))
        processes.append(process(1851, 1786, ("VLLM::EngineCore",), "VLLM::EngineCor"))
    return table(*processes, at=at)


def test_every_tick_of_the_real_recording() -> None:
    """Read off by hand: chat uses 5,798,625,280 when idle, 5,897,191,424 at most in its first life, nothing
    while it restarts (PID 1137 -> 1851), 715,128,832 when it comes back and 6,272,581,632 at most; unattributed are
    20,971,520 with three servers and 15,138,816 with two."""
    memory = IdentityMemory()
    chat: list[float | None] = []
    remainders = set()
    roots = set()
    for t, _, in_use, rows in RECORDING["ticks"]:
        pids = {pid for pid, _ in rows}
        view = recorded_table(restarted=t > 346, chat=bool(pids & {1137, 1851}), at=t)
        device = FakeDevice(used=in_use, compute=[entry(pid, size) for pid, size in rows])
        reading = NvmlReader(FakePynvml([device])).read(t, t)
        result = attribute(reading, view, CONFIGURED, memory=memory)
        adds_up(reading, result)
        assert misfit(result) is None
        memory = result.memory
        split = next(iter(result.gpus.values()))
        assert split.other == ()
        remainders.add(split.unattributed_bytes)
        chat.append(next(iter(used(result, "Qwen3-1.7B").values()), None))
        usage = result.servers["Qwen3-1.7B"]
        if usage.root is not None:
            roots.add(usage.root[0])
            assert usage.attribution.state == "measured"
        else:
            assert usage.attribution.state == "unavailable"
    gap = chat.index(None)
    assert chat[0] == 5_798_625_280
    assert max(value or 0 for value in chat[:gap]) == 5_897_191_424
    assert chat[gap + 1] == 715_128_832
    assert max(value or 0 for value in chat[gap:]) == 6_272_581_632
    assert remainders == {20_971_520, 15_138_816}
    assert roots == {1010, 1786}


# --------------------------------------------------------------------------- fakes end to end


def test_from_fake_files_and_a_fake_driver_to_a_split(tmp_path: Path) -> None:
    """/proc tree and pynvml together: two servers, a training, the desktop; through the real readers."""
    tree = FakeProc(tmp_path)
    for root, port in ((100, 8000), (200, 8001)):
        tree.add(root, argv=["/venv/bin/python3", "/venv/bin/vllm", "serve", "/m", "--port", str(port)], listen=[port])
        tree.add(root + 1, ppid=root, argv=["VLLM::EngineCore"], comm="VLLM::EngineCor", padding=50)
    tree.add(300, argv=["python3", "train.py"])
    tree.add(301, argv=["/usr/lib/xorg/Xorg", ":0"])
    device = FakeDevice(
        used=1000 * MIB,
        compute=[entry(101, 300 * MIB), entry(201, 200 * MIB), entry(300, 100 * MIB)],
        graphics=[entry(301, 50 * MIB), entry(300, 100 * MIB)],
    )
    reading = NvmlReader(FakePynvml([device])).read(1.0, 1.0)
    pids = [row.pid for gpu in reading.gpus for row in gpu.processes or ()]
    view = ProcReader(tree.root, own_pid=tree.own).read(1.0, pids)
    result = attribute(reading, view, (facts("a", 8000), facts("b", 8001)))
    adds_up(reading, result)
    uuid = reading.gpus[0].uuid
    assert (used(result, "a"), used(result, "b")) == ({uuid: 300 * MIB}, {uuid: 200 * MIB})
    assert others(result, uuid) == {("python train.py", False): 100 * MIB, ("Xorg", False): 50 * MIB}
    assert result.gpus[uuid].unattributed_bytes == 350 * MIB
