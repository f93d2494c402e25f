"""The recording file: what goes in comes out, and damage is told, not swallowed."""

from __future__ import annotations

import lzma
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.recording.documents import (
    DocumentError,
    nvml_from_json,
    nvml_to_json,
    processes_from_json,
    processes_to_json,
)
from vllmeter.recording.format import (
    Answer,
    Down,
    End,
    Gpus,
    Header,
    Health,
    Phase,
    Processes,
    Record,
    RecordedServer,
    RecordingError,
    RecordingReader,
    RecordingWriter,
    copy,
    summarise,
)
from vllmeter.snapshot import GpuProcess, GpuReading, HostProcess, NvmlReading, ProcessTable

HEADER = Header(
    recorded=1_796_129_259.25,
    servers=(
        RecordedServer("chat", 8002, "m", "0.26.0", "generate", {"port": "8002"}, 4096),
        RecordedServer("embed", 8001),
    ),
    boot=1_796_000_000.0,
    gpus=("NVIDIA H200",),
    driver="580.1",
    state="test",
    masked=("nothing",),
    notes=("a note",),
)
CAPTURES = Path(__file__).parent.parent / "captures"


def reading(used: int, t: float = 0.0, sm: float | None = None) -> NvmlReading:
    """A reading with one GPU and one process."""
    process = GpuProcess(7, used, frozenset({"compute", "mps"}), None, None, sm)
    gpu = GpuReading(0, "GPU-1", "X", 100, used, 100 - used, 0, (process,), 0.5, absent={"xid_last": "none"})
    return NvmlReading(t, HEADER.recorded + t, True, gpus=(gpu,), driver_version="580.1")


def table(ticks: int, t: float = 0.0) -> ProcessTable:
    """A table with one process."""
    item = HostProcess(
        7,
        1,
        ticks,
        "python3",
        ("vllm", "serve"),
        namespace_pids=(7,),
        listening_ports=(8002,),
        environ={"A": "b"},
    )
    return ProcessTable(t, {7: item}, host_pid_namespace=True)


BODIES = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(["a 1", "a 2", "b 3.5", "# HELP a x", "c", "", "d\r", "\xe4 1"]), max_size=12).map(
        lambda lines: "\n".join(lines).encode()
    ),
)
SERVERS = st.sampled_from(["chat", "embed"])
RECORDS = st.lists(
    st.one_of(
        st.builds(
            Answer,
            st.just(0.0),
            SERVERS,
            BODIES,
            st.sampled_from(["text/plain; version=1.0.0", "application/openmetrics-text"]),
            st.sampled_from([200, 200, 200, 500]),
            st.sampled_from([None, 0.25]),
        ),
        st.builds(Down, st.just(0.0), SERVERS, st.sampled_from(["refused", "timeout"])),
        st.builds(Health, st.just(0.0), SERVERS, st.sampled_from([200, 503, None])),
        st.builds(Phase, st.just(0.0), st.text(max_size=5)),
        st.builds(
            lambda used, sm: Gpus(0.0, reading(used, sm=sm)), st.integers(0, 5), st.sampled_from([None, 0.0, 0.5])
        ),
        st.builds(lambda ticks: Processes(0.0, table(ticks)), st.integers(0, 3)),
    ),
    max_size=30,
)


def timed(records: list[Any]) -> list[Record]:
    """The records at 0.0, 0.5, 1.0 … seconds."""
    out: list[Record] = []
    for number, record in enumerate(records):
        t = number * 0.5
        values = {name: getattr(record, name) for name in record.__slots__} | {"t": t}
        if isinstance(record, Gpus):
            values["reading"] = replace(record.reading, at=t, wall=HEADER.recorded + t)
        if isinstance(record, Processes):
            values["table"] = replace(record.table, at=t)
        out.append(type(record)(**values))
    return out


@settings(max_examples=120, deadline=None)
@given(RECORDS, st.booleans(), st.integers(1, 4))
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], live: bool, every: int
) -> None:
    """Every record comes back equal, bodies byte for byte (whatever bytes), whatever the keyframe distance."""
    path = tmp_path_factory.mktemp("rec") / "x.vmrec"
    expected = timed(records)
    with RecordingWriter(path, HEADER, live=live, keyframe_every=every) as writer:
        for record in expected:
            writer.write(record)
            if live:
                writer.flush()
    with RecordingReader(path) as reader:
        assert reader.header == HEADER
        found = list(reader)
    assert reader.truncated is None
    assert found[:-1] == expected
    assert isinstance(found[-1], End)


def test_a_real_series_is_small(tmp_path: Path) -> None:
    """Five minutes of three servers take 54 kB; the plain text of their bodies is over 40 MB."""
    path = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
    with RecordingReader(path) as reader:
        total = sum(len(record.body) for record in reader if isinstance(record, Answer))
    assert total > 40_000_000
    assert path.stat().st_size < 60_000


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """Of a file that was cut anywhere, what came before is read and the cut is reported."""
    path = tmp_path / "cut.vmrec"
    live = tmp_path / "live.vmrec"
    source = RecordingReader(CAPTURES / "vllm-0.26.0-h200-pressure.vmrec")
    with source, RecordingWriter(live, source.header) as writer:
        expected = list(source)[:-1]
        for record in expected:
            writer.write(record)
    whole = live.read_bytes()
    counts = []
    for share in (0.05, 0.3, 0.6, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with RecordingReader(path) as reader:
            found = [record for record in reader if not isinstance(record, End)]
        assert reader.truncated is not None
        assert found == expected[: len(found)]
        counts.append(len(found))
    # The first block holds the full bodies, so records are not spread evenly over the bytes.
    assert counts == sorted(counts)
    assert counts[2] > len(expected) / 4
    assert counts[-1] > len(expected) * 0.95


def test_what_was_flushed_survives_kill_9(tmp_path: Path) -> None:
    """A writer that is killed leaves everything it flushed, and the missing end is reported."""
    path = tmp_path / "killed.vmrec"
    code = (
        "import sys, time\n"
        "from vllmeter.recording.format import *\n"
        f"w = RecordingWriter({str(path)!r}, Header(1.0, (RecordedServer('chat', 1),)))\n"
        "for i in range(50):\n"
        "    w.write(Answer(i / 10, 'chat', f'a {i}\\nb 1\\n'.encode()))\n"
        "w.flush()\n"
        "w.write(Answer(5.0, 'chat', b'lost 1\\n'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    with RecordingReader(path) as reader:
        bodies = [record.body for record in reader if isinstance(record, Answer)]
    assert bodies == [f"a {i}\nb 1\n".encode() for i in range(50)]
    assert reader.truncated == "the end mark is missing: recording was stopped the hard way"


def test_a_running_recording_can_be_read(tmp_path: Path) -> None:
    """The header is there at once, and records follow at least every ten seconds of recording."""
    path = tmp_path / "x.vmrec"
    writer = RecordingWriter(path, HEADER)
    with RecordingReader(path) as reader:
        assert reader.header == HEADER
    writer.write(Answer(0.0, "chat", b"a 1\n"))
    writer.write(Answer(11.0, "chat", b"a 2\n"))
    with RecordingReader(path) as reader:
        assert len(list(reader)) == 2
    writer.close()


def test_zeros_after_the_data_are_no_damage(tmp_path: Path) -> None:
    """File systems may leave zero bytes after a crash; they are skipped."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, HEADER) as writer:
        writer.write(Answer(0.0, "chat", b"a 1\n"))
    path.write_bytes(path.read_bytes() + b"\0" * 200_000)
    with RecordingReader(path) as reader:
        assert len(list(reader)) == 2
    assert reader.truncated is None


def lines_of(path: Path) -> list[bytes]:
    """The JSON lines of a recording."""
    return lzma.decompress(path.read_bytes()).splitlines()


def write_lines(path: Path, lines: list[bytes]) -> None:
    """A recording made of raw lines."""
    path.write_bytes(lzma.compress(b"\n".join(lines) + b"\n"))


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"t":1,"k":"body","s":"embed","i":[0],"v":["1"]}', "record 2 (body) does not fit what came before"),
        (b'{"t":1,"k":"body","s":"chat","i":[7],"v":["1"]}', "record 2 (body) does not fit what came before"),
        (b'{"t":1,"k":"nvml"}', "record 2 (nvml) does not fit"),
        (b'{"t":1,"k":"nvml","d":{"=":{"up":true,"what":1}}}', "record 2 (nvml) is incomplete"),
        (b'{"t":1,"k":"proc","d":{"=":{}}}', "record 2 (proc) is incomplete"),
        (b'{"t":1,"k":"down"}', "record 2 (down) is incomplete"),
        (b'{"k":"down"}', "record 2 has no time"),
        (b"[]", "record 2 has no time"),
        (b"{nonsense", "record 2 is not JSON"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    """The error names the file, the record and a remedy."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, HEADER) as writer:
        writer.write(Answer(0.0, "chat", b"a 1\n"))
    write_lines(path, [*lines_of(path)[:2], line])
    with pytest.raises(RecordingError) as caught, RecordingReader(path) as reader:
        list(reader)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "vllmeter record --copy" in str(caught.value)


def test_flipped_bytes_are_damage(tmp_path: Path) -> None:
    """A changed byte is found by the checks of xz and told with the record number."""
    data = bytearray((CAPTURES / "vllm-0.26.0-h200-pressure.vmrec").read_bytes())
    data[len(data) // 2] ^= 0x55
    path = tmp_path / "x.vmrec"
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=r"x\.vmrec: record \d+ .*the file is damaged there"):
        summarise(path)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no header"),
        (b"# HELP x y\nx 1\n", "not a vllmeter recording"),
        (b"\xfd7zXZ\0 and then rubbish", "cannot be decompressed"),
        (b"\xfd7z", "holds no header"),
        (lzma.compress(b'{"a":1}\n'), "not a vllmeter recording"),
        (lzma.compress(b'{"vmrec":99}\n'), "use a newer vllmeter"),
        (lzma.compress(b'{"vmrec":1,"servers":[{"port":1}],"recorded":1}\n'), "damaged header"),
        (lzma.compress(b'{"vmrec":1,"servers":[{"name":"x","port":"y"}],"recorded":1}\n'), "damaged header"),
        (lzma.compress(b'{"vmrec":1,"servers":[],"recorded":"x"}\n'), "damaged header"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Other files, other versions and broken headers get one clear message with the file's name."""
    path = tmp_path / "x.vmrec"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message) as caught:
        RecordingReader(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_recording_error(tmp_path: Path) -> None:
    """A path that is not there is told like every other problem."""
    with pytest.raises(RecordingError, match="cannot be opened"):
        summarise(tmp_path / "no.vmrec")


def test_newer_files_with_more_in_them_are_read(tmp_path: Path) -> None:
    """Unknown keys and unknown record kinds of the same format version are skipped."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, HEADER) as writer:
        writer.write(Answer(0.0, "chat", b"a 1\n"))
    header, body, end = lines_of(path)
    write_lines(path, [header[:-1] + b',"news":1}', b'{"t":0,"k":"news"}', body[:-1] + b',"news":1}', end])
    with RecordingReader(path) as reader:
        assert [type(record) for record in reader] == [Answer, End]


def test_an_existing_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    """The writer refuses to replace a file unless told to."""
    path = tmp_path / "x.vmrec"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        RecordingWriter(path, HEADER)
    assert path.read_text() == "precious"
    RecordingWriter(path, HEADER, overwrite=True).close()
    assert summarise(path).records == 1


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Reading and writing takes the same memory after 900 records as after 200."""
    source = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
    peaks = []
    tracemalloc.start()
    try:
        with RecordingReader(source) as reader, RecordingWriter(tmp_path / "x.vmrec", reader.header) as writer:
            for number, record in enumerate(reader):
                writer.write(record)
                if number in (200, 900):
                    peaks.append(tracemalloc.get_traced_memory()[1])
                    tracemalloc.reset_peak()
                    if number == 900:
                        break
    finally:
        tracemalloc.stop()
    assert peaks[0] < 24_000_000  # 4 MB to decompress, 12 MB to compress, the rest bodies and records
    assert peaks[1] < peaks[0] * 1.1


def test_several_threads_may_write(tmp_path: Path) -> None:
    """Records of different servers from different threads do not mix up."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, HEADER) as writer:

        def work(name: str) -> None:
            for i in range(200):
                writer.write(Answer(i / 100, name, f"{name} {i}\n".encode()))

        threads = [threading.Thread(target=work, args=(name,)) for name in ("chat", "embed")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with RecordingReader(path) as reader:
        records = [record for record in reader if isinstance(record, Answer)]
    for name in ("chat", "embed"):
        assert [r.body for r in records if r.server == name] == [f"{name} {i}\n".encode() for i in range(200)]
    times = [record.t for record in records]
    assert times == sorted(times)


def test_a_closed_writer_refuses_records(tmp_path: Path) -> None:
    """Writing after the end is a mistake of the caller and is told."""
    writer = RecordingWriter(tmp_path / "x.vmrec", HEADER)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(Phase(0.0, "late"))


def test_a_failed_write_leaves_a_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full in the middle of a block, the half block is cut off and no further record is taken."""
    path = tmp_path / "x.vmrec"
    writer = RecordingWriter(path, HEADER)
    writer.write(Answer(0.0, "chat", b"a 1\n"))
    writer.flush()
    whole = path.stat().st_size

    class Full:
        """A file on a disk with room for ten more bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file
            self.written = 0

        def write(self, data: bytes) -> int:
            if self.written:
                raise OSError(28, "No space left on device")
            self.written += 10
            return int(self.file.write(data[:10]))

        def truncate(self, size: int) -> None:
            self.file.truncate(size)

        def close(self) -> None:
            self.file.close()

    monkeypatch.setattr(writer, "_file", Full(writer._file))
    writer.write(Answer(1.0, "chat", b"a 2\n"))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    with pytest.raises(ValueError, match="closed"):
        writer.write(Answer(2.0, "chat", b"a 3\n"))
    writer.close()
    assert path.stat().st_size == whole
    with RecordingReader(path) as reader:
        assert [record.body for record in reader if isinstance(record, Answer)] == [b"a 1\n"]
    assert reader.truncated is not None


def test_a_slice_begins_with_the_state_of_its_start(tmp_path: Path) -> None:
    """The copy of a slice starts with the last answer, reading, table and phase before it, and its own zero time."""
    source = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
    target = tmp_path / "slice.vmrec"
    assert copy(source, target, start=99.5, stop=103.5) is None
    with RecordingReader(target) as reader:
        records = list(reader)
    with RecordingReader(source) as reader:
        before = [record for record in reader if record.t < 99.5]
    expected = next(r for r in reversed(before) if isinstance(r, Answer) and r.server == "vllm-qwen3")
    first = next(r for r in records if isinstance(r, Answer) and r.server == "vllm-qwen3")
    assert first.body == expected.body
    assert first.t == 0.0
    assert [r.name for r in records if isinstance(r, Phase)] == ["pressure-64"]
    assert summarise(target).duration == pytest.approx(4.5, abs=0.6)
    assert summarise(target).header.recorded == pytest.approx(summarise(source).header.recorded + 99.5)


def test_copy_keeps_what_is_readable(tmp_path: Path) -> None:
    """A damaged file becomes a whole shorter one, and the problem is reported."""
    path, target = tmp_path / "x.vmrec", tmp_path / "y.vmrec"
    with RecordingWriter(path, HEADER) as writer:
        for i in range(3):
            writer.write(Answer(float(i), "chat", f"a {i}\n".encode()))
    write_lines(path, [*lines_of(path)[:3], b"{broken"])
    problem = copy(path, target)
    assert problem is not None
    assert "record 3" in problem
    assert summarise(target).truncated is None
    assert summarise(target).answers == {"chat": 2}


@pytest.mark.parametrize("document", [{"up": True, "x": 1}, {}, [], {"up": True, "gpus": [{"index": 0}]}, None])
def test_a_broken_nvml_document_is_an_error(document: Any) -> None:
    """Fields that are missing or unknown are told."""
    with pytest.raises(DocumentError):
        nvml_from_json(document, 0.0, 0.0)


def test_documents_leave_defaults_out_and_come_back_equal() -> None:
    """Absent stays absent (None), an empty list stays an empty list."""
    empty = NvmlReading(1.0, 2.0, True, gpus=(GpuReading(0, "u", "n", processes=()), GpuReading(1, "v", "n")))
    document = nvml_to_json(empty)
    assert document == {
        "up": True,
        "gpus": [{"index": 0, "uuid": "u", "name": "n", "processes": []}, {"index": 1, "uuid": "v", "name": "n"}],
    }
    assert nvml_from_json(document, 1.0, 2.0) == empty
    assert processes_from_json(processes_to_json(table(5, 3.0)), 3.0) == table(5, 3.0)
    with pytest.raises(DocumentError):
        processes_from_json({"processes": {"x": {}}}, 0.0)


def test_the_moment_of_an_xid_is_not_played_back() -> None:
    """Its code is; the moment would be one of the recording and not of the replay, so it is absent."""
    reading = NvmlReading(1.0, 2.0, True, gpus=(GpuReading(0, "u", "n", xid_last=31, xid_last_at=2.0),))
    (gpu,) = nvml_from_json(nvml_to_json(reading), 900.0, 901.0).gpus
    assert (gpu.xid_last, gpu.xid_last_at) == (31, None)


def test_flushing_follows_recorded_time_not_the_wall_clock(tmp_path: Path) -> None:
    """Records of one second do not each become a block: blocks would hardly compress."""
    path = tmp_path / "x.vmrec"
    with RecordingWriter(path, HEADER) as writer:
        size = path.stat().st_size
        begun = time.monotonic()
        for i in range(50):
            writer.write(Answer(i / 50, "chat", f"a {i}\n".encode()))
        assert path.stat().st_size == size
        assert time.monotonic() - begun < 5
