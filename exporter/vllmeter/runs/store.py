"""Where runs are kept: one folder per run below one state folder.

``<state>/runs/<id>/`` holds ``run.json`` (what and how), ``samples.jsonl.gz`` (1 s samples) and ``client.json.gz``
(results of the load-test tools).  The state folder is ``$VLLMETER_STATE``, else ``$XDG_STATE_HOME/vllmeter``, else
``~/.local/state/vllmeter``.

Nothing that goes wrong with one run touches another: every file is replaced atomically, a damaged run is listed with
what to do, and on a full disk the recording stops while the load test goes on (64 kB are set aside so that the end of
the run can still be written).
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllmeter.runs.model import (
    FINISHED,
    INTERRUPTED,
    RUNNING,
    SCHEMA,
    Run,
    RunFormatError,
    result_from_json,
    result_to_json,
    run_from_json,
    to_json,
)
from vllmeter.runs.results import ClientResult
from vllmeter.runs.samples import Sample, read_samples

RESERVE_BYTES: Final = 64 * 1024
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ -]{0,99}")


class StoreError(Exception):
    """Runs cannot be read or written; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One folder of the store.  ``problem`` says what is wrong and what to do; ``run`` is then None or partial."""

    id: str
    path: Path
    bytes: int
    run: Run | None
    problem: str | None = None


def default_state_dir() -> Path:
    """The state folder by environment; see the module's text."""
    own = os.environ.get("VLLMETER_STATE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "vllmeter"


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces ``path`` as a whole: readers see the old or the new content, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def disk_message(error: OSError, path: Path) -> str:
    """A failure to write, with what helps."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left for {path}: free some, remove old runs with `vllmeter runs --prune --older 30d`, "
            "or set another folder with --state or VLLMETER_STATE"
        )
    cause = error.strerror or error
    return f"{path} cannot be written ({cause}): check its permissions, or set another folder with --state"


class RunStore:
    """Runs below ``state``.  Safe with several processes at once: each run has a folder of its own."""

    def __init__(self, state: Path | None = None) -> None:
        self.state = state if state is not None else default_state_dir()
        self.folder = self.state / "runs"

    # ------------------------------------------------------------------ writing

    def create(self, run: Run) -> Run:
        """Makes the folder of a run and writes its first state; returns it with its ``id``.

        Raises :class:`StoreError` for a bad name or when nothing can be written.
        """
        check_name(run.name)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(run.started))
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.")[:40] or "run"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                made = dataclasses.replace(run, id=f"{stamp}-{slug}-{secrets.token_hex(2)}")
                try:
                    (self.folder / made.id).mkdir()
                    break
                except FileExistsError:
                    continue  # another run began in the same second and drew the same number
            (self.folder / made.id / ".reserve").write_bytes(os.urandom(RESERVE_BYTES))
            self.save(made)
        except OSError as error:
            raise StoreError(disk_message(error, self.folder)) from error
        return made

    def save(self, run: Run) -> None:
        """Writes the state of a run; a finished one gives up its reserve first, so that it fits on a full disk."""
        folder = self.folder / run.id
        if run.state != RUNNING:
            (folder / ".reserve").unlink(missing_ok=True)
        data = json.dumps({"schema": SCHEMA, **to_json(run)}, indent=1, ensure_ascii=False).encode()
        try:
            write_atomic(folder / "run.json", data)
        except OSError as error:
            raise StoreError(disk_message(error, folder)) from error

    def save_results(self, run_id: str, results: Sequence[ClientResult]) -> None:
        """Writes the client results of a run (all of them: replaces what was there)."""
        data = json.dumps([result_to_json(each) for each in results], separators=(",", ":")).encode()
        try:
            write_atomic(self.folder / run_id / "client.json.gz", gzip.compress(data, 6, mtime=0))
        except OSError as error:
            raise StoreError(disk_message(error, self.folder / run_id)) from error

    def samples_path(self, run_id: str) -> Path:
        """The sample file of a run."""
        return self.folder / run_id / "samples.jsonl.gz"

    # ------------------------------------------------------------------ reading

    def all(self) -> list[StoredRun]:
        """All runs, oldest first; damaged ones too, with the problem in words."""
        if not self.folder.is_dir():
            return []
        found = [self._stored(path) for path in self.folder.iterdir() if path.is_dir()]
        return sorted(found, key=lambda each: (each.run.started if each.run else 0.0, each.id))

    def _stored(self, path: Path) -> StoredRun:
        size = 0
        for each in path.glob("*"):
            try:
                size += each.stat().st_size
            except OSError:
                continue
        try:
            run = run_from_json(json.loads((path / "run.json").read_bytes()))
        except FileNotFoundError:
            return StoredRun(
                path.name, path, size, None, f"run.json is missing: remove it with `vllmeter runs --delete {path.name}`"
            )
        except (OSError, ValueError) as error:
            cause = str(error) if isinstance(error, RunFormatError) else f"run.json is damaged ({error})"
            return StoredRun(
                path.name,
                path,
                size,
                None,
                f"{cause}; its samples are still in {path}; remove it with `vllmeter runs --delete {path.name}`",
            )
        run = dataclasses.replace(run, id=path.name)
        if run.state == RUNNING and not _alive(run):
            run = dataclasses.replace(run, state=INTERRUPTED)
            return StoredRun(
                path.name,
                path,
                size,
                run,
                f"its process ended without closing it; `vllmeter runs --close {path.name}` makes its samples usable",
            )
        return StoredRun(path.name, path, size, run)

    def find(self, name: str) -> list[Run]:
        """The runs that ``name`` means: an id, else all runs of that name (repetitions), oldest first.

        Raises :class:`StoreError` that lists close names when there is none.
        """
        stored = self.all()
        by_id = [each for each in stored if each.id == name]
        if by_id:
            if by_id[0].run is None:
                raise StoreError(f"run {name}: {by_id[0].problem}")
            return [by_id[0].run]
        runs = [each.run for each in stored if each.run is not None and each.run.name == name]
        if not runs:
            names = sorted({each.run.name for each in stored if each.run is not None})
            known = ", ".join(names[:12]) + (" …" if len(names) > 12 else "") if names else "none yet"
            raise StoreError(f"no run named {name!r} in {self.folder}; known: {known}")
        return runs

    def results(self, run_id: str) -> tuple[ClientResult, ...]:
        """Client results of a run, () when there are none.  Raises :class:`StoreError` when they are damaged."""
        path = self.folder / run_id / "client.json.gz"
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
            return tuple(result_from_json(each, f"client[{index}]") for index, each in enumerate(data))
        except FileNotFoundError:
            return ()
        except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
            raise StoreError(
                f"{path} is damaged ({error}): import the tool's file again with `vllmeter import FILE --run {run_id}`"
            ) from error

    def samples(self, run_id: str) -> tuple[list[Sample], str | None]:
        """(samples, what is wrong with the file or None)."""
        return read_samples(self.samples_path(run_id))

    def close_interrupted(self, run_id: str) -> Run:
        """Gives a run whose process was killed its end: the time of its last sample.  It can be compared then.

        Raises :class:`StoreError` when it is not interrupted or holds no sample.
        """
        found = [each for each in self.all() if each.id == run_id]
        if not found or found[0].run is None:
            raise StoreError(f"no readable run with the id {run_id!r} in {self.folder}; `vllmeter runs` lists them")
        run = found[0].run
        if run.state != INTERRUPTED:
            raise StoreError(f"run {run_id} is {run.state}: only an interrupted run can be closed")
        samples, _ = self.samples(run_id)
        if not samples:
            raise StoreError(f"run {run_id} holds no sample: remove it with `vllmeter runs --delete {run_id}`")
        note = "closed afterwards at its last sample: the process that recorded it was killed"
        run = dataclasses.replace(run, state=FINISHED, ended=samples[-1].wall, notes=(*run.notes, note))
        self.save(run)
        return run

    # ------------------------------------------------------------------ removing

    def delete(self, run_id: str) -> None:
        """Removes one run's folder.  Raises :class:`StoreError` when there is none."""
        path = self.folder / run_id
        if not run_id or "/" in run_id or run_id.startswith(".") or not path.is_dir():
            raise StoreError(f"no run with the id {run_id!r} in {self.folder}; `vllmeter runs` lists them")
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be removed ({error.strerror or error}): check its permissions") from error

    def prune(
        self,
        *,
        now: float,
        older: float | None = None,
        keep_bytes: int | None = None,
        keep: Callable[[str], bool] = lambda _: False,
    ) -> list[StoredRun]:
        """Removes runs older than ``older`` seconds, then the oldest until all fit in ``keep_bytes``.

        Never touches running runs and those for which ``keep(id)`` is true (baselines).  Returns what was removed.
        """
        removed = []
        candidates = [
            each
            for each in self.all()
            if not keep(each.id) and not (each.run is not None and each.run.state == RUNNING)
        ]
        total = sum(each.bytes for each in self.all())
        for each in candidates:
            ended = (each.run.ended or each.run.started) if each.run else each.path.stat().st_mtime
            old = older is not None and now - ended > older
            if old or (keep_bytes is not None and total > keep_bytes):
                self.delete(each.id)
                removed.append(each)
                total -= each.bytes
        return removed


def check_name(name: str) -> None:
    """Raises :class:`StoreError` for a run name that would make trouble as a label or on a command line."""
    if not NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot be a run name: it begins with a letter or digit and has at most 100 letters, digits, "
            "spaces and . _ : / -"
        )


def _alive(run: Run) -> bool:
    """Whether the process that records a run still runs, as far as this host can tell."""
    if run.host and run.host != os.uname().nodename:
        return True
    if run.pid is None:
        return False
    try:
        os.kill(run.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def load_document(path: Path) -> Any:
    """A small JSON file of the state folder, None when it does not exist.  Raises :class:`StoreError` when damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is damaged ({error}): move it away, then set the baselines again") from error
