"""The exporter beside nvitop-exporter: the same card, the same seconds, 1 Hz.

nvitop-exporter reads GPU, processes and host through NVML and ``/proc``; without servers we do about that, with three
we also scrape, parse and keep windows.  It needs a real NVIDIA driver: it goes through the whole ``pynvml`` to the
library, which no fake of ours covers.  Three idle processes hold memory on the card meanwhile, since both
exporters work per process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import live
from benchmarks.registry import Figure

TITLE = "exporter beside nvitop-exporter on the same card at 1 Hz"
ORDER = 65

VERSION = "1.7.2"
PACKAGES = (
    *(f"nvitop-exporter=={VERSION}", f"nvitop=={VERSION}"),
    *("nvidia-ml-py==13.615.71", "prometheus-client==0.26.0", "psutil==7.2.2"),
)
SITE = os.environ.get("BENCH_NVITOP_SITE")
"""Folder in which nvitop-exporter is installed already, for machines without a package index"""

HOLDERS = 3
HOLDER = '''\
"""Holds 1 GB of the first card, says so, and waits for the end of its input."""
import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
device, context, held = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for step, code in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
    ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)),
    ("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context)),
    ("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(1_000_000_000))),
):
    if code:
        sys.exit(f"{step}: error {code}")
print("holds", flush=True)
sys.stdin.read()
'''


class NotHereError(Exception):
    """nvitop-exporter does not start on this machine; the text says why."""


def python_and_path() -> tuple[str, str]:
    """Interpreter for nvitop-exporter and its PYTHONPATH; an environment of its own is made once."""
    if SITE is not None:
        return sys.executable, SITE
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "vllmeter"
    folder = cache / f"nvitop-exporter-{VERSION}-{sys.version_info[0]}.{sys.version_info[1]}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists() or ready.read_text() != "\n".join(PACKAGES):
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", *PACKAGES],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotHereError(f"it could not be installed: {last_line(done.stderr + done.stdout)}")
        ready.write_text("\n".join(PACKAGES))
    return str(python), ""


def last_line(text: str) -> str:
    """What a program said in the end."""
    return (text.strip().splitlines() or ["no message"])[-1]


@contextlib.contextmanager
def nvitop(folder: Path) -> Iterator[live.Running]:
    """nvitop-exporter with its own defaults: all cards, once a second; NotHereError when it ends instead of serving."""
    python, path = python_and_path()
    port, log = live.free_ports(1), folder / "nvitop-exporter.log"
    command = [python, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)]
    with live.process(command, log, {**os.environ, "PYTHONPATH": path}) as started:
        deadline = time.monotonic() + 30
        while live.get(port, "/metrics") != 200:
            if started.poll() is not None or time.monotonic() > deadline:
                said = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
                raise NotHereError((said or [last_line(log.read_text(errors="replace"))])[0])
            time.sleep(0.2)
        yield live.Running(started.pid, port, log)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """Processes on the card; how many of them there are (the driver may refuse)."""
    script = folder / "holder.py"
    script.write_text(HOLDER)
    running = []
    try:
        for _ in range(HOLDERS):
            running.append(
                subprocess.Popen(
                    [sys.executable, str(script)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
        yield sum(one.stdout is not None and one.stdout.readline() == b"holds\n" for one in running)
    finally:
        for one in running:
            one.communicate()


def run(quick: bool) -> list[Figure]:
    """CPU and memory of nvitop-exporter, and of ours without and with three servers."""
    with contextlib.ExitStack() as stack:
        replay = stack.enter_context(live.replayed(3))
        holders = stack.enter_context(held(replay.folder))
        try:
            theirs = stack.enter_context(nvitop(replay.folder))
        except NotHereError as reason:
            return [Figure("nvitop-exporter does not start here", None, "", note=str(reason))]
        ours = {servers: stack.enter_context(live.exporter(replay, servers, "real")) for servers in (0, 3)}
        watched = [theirs, *ours.values()]
        live.costs(watched, 5 if quick else 130)  # then no process is young any more
        # Each must read the card, else it is cheap for nothing.
        for one, name in (
            (theirs, "gpu_memory_used_MiB{"),
            *((one, "vllmeter_gpu_memory_used_bytes{") for one in ours.values()),
        ):
            if name not in live.body(one.port, "/metrics"):
                raise RuntimeError(
                    f"no {name} in {one.log.name}'s process\n{one.log.read_text(errors='replace')[-2000:]}"
                )
        for one in watched:
            stack.enter_context(live.scraped(one, every=15.0))
        cost, *costs = live.costs(watched, 20 if quick else 60)
    figures = [
        Figure(
            "nvitop-exporter, CPU", 100 * cost.share, "%", note=f"{live.load_note()}; {holders} processes on the card"
        ),
        Figure("nvitop-exporter, memory", cost.memory / 1e6, "MB"),
    ]
    for servers, mine in zip(ours, costs, strict=True):
        figures += [
            Figure(f"{servers} servers: vllmeter, CPU", 100 * mine.share, "%"),
            Figure(f"{servers} servers: vllmeter, memory", mine.memory / 1e6, "MB"),
            Figure(f"{servers} servers: vllmeter's CPU against nvitop-exporter's", mine.share / cost.share, "x"),
            Figure(f"{servers} servers: vllmeter's memory against nvitop-exporter's", mine.memory / cost.memory, "x"),
        ]
    return figures
