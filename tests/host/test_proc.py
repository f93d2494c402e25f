"""Reading /proc: what is of interest, what may be hidden, and that it stays cheap."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_proc import HOST_NET, FakeProc, docker, hexid, unit
from vllmeter.host.proc import INITIAL_PID_NAMESPACE, ProcReader, parse_stat
from vllmeter.host.sockets import parse_fib_trie, parse_if_inet6, parse_tcp

SERVE = ["/venv/bin/python3", "/venv/bin/vllm", "serve", "/m/qwen", "--port", "8002"]


@pytest.fixture
def tree(tmp_path: Path) -> FakeProc:
    """A server with its engine, a shell above it, and an unrelated program."""
    tree = FakeProc(tmp_path)
    tree.add(90, argv=["bash", "-c", "secret arguments of somebody"], comm="bash")
    tree.add(
        100,
        ppid=90,
        argv=SERVE,
        comm="vllm",
        listen={8002: 77001},
        established={8002: 3},
        environ={"VLLM_USE_V1": "1", "HF_TOKEN": "s3cret", "CUDA_VISIBLE_DEVICES": "0"},
        cpu_ticks=250,
        threads=7,
        rss_kb=663_952,
        shmem_kb=0,
    )
    tree.add(101, ppid=100, argv=["python3", "-c", "from multiprocessing.resource_tracker import main"])
    tree.add(102, ppid=100, argv=["VLLM::EngineCore"], comm="VLLM::EngineCor", padding=100, state="R", shmem_kb=128)
    tree.add(500, argv=["/usr/bin/nginx"])
    return tree


def reader(tree: FakeProc) -> ProcReader:
    """A reader of the fake tree with 100 ticks a second."""
    return ProcReader(tree.root, own_pid=tree.own, ticks_per_second=100)


def test_a_server_tree_with_all_its_fields(tree: FakeProc) -> None:
    """Everything that attribution and the host side need, in base units."""
    table = reader(tree).read(5.0, [102])
    assert set(table.processes) == {1, 90, 100, 101, 102}
    server = table.processes[100]
    assert (server.ppid, server.start_ticks, server.comm, server.state) == (90, 1100, "vllm", "S")
    assert server.argv == tuple(SERVE)
    assert (server.uid, server.namespace_pids, server.net_namespace) == (1000, (100,), HOST_NET)
    assert (server.cpu_seconds, server.threads) == (2.5, 7)
    assert (server.rss_bytes, server.shared_bytes) == (663_952 * 1024, 0)
    assert (server.listening_ports, server.connections) == ((8002,), 3)
    assert server.environ == {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "0"}
    engine = table.processes[102]
    assert engine.argv == ("VLLM::EngineCore",)
    assert (engine.state, engine.shared_bytes) == ("R", 128 * 1024)
    assert engine.environ is None
    assert table.host_pid_namespace is True
    assert (table.wsl, table.reason, table.same_pid_namespace) == (False, None, True)
    assert table.net_namespace == HOST_NET


def test_unrelated_programs_are_left_out_and_ancestors_lose_their_arguments(tree: FakeProc) -> None:
    """Nothing of other people's command lines is kept."""
    table = reader(tree).read(5.0, [102])
    assert 500 not in table.processes
    assert table.processes[90].argv == ("bash",)
    assert "argv" in table.processes[90].absent


def test_gpu_users_of_any_kind_are_read(tree: FakeProc) -> None:
    """A program that is no server is read when it uses a GPU."""
    table = reader(tree).read(5.0, [500])
    assert table.processes[500].argv == ("/usr/bin/nginx",)


def test_a_wiped_environment_is_absent_with_the_remedy(tree: FakeProc) -> None:
    """setproctitle overwrites the environment; SPT_NOENV=1 keeps it."""
    tree.add(110, argv=["vllm", "serve", "m"], environ=None)
    process = reader(tree).read(5.0, []).processes[110]
    assert process.environ is None
    assert "SPT_NOENV" in process.absent["environ"]


def test_another_users_process_is_absent_with_reasons(tree: FakeProc) -> None:
    """Without the right to look at ns, fd and environ the rest is still there."""
    tree.deny(100, "ns", "fd", "environ")
    process = reader(tree).read(5.0, []).processes[100]
    assert process.argv == tuple(SERVE)
    assert process.cpu_seconds == 2.5
    for name in ("listening_ports", "connections", "net_namespace", "environ"):
        assert getattr(process, name) is None
        assert "CAP_SYS_PTRACE" in process.absent[name]


def test_open_files_hidden_alone_is_absent_too(tree: FakeProc) -> None:
    """The namespace is readable, the descriptors are not."""
    tree.deny(100, "fd")
    process = reader(tree).read(5.0, []).processes[100]
    assert process.listening_ports is None
    assert "open files" in process.absent["listening_ports"]


def test_hidepid_is_noticed(tree: FakeProc) -> None:
    """A /proc without pid 1 hides other users' processes."""
    tree.remove(1)
    table = reader(tree).read(5.0, [102])
    assert table.reason is not None
    assert "hidepid" in table.reason


def test_a_missing_root_is_a_reason(tmp_path: Path) -> None:
    """A wrong mount is told, not raised."""
    table = ProcReader(tmp_path / "nothing", own_pid=1).read(1.0, [5])
    assert table.processes == {}
    assert table.reason is not None


def test_processes_that_end_while_being_read_are_left_out(tree: FakeProc) -> None:
    """A pid without files is gone; broken files are skipped."""
    tree.add(120, argv=["vllm", "serve", "x"])
    (tree.root / "120" / "stat").unlink()
    (tree.root / "100" / "stat").write_text("100 (vllm")
    table = reader(tree).read(5.0, [120, 100, 999])
    assert not {120, 100, 999} & set(table.processes)


def test_a_zombie_has_no_memory_and_a_reason(tree: FakeProc) -> None:
    """Absent is not zero."""
    tree.add(102, ppid=100, argv=[], comm="VLLM::EngineCor", state="Z", rss_kb=None)
    process = reader(tree).read(5.0, []).processes[102]
    assert (process.state, process.rss_bytes, process.shared_bytes) == ("Z", None, None)
    assert "zombie" in process.absent["rss_bytes"]


# --------------------------------------------------------------------------- namespaces


@pytest.mark.parametrize(
    ("namespace", "wsl", "expected"),
    [(INITIAL_PID_NAMESPACE, False, True), (4026532268, False, False), (4026532268, True, None)],
)
def test_pid_namespace_is_detected(tmp_path: Path, namespace: int, wsl: bool, expected: bool | None) -> None:
    """The first namespace has a fixed inode; under WSL2 a distribution has its own, which means nothing."""
    tree = FakeProc(tmp_path, own_namespace=namespace, wsl=wsl)
    table = reader(tree).read(1.0, [])
    assert table.host_pid_namespace is expected
    assert table.wsl is wsl


def test_a_mounted_host_proc_shows_us_under_another_pid(tree: FakeProc) -> None:
    """Then its pids are not those of our namespace."""
    table = ProcReader(tree.root, own_pid=7, ticks_per_second=100).read(1.0, [])
    assert table.same_pid_namespace is False


def test_equal_ports_of_two_network_namespaces_stay_apart(tree: FakeProc) -> None:
    """Two containers both listen on 8000; each has its own socket table and address."""
    for pid, net, name, address in ((300, 11, "a", "172.18.0.2"), (310, 12, "b", "172.18.0.3")):
        tree.add(pid, argv=["vllm", "serve", name], cgroup=docker(name), nspid=[pid, 1], net=net, listen={8000: pid})
        tree.addresses(net, address)
    tree.addresses(HOST_NET, "192.0.2.7")
    table = reader(tree).read(1.0, [])
    assert table.processes[300].listening_ports == (8000,)
    assert table.processes[310].listening_ports == (8000,)
    assert table.processes[300].net_namespace != table.processes[310].net_namespace
    assert "172.18.0.3" in table.namespace_addresses[12]
    assert "192.0.2.7" in table.namespace_addresses[HOST_NET]
    assert table.processes[300].container_id == hexid("a")
    assert table.processes[300].namespace_pids == (300, 1)


def test_the_proxy_of_a_published_port_is_of_interest(tree: FakeProc) -> None:
    """docker-proxy's arguments lead from the host's port to the container."""
    tree.add(400, argv=["/usr/bin/docker-proxy", "-host-port", "8005"], comm="docker-proxy", listen=[8005])
    assert reader(tree).read(1.0, []).processes[400].listening_ports == (8005,)


# --------------------------------------------------------------------------- over time


def test_a_process_that_renames_itself_is_noticed(tree: FakeProc) -> None:
    """An engine starts as `python -c` and gets its title later."""
    tree.add(102, ppid=100, argv=["python3", "-c", "spawn_main"], comm="python3", start=1102)
    source = reader(tree)
    assert source.read(0.0, []).processes[102].argv == ("python3", "-c", "spawn_main")
    tree.add(102, ppid=100, argv=["VLLM::EngineCore"], comm="VLLM::EngineCor", start=1102)
    assert source.read(1.0, []).processes[102].argv == ("VLLM::EngineCore",)


def test_a_shell_that_becomes_a_server_is_found(tree: FakeProc) -> None:
    """`exec vllm serve`: same pid, other program."""
    tree.add(600, argv=["bash", "start.sh"], comm="bash")
    source = reader(tree)
    assert 600 not in source.read(0.0, []).processes
    tree.add(600, argv=["vllm", "serve", "m"], comm="vllm")
    assert 600 in source.read(2.0, []).processes


def test_a_reused_pid_is_another_process(tree: FakeProc) -> None:
    """Nothing is kept from the process that had the number before."""
    source = reader(tree)
    source.read(0.0, [102])
    tree.remove(102)
    tree.add(102, argv=["python3", "train.py"], start=99_999, cgroup=unit("train.service"))
    process = source.read(1.0, [102]).processes[102]
    assert (process.start_ticks, process.argv, process.unit) == (99_999, ("python3", "train.py"), "train.service")


def test_a_new_port_is_seen_within_five_seconds(tree: FakeProc) -> None:
    """Sockets are read less often than the rest."""
    tree.add(130, argv=["vllm", "serve", "m"], comm="vllm")
    source = reader(tree)
    assert source.read(0.0, []).processes[130].listening_ports == ()
    tree.add(130, argv=["vllm", "serve", "m"], comm="vllm", listen=[8000])
    assert source.read(1.0, []).processes[130].listening_ports == ()
    assert source.read(5.0, []).processes[130].listening_ports == (8000,)


def test_sockets_of_a_server_that_runs_for_long_are_read_every_ten_seconds(tree: FakeProc) -> None:
    """net/tcp is dear on large machines, and an old server hardly opens another port."""
    tree.add(130, argv=["vllm", "serve", "m"], comm="vllm", listen=[8000])
    source = reader(tree)
    for at in (0.0, 120.0, 200.0):
        assert source.read(at, []).processes[130].listening_ports == (8000,)
    tree.add(130, argv=["vllm", "serve", "m"], comm="vllm", listen=[8000, 9000])
    assert source.read(209.0, []).processes[130].listening_ports == (8000,)
    assert source.read(210.0, []).processes[130].listening_ports == (8000, 9000)


def test_ended_processes_are_forgotten(tree: FakeProc) -> None:
    """No entry of a pid that is not there any more."""
    source = reader(tree)
    source.read(0.0, [102])
    tree.remove(102)
    assert 102 not in source.read(1.0, [102]).processes


def test_facts_are_cached_but_counters_are_not(tree: FakeProc) -> None:
    """After two minutes only what moves is read every tick."""
    source = reader(tree)
    source.read(0.0, [102])
    source.read(130.0, [102])
    tree.deny(102, "cmdline", "cgroup")
    tree.stat(102, ppid=100, comm="VLLM::EngineCor", start=1102, cpu_ticks=5_000)
    process = source.read(131.0, [102]).processes[102]
    assert process.argv == ("VLLM::EngineCore",)
    assert process.cpu_seconds == 50.0


def test_a_loop_of_stale_parents_does_not_hang(tree: FakeProc) -> None:
    """Pids reused between two looks can form a circle."""
    tree.add(700, ppid=701, argv=["vllm", "serve", "a"])
    tree.add(701, ppid=700, argv=["vllm", "serve", "b"])
    assert {700, 701} <= set(reader(tree).read(0.0, [700]).processes)


# --------------------------------------------------------------------------- parsers


def test_stat_with_spaces_and_parentheses_in_the_name() -> None:
    """The name is whatever the process chose."""
    stat = parse_stat("7 (a) b (c)) R 3 7 7 0 -1 0 1 2 3 4 11 22 0 0 20 0 9 0 12345 1 2 3")
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.cpu_ticks, stat.threads, stat.start_ticks) == (
        "a) b (c)",
        "R",
        3,
        33,
        9,
        12345,
    )
    assert parse_stat("7 (x) R 3") is None
    assert parse_stat("") is None


def test_tcp_tables_of_both_families() -> None:
    """Listening sockets by inode, connections counted by listening port, odd lines skipped."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    four = (
        head
        + "   0: 0100007F:1F42 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 11 1 0 100 0 0 10 0\n"
        + "   1: 0100007F:1F42 0100007F:C001 01 00000000:00000000 00:00000000 00000000  0 0 12 1 0 100 0 0 10 0\n"
        + "   2: 0100007F:C001 0100007F:1F42 01 00000000:00000000 00:00000000 00000000  0 0 13 1 0 100 0 0 10 0\n"
        + "   3: zzz\n"
        + "   4: 0100007F:GGGG 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 14 1 0 100 0 0 10 0\n"
    )
    six = (
        head
        + "   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 21 1 0\n"
        + "   1: 0000000000000000FFFF00000100007F:1F40 0000000000000000FFFF00000100007F:C002 01 0:0 00:0 0 0 0 22 1 0\n"
    )
    table = parse_tcp(four, six)
    assert table.listening == {11: ("127.0.0.1", 8002), 21: ("::", 8000)}
    assert table.established == {8002: 1, 8000: 1}


def test_local_addresses() -> None:
    """From the routing tree and the IPv6 list."""
    trie = "Main:\n  |-- 172.18.0.2\n     /32 host LOCAL\n  |-- 172.18.255.255\n     /32 link BROADCAST\n"
    assert parse_fib_trie(trie + trie) == ("172.18.0.2",)
    assert parse_if_inet6("fe800000000000000000000000000001 02 40 20 80 eth0\nodd\n") == ("fe80::1",)


# --------------------------------------------------------------------------- the real /proc


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A real process that looks like `vllm serve` and listens: (pid, port)."""
    script = tmp_path / "vllm"
    script.write_text(
        "import socket, sys, time\n"
        "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "c = s.accept(); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), "serve", "m", "--api-key", "s3cret"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.pid, int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_real_process_with_its_port_and_connection(server_process: tuple[int, int]) -> None:
    """The real /proc of this machine."""
    pid, port = server_process
    with socket.create_connection(("127.0.0.1", port)):
        time.sleep(0.05)
        table = ProcReader().read(1.0, [])
        process = table.processes[pid]
        assert process.listening_ports == (port,)
        assert process.connections == 1
        assert process.argv is not None
        assert process.argv[-1] == "***"
        assert process.ppid == os.getpid()
        assert os.getpid() in table.processes


def test_own_pid_is_the_default() -> None:
    """Without a bind mount the pids are ours."""
    assert ProcReader().read(1.0, [os.getpid()]).same_pid_namespace
