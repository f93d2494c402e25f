"""``vllmeter run``: starts a load test, samples beside it once a second, and stores both as a run.

The load test is the user's own command; it gets the terminal, and its exit code is passed on.  Whatever happens to it,
to the exporter, to the disk or to this process, what was recorded until then stays readable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from vllmeter.memory.argv import MASK, mask_argv, mask_text
from vllmeter.remote import without_secrets
from vllmeter.runs.importers import read_result
from vllmeter.runs.model import FINISHED, Run, ServerConfig
from vllmeter.runs.results import ClientResult, ResultFileError
from vllmeter.runs.samples import Sample, SampleWriter
from vllmeter.runs.sources import Announcer, SampleSource, SourceError
from vllmeter.runs.store import RunStore, StoreError, disk_message

QUIET_SECONDS = 10.0
"""A server that gives no answer for this long during a run is reported: its numbers have a hole."""
SETTLE_SECONDS = 1.5
"""Sampling goes on this long after the command, so that the last requests are in the last sample."""
STOP_SECONDS = 15.0
"""How long a command may take to end after Ctrl-C before it is killed."""
RESULT_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".json.gz", ".jsonl.gz")
MOST_RESULT_FILES = 200
_SHARED = frozenset({Path("/"), Path(tempfile.gettempdir())})
"""Folders that everybody writes to: never searched for results."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run and how to file it.  ``results``: where the tool writes; None = look for new files."""

    name: str
    command: tuple[str, ...]
    scenario: str = "default"
    server: str = ""
    level: str | None = None
    warmup_seconds: float | None = None
    warmup_requests: int | None = None
    repetition: int = 1
    session: str = ""
    position: int = 0
    results: tuple[Path, ...] | None = None
    interval: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.  ``stopped``: the user asked to end."""

    run: Run
    messages: tuple[str, ...]
    stopped: bool = False


class _Watch:
    """Samples in a thread; keeps what the run needs to know about changes."""

    def __init__(self, source: SampleSource, writer: SampleWriter, interval: float, first: Sample) -> None:
        self._source, self._writer, self._interval = source, writer, interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="run-samples", daemon=True)
        self.last = first
        self.problems: list[str] = []
        self.invalid: dict[str, None] = {}
        self._first = {name: each.config for name, each in first.servers.items() if each.config is not None}
        self._seen = dict.fromkeys(first.servers, first.wall)
        self._quiet: set[str] = set()
        self._missed = 0
        self._full = False
        self._write(first)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)
        try:
            self._writer.flush()
        except OSError as error:
            self._disk(error)
        if self._missed:
            self.problems.append(f"{self._missed} samples are missing: {self._source.name} did not answer")

    def _loop(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval, time.monotonic())
            try:
                sample = self._source.sample()
            except SourceError:
                self._missed += 1
                continue
            self.last = sample
            self._check(sample)
            self._write(sample)

    def _write(self, sample: Sample) -> None:
        if self._full:
            return
        try:
            self._writer.write(sample)
        except OSError as error:
            self._disk(error)

    def _disk(self, error: OSError) -> None:
        if not self._full:
            self._full = True
            self.problems.append(f"sampling ended early: {disk_message(error, self._writer.path)}")
            self.invalid["samples could not be stored to the end"] = None

    def _check(self, sample: Sample) -> None:
        for name, each in sample.servers.items():
            before = self._first.get(name)
            now = each.config
            if each.wall is not None:
                self._seen[name] = sample.wall
                if now is not None:
                    if before is None:
                        self._first[name] = now
                    else:
                        self._compare(name, before, now)
            elif each.state == "gone" and before is not None and before.start_timestamp is not None:
                self.invalid[f"{name} went away during the run"] = None
            if sample.wall - self._seen.get(name, sample.wall) > QUIET_SECONDS and name not in self._quiet:
                self._quiet.add(name)
                self.problems.append(f"{name} gave no answer for more than {QUIET_SECONDS:.0f} s during the run")

    def _compare(self, name: str, before: ServerConfig, now: ServerConfig) -> None:
        started = (before.start_timestamp, now.start_timestamp)
        moved = None not in started and abs((started[0] or 0) - (started[1] or 0)) > 1.0
        if moved or now.restarts > before.restarts:
            self.invalid[f"{name} restarted during the run"] = None
        if now.config_changes > before.config_changes or (
            now.settings and before.settings and dict(now.settings) != dict(before.settings)
        ):
            changed = ", ".join(
                f"{key} {before.settings.get(key, '(not set)')} -> {now.settings.get(key, '(not set)')}"
                for key in sorted({*before.settings, *now.settings})
                if before.settings.get(key) != now.settings.get(key)
            )
            self.invalid[f"{name} changed its configuration during the run" + (f": {changed}" if changed else "")] = (
                None
            )


def record(
    plan: Plan,
    store: RunStore,
    source: SampleSource,
    announcers: Sequence[Announcer] = (),
    *,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Runs the command of ``plan`` once and stores it.

    Raises :class:`SourceError` when there is no sample to begin with, :class:`StoreError` when nothing can be stored or
    the server is not known.  Later failures become messages of the outcome.
    """
    first = source.sample()
    if plan.server and plan.server not in first.servers:
        known = ", ".join(sorted(first.servers)) or "none"
        raise StoreError(f"no server {plan.server!r}; {source.name} samples: {known}")
    run = store.create(
        Run(
            id="",
            name=plan.name,
            scenario=plan.scenario,
            server=plan.server,
            level=plan.level,
            started=first.wall,
            command=masked_command(plan.command),
            warmup_seconds=plan.warmup_seconds,
            warmup_requests=plan.warmup_requests,
            repetition=plan.repetition,
            session=plan.session,
            position=plan.position,
            interval=plan.interval,
            before=_configs(first),
            host=os.uname().nodename,
            pid=os.getpid(),
            software=first.software,
            sampled_by=source.name,
        )
    )
    messages: list[str] = []
    watch = _Watch(source, SampleWriter(store.samples_path(run.id)), plan.interval, first)
    watch.start()
    for announcer in announcers:
        messages += _told(announcer.started(plan.name, plan.scenario, plan.server, first.wall))
    before_files = _files(plan.command)
    began = clock()
    code: int | None = None
    stopped = False
    try:
        code, stopped = _execute(plan.command)
        if not stopped:
            time.sleep(min(SETTLE_SECONDS, plan.interval * 1.5))
    except OSError as error:
        program, why = mask_text(plan.command[0]), error.strerror or error
        messages.append(f"{program} cannot be started ({why}): check the command after --")
        code = 127
    except KeyboardInterrupt:  # a second Ctrl-C, while the last samples are taken
        stopped = True
    finally:
        watch.stop()
        ended = max(clock(), first.wall)
        for announcer in announcers:
            messages += _told(announcer.stopped(plan.name, plan.scenario, plan.server, ended))
    notes = [*watch.problems]
    if stopped:
        notes.append("stopped by the user before its end")
    run = dataclasses.replace(
        run,
        state=FINISHED,
        ended=ended,
        exit_code=code,
        after=_configs(watch.last),
        software=watch.last.software,
        invalid=tuple(watch.invalid),
        notes=tuple(notes),
    )
    store.save(run)
    results, problems = _results(plan, before_files, began)
    if results:
        store.save_results(run.id, results)
    if problems:
        run = dataclasses.replace(run, notes=(*run.notes, *problems))
        store.save(run)
    # Grafana may have the same to say at the start and at the end
    return Outcome(run, tuple(dict.fromkeys((*messages, *notes, *problems))), stopped)


_PAIR = re.compile(r"([A-Za-z][\w-]*)(\s*[:=]\s*).+", re.DOTALL)
_SECRET = frozenset({"key", "apikey", "token", "secret", "password", "authorization", "cookie"})


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command as it is stored: without keys, tokens and passwords, also in headers and ``-u USER:PASSWORD``."""
    found: list[str] = []
    for word in mask_argv(command):
        pair = _PAIR.fullmatch(word)
        user = bool(found) and found[-1] in ("-u", "--user")
        if pair is not None and (user or _SECRET & set(re.split(r"[-_]", pair[1].lower()))):
            found.append(pair[1] + pair[2] + MASK)
        else:
            found.append(word)
    return tuple(found)


def _told(problem: str | None) -> list[str]:
    return [problem] if problem else []


def _configs(sample: Sample) -> dict[str, ServerConfig]:
    return {name: each.config for name, each in sample.servers.items() if each.config is not None}


# --------------------------------------------------------------------------- the command


def _execute(command: Sequence[str]) -> tuple[int, bool]:
    """(exit code, the user stopped it).  Ctrl-C and SIGTERM are passed on; a command that stays is killed."""
    asked = threading.Event()
    process = subprocess.Popen(list(command), env=without_secrets(os.environ))  # noqa: S603 - the user's own command

    def on_signal(number: int, _frame: FrameType | None) -> None:
        asked.set()
        # On Ctrl-C the terminal has told the command already; SIGTERM only reached us.
        if number == signal.SIGTERM:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    with _signals(on_signal):
        deadline: float | None = None
        while True:
            try:
                code = process.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                if asked.is_set():
                    now = time.monotonic()
                    deadline = deadline or now + STOP_SECONDS
                    if now > deadline:
                        process.kill()
    # killed by signal n: the shell's convention 128 + n
    return (128 - code if code < 0 else code), asked.is_set()


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handles SIGINT and SIGTERM; outside the main thread they cannot be handled and are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)


# --------------------------------------------------------------------------- result files


def _places(command: Sequence[str]) -> list[Path]:
    """Folders in which a tool may write its results: here, and every path that its command names."""
    found = [Path()]
    for word in command:
        text = word.rpartition("=")[2]
        if not text or text.startswith("-") or "://" in text or len(text) > 4096:
            continue
        path = Path(text)
        for candidate in (path, path.parent):
            if candidate.parts and candidate not in _SHARED and candidate not in found and candidate.is_dir():
                found.append(candidate)
                break
    return found


def _files(command: Sequence[str]) -> dict[Path, tuple[float, int]]:
    """Possible result files with their state."""
    found: dict[Path, tuple[float, int]] = {}
    for place in _places(command):
        try:
            entries = sorted(place.iterdir())
        except OSError:
            continue
        for path in entries:
            if path.name.endswith(RESULT_SUFFIXES):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found[path.resolve()] = (status.st_mtime, status.st_size)
    return found


def _results(
    plan: Plan, before: dict[Path, tuple[float, int]], began: float
) -> tuple[tuple[ClientResult, ...], list[str]]:
    """The results that the tool wrote during the run, and what could not be read."""
    if plan.results is not None:
        found: list[ClientResult] = []
        problems = []
        for path in plan.results:
            try:
                found.extend(read_result(path))
            except ResultFileError as error:
                problems.append(f"client results were not imported: {error}")
        return _richest(found), problems
    # a folder named by the command may have been made during the run
    new = [
        path for path, state in _files(plan.command).items() if before.get(path) != state and state[0] >= began - 2.0
    ]
    found = []
    for path in new[:MOST_RESULT_FILES]:
        with contextlib.suppress(ResultFileError):
            found.extend(read_result(path))
    return _richest(found), []


def _richest(results: Sequence[ClientResult]) -> tuple[ClientResult, ...]:
    """aiperf and k6 write one test several times: per-request records are kept, that tool's statistics dropped."""
    kept: list[ClientResult] = []
    for tool in dict.fromkeys(each.tool for each in results):
        mine = [each for each in results if each.tool == tool]
        detailed = [each for each in mine if each.requests]
        if detailed:
            kept.extend(detailed)
        else:
            # several statistics files of one test (JSON and CSV; final and history): the one that says most
            most = max(mine, key=lambda each: sum(len(s.percentiles) for s in each.summaries.values()))
            labels = {each.label for each in mine}
            kept.extend(mine if len(labels) > 1 else [most])
    return tuple(kept)
