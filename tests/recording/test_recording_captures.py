"""The recordings in tests/captures: size, header, masking and the events that other tests rely on."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllmeter.recording.format import Answer, RecordingReader, summarise
from vllmeter.recording.player import Player

CAPTURES = Path(__file__).parent.parent / "captures"
RECORDINGS = sorted(CAPTURES.glob("*.vmrec"))
H200 = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CPU = CAPTURES / "vllm-0.32.0-cpu-chat.vmrec"


def total(body: bytes, family: str) -> float:
    """Sum of a series over its labels."""
    return sum(
        sample.value
        for metric in text_string_to_metric_families(body.decode())
        for sample in metric.samples
        if sample.name == family
    )


def test_there_are_recordings() -> None:
    """The parametrised tests below run on something."""
    assert {path.name for path in RECORDINGS} >= {H200.name, CPU.name, "vllm-0.26.0-h200-pressure.vmrec"}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recording_is_whole_small_and_says_what_it_is(path: Path) -> None:
    """Under 400 kB, nothing cut, header with version, state and servers; its name begins with the version."""
    summary = summarise(path)
    assert summary.bytes < 400_000
    assert summary.truncated is None
    header = summary.header
    assert header.vllm
    assert path.name.startswith(f"vllm-{header.vllm}-")
    assert header.state
    assert header.notes
    assert all(server.version and server.model and server.flags for server in header.servers)
    assert all(summary.answers[server.name] > 40 for server in header.servers)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_no_recording_names_a_machine_or_a_person(path: Path) -> None:
    """No home folder, no address but loopback, no key in bodies, processes or header."""
    seen: set[str] = set()
    with RecordingReader(path) as reader:
        texts = [repr(reader.header)]
        for record in reader:
            if isinstance(record, Answer):
                new = set(re.findall(r'"([^"]*)"', record.body.decode())) - seen
                seen |= new
                texts.extend(new)
            else:
                texts.append(repr(record))
    for text in texts:
        assert not re.search(r"/home/|/Users/|/root\b|\bsk-|\bhf_[A-Za-z0-9]{8}", text), text
        addresses = re.findall(r"(?<![\d.])\d+\.\d+\.\d+\.\d+(?![\d.])", text)
        assert set(addresses) <= {"127.0.0.1"}, text


def test_the_gpu_recording_holds_its_known_events() -> None:
    """299 s; 19 preemptions and 52,480 hit tokens before the restart, counters from 0 after it."""
    player = Player(H200)
    assert player.duration == pytest.approx(299.0, abs=0.1)
    assert player.header.driver == "580.159.04"
    assert player.header.gpus == ("NVIDIA H200",)
    body = player.at(161.5).servers["vllm-qwen3"].body
    assert body is not None
    assert total(body, "vllm:num_preemptions_total") == 19
    assert total(body, "vllm:prefix_cache_hits_total") == 52_480
    body = player.at(209.0).servers["vllm-qwen3"].body
    assert body is not None
    assert total(body, "vllm:num_preemptions_total") == 0
    assert total(body, "vllm:generation_tokens_total") == 0
    player.close()


def test_process_memory_adds_up_in_the_gpu_recording() -> None:
    """Used memory exceeds the sum of the processes by the driver's few MB per process, at every tick."""
    player = Player(H200)
    for t in range(299):
        player.advance(float(t) + 0.5)
        reading = player.nvml(0.0, 0.0)
        assert reading is not None
        gpu = reading.gpus[0]
        assert gpu.processes is not None
        assert gpu.memory_used_bytes is not None
        rest = gpu.memory_used_bytes - sum(p.used_bytes or 0 for p in gpu.processes)
        # Around the start of the new engine its memory grows between the two calls of one tick.
        assert abs(rest) < 40e6 or 200 < t < 212, (t, rest)
    player.close()


def test_every_gpu_process_has_a_parent_that_serves() -> None:
    """Each engine of the NVML list is in the process table under an API server with its port in the command line."""
    player = Player(H200)
    for t in (0, 100, 163, 204, 298):
        player.advance(float(t) + 0.5)
        reading, table = player.nvml(0.0, 0.0), player.processes(0.0)
        assert reading is not None
        assert table is not None
        for process in reading.gpus[0].processes or ():
            parent = table.processes[table.processes[process.pid].ppid]
            assert parent.argv is not None
            assert "--port" in parent.argv
    player.close()


def test_the_cpu_recording_keeps_late_answers() -> None:
    """97 answers in 100 s: under load they come up to seconds late, which replay keeps."""
    with RecordingReader(CPU) as reader:
        times = [record.t for record in reader if isinstance(record, Answer)]
    assert len(times) == 97
    assert max(b - a for a, b in pairwise(times)) > 1.5
