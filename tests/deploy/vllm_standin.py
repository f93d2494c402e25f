"""Stands for ``vllm serve`` in a container: its command line, its port, its process tree, recorded answers; no GPU.

Started as ``vllm`` with the arguments of compose.yaml.  A child process has the engine's title; the test says to the
fake driver library how much GPU memory that child holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

from vllmeter.recording.replay import ReplayServer

RECORDING = "/usr/share/vllmeter/vllm-0.26.0-h200-three-instances.vmrec"
KINDS = {"Qwen3": "generate", "bge-m3": "embed", "bge-reranker": "rerank"}


def main() -> None:
    """Serves the recorded server of the same kind on port 8000 until SIGTERM."""
    model = next(word.partition("=")[2] for word in sys.argv if word.startswith("--model="))
    kind = next(kind for name, kind in KINDS.items() if name in model)
    engine = subprocess.Popen(["VLLM::EngineCore", "1000000"], executable="/bin/sleep")
    server = ReplayServer(RECORDING, host="0.0.0.0", base_port=8000)
    header = server.player.header
    server.player.header = replace(header, servers=tuple(one for one in header.servers if one.kind == kind))
    server.start()
    sys.stdout.write(f"standing for {model} on port 8000, engine pid {engine.pid} of {os.getpid()}\n")
    sys.stdout.flush()
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    engine.kill()
    server.stop()


main()
