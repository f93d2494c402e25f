"""Run folders: nothing that happens to one run touches another."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runs.synthetic import START, add_run, lockstep_requests, samples_of
from vllmeter.runs import store as store_module
from vllmeter.runs.model import INTERRUPTED, RUNNING, SCHEMA, Run, RunFormatError, ServerConfig, run_from_json, to_json
from vllmeter.runs.samples import SampleWriter, read_samples
from vllmeter.runs.store import RunStore, StoreError, default_state_dir, write_atomic


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


def blank(name: str = "a", started: float = START) -> Run:
    return Run(id="", name=name, started=started, pid=os.getpid(), host=os.uname().nodename)


def test_a_run_reads_back_as_it_was_written(store: RunStore) -> None:
    """Every field survives, also those of the servers."""
    run = add_run(store, "base-2048", lockstep_requests(1, 40))
    (found,) = store.find("base-2048")
    assert found == run
    assert store.find(run.id) == [run]
    assert len(store.results(run.id)[0].requests) == 40


def test_samples_read_back_exactly(store: RunStore) -> None:
    """The compressed samples hold the same values as the ones written."""
    records = lockstep_requests(2, 24)
    run = add_run(store, "a", records)
    config = run.before["chat"]
    expected = samples_of(records, config, START)
    found, problem = store.samples(run.id)
    assert problem is None
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert got.wall == want.wall
        assert got.servers["chat"].scalars == want.servers["chat"].scalars
        assert got.servers["chat"].histograms == want.servers["chat"].histograms
        assert got.servers["chat"].memory == want.servers["chat"].memory


def test_a_future_schema_is_refused_with_a_remedy() -> None:
    """A file of a newer vllmeter is not misread."""
    with pytest.raises(RunFormatError, match="use a newer vllmeter"):
        run_from_json({"schema": SCHEMA + 1, "id": "a", "name": "a"})


def test_unknown_keys_and_missing_optional_fields_are_fine() -> None:
    """Old and slightly newer files stay readable."""
    assert run_from_json({"schema": 1, "id": "i", "name": "n", "surprise": [1]}).scenario == "default"
    with pytest.raises(RunFormatError, match=r"run\.started has the wrong type"):
        run_from_json({"schema": 1, "id": "i", "name": "n", "started": "yesterday"})
    with pytest.raises(RunFormatError, match=r"run\.name is missing"):
        run_from_json({"schema": 1, "id": "i"})


def test_json_round_trip_keeps_configurations() -> None:
    """Server configurations are nested objects by server name."""
    run = dataclasses.replace(
        blank(), id="x", before={"s": ServerConfig("s", "m", "0.26.0", 1.5, {"a": "b"}, {"u": 2.0}, 1, 2)}
    )
    assert run_from_json(json.loads(json.dumps({"schema": 1, **to_json(run)}))) == run


def test_two_runs_at_once_get_folders_of_their_own(store: RunStore) -> None:
    """The same name in the same second is no conflict."""
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: store.create(blank("same")), range(24)))
    assert len({run.id for run in runs}) == 24
    assert len(store.find("same")) == 24


def test_a_corrupt_run_is_listed_and_hides_no_other(store: RunStore) -> None:
    """The damaged folder is named with what to do; the others are read."""
    good = add_run(store, "good", lockstep_requests(1, 20))
    bad = add_run(store, "bad", lockstep_requests(2, 20), started=START + 100)
    (store.folder / bad.id / "run.json").write_text('{"schema": 1, "id": ')
    (store.folder / "junk").mkdir()
    by_id = {each.id: each for each in store.all()}
    assert by_id[good.id].problem is None
    assert f"vllmeter runs --delete {bad.id}" in (by_id[bad.id].problem or "")
    assert "run.json is missing" in (by_id["junk"].problem or "")
    assert [run.id for run in store.find("good")] == [good.id]
    store.delete(bad.id)
    assert bad.id not in {each.id for each in store.all()}


def test_damaged_client_results_name_the_remedy(store: RunStore) -> None:
    """They can be imported again; the run itself stays."""
    run = add_run(store, "a", lockstep_requests(1, 20))
    (store.folder / run.id / "client.json.gz").write_bytes(b"\x1f\x8b nonsense")
    with pytest.raises(StoreError, match=f"import FILE --run {run.id}"):
        store.results(run.id)
    assert store.find("a") == [run]


def test_cut_samples_are_read_up_to_the_cut(store: RunStore) -> None:
    """A truncated or damaged sample file gives what is before the damage, and says so."""
    run = add_run(store, "a", lockstep_requests(1, 200))
    path = store.samples_path(run.id)
    whole, _ = read_samples(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    part, problem = read_samples(path)
    assert 0 < len(part) < len(whole)
    assert part == whole[: len(part)]
    assert "damaged after" in (problem or "")
    path.unlink()
    assert read_samples(path) == ([], "no samples were stored")


def test_atomic_writes_leave_the_old_file_when_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle changes nothing and leaves no temporary file."""
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_a_full_disk_is_one_clear_message(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the place and the ways out."""

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", refuse)
    with pytest.raises(StoreError, match=r"no space left for .*vllmeter runs --prune --older 30d"):
        store.create(blank())


def test_the_reserve_is_given_up_at_the_end(store: RunStore) -> None:
    """A running run holds 64 kB so that its end fits on a full disk; a finished one holds none."""
    run = store.create(blank())
    reserve = store.folder / run.id / ".reserve"
    assert reserve.stat().st_size == store_module.RESERVE_BYTES
    store.save(dataclasses.replace(run, state="finished"))
    assert not reserve.exists()


def test_a_failed_flush_keeps_what_was_flushed_before(tmp_path: Path) -> None:
    """A file that cannot grow (as on a full disk) gets half a gzip stream: it is cut off again, no more is lost."""
    expected = samples_of(lockstep_requests(1, 60), ServerConfig("chat"), START)
    path = tmp_path / "s.gz"
    writer = SampleWriter(path)
    for sample in expected[:10]:
        writer.write(sample)
    writer.flush()
    size = path.stat().st_size
    for sample in expected[10:15]:
        writer.write(sample)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, old[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert path.stat().st_size == size
    writer.flush()
    found, problem = read_samples(path)
    assert problem is None
    assert [each.wall for each in found] == [each.wall for each in expected[:15]]


def test_a_killed_process_leaves_a_readable_run(store: RunStore) -> None:
    """kill -9 in the middle: the run is listed as interrupted, with its samples."""
    code = """
import os, sys, time
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from runs.synthetic import START, lockstep_requests, samples_of
from vllmeter.runs.model import Run, ServerConfig
from vllmeter.runs.samples import SampleWriter
from vllmeter.runs.store import RunStore
store = RunStore(Path(sys.argv[1]))
run = store.create(Run(id="", name="killed", started=START, pid=os.getpid(), host=os.uname().nodename))
writer = SampleWriter(store.samples_path(run.id))
for sample in samples_of(lockstep_requests(1, 40), ServerConfig("chat"), START)[:25]:
    writer.write(sample)
print(run.id, flush=True)
time.sleep(60)
"""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(store.state), str(here.parent), str(here.parents[1] / "exporter")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    (alive,) = store.all()
    assert alive.run is not None
    assert alive.run.state == RUNNING
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    (listed,) = store.all()
    assert listed.run is not None
    assert (listed.id, listed.run.state) == (run_id, INTERRUPTED)
    assert f"vllmeter runs --close {run_id}" in (listed.problem or "")
    found, problem = store.samples(run_id)
    assert problem is None
    assert len(found) >= 15
    closed = store.close_interrupted(run_id)
    assert (closed.state, closed.ended) == ("finished", found[-1].wall)
    assert store.find("killed") == [closed]
    with pytest.raises(StoreError, match="only an interrupted run"):
        store.close_interrupted(run_id)


def test_prune_by_age_and_size_never_takes_baselines_or_running_runs(store: RunStore) -> None:
    """Old runs go, then the oldest until the rest fits; what is in use stays."""
    runs = [add_run(store, f"r{i}", lockstep_requests(i, 40), started=START + 86400 * i) for i in range(5)]
    active = store.create(blank("active", START - 86400 * 90))
    now = START + 86400 * 5
    removed = store.prune(now=now, older=86400 * 3.5, keep=lambda each: each == runs[0].id)
    assert [each.id for each in removed] == [runs[1].id]
    removed = store.prune(now=now, keep_bytes=1, keep=lambda each: each == runs[0].id)
    assert [each.id for each in removed] == [runs[2].id, runs[3].id, runs[4].id]
    assert {each.id for each in store.all()} == {runs[0].id, active.id}


@pytest.mark.parametrize("name", ["", "../x", "-a", "a\nb", "x" * 101, 'a"b'])
def test_bad_names_are_refused(store: RunStore, name: str) -> None:
    """Names are labels and folder names: no tricks."""
    with pytest.raises(StoreError, match="cannot be a run name"):
        store.create(blank(name))


@pytest.mark.parametrize("run_id", ["", "..", "../..", "nothing"])
def test_delete_stays_in_its_folder(store: RunStore, run_id: str) -> None:
    """Only folders of runs can be removed."""
    add_run(store, "a", lockstep_requests(1, 20))
    with pytest.raises(StoreError, match="no run with the id"):
        store.delete(run_id)
    assert len(store.all()) == 1


def test_unknown_names_list_the_known_ones(store: RunStore) -> None:
    """A typo is answered with the names that exist."""
    add_run(store, "base", lockstep_requests(1, 20))
    with pytest.raises(StoreError, match="known: base"):
        store.find("bsae")


def test_the_state_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """VLLMETER_STATE, then XDG_STATE_HOME, then the user's own folder."""
    monkeypatch.setenv("VLLMETER_STATE", str(tmp_path / "own"))
    assert default_state_dir() == tmp_path / "own"
    monkeypatch.delenv("VLLMETER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert default_state_dir() == tmp_path / "xdg" / "vllmeter"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_dir().parts[-3:] == (".local", "state", "vllmeter")


def test_listing_a_store_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    """No folder is no error."""
    assert RunStore(tmp_path / "nowhere").all() == []
