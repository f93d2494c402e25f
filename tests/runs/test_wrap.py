"""``vllmeter run``: the wrapper around a load test, with a source of samples that the test controls."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from runs.synthetic import START, lockstep_requests, samples_of
from security import certificates
from vllmeter.remote import RemoteExporter, make_access
from vllmeter.runs.model import ServerConfig
from vllmeter.runs.samples import Sample, ServerSample
from vllmeter.runs.sources import ExporterSource, GrafanaAnnouncer, SourceError
from vllmeter.runs.store import RunStore, StoreError
from vllmeter.runs.wrap import Plan, _richest, masked_command, record

BASE = samples_of(lockstep_requests(1, 8), ServerConfig("chat"), START)[0]
PYTHON = sys.executable


class Source:
    """Gives a sample with the present time; ``change`` may alter it by its number."""

    name = "test source"

    def __init__(
        self, change: Callable[[int, ServerSample], ServerSample] | None = None, fail: range = range(0)
    ) -> None:
        self.calls = 0
        self.change, self.fail = change, fail

    def sample(self) -> Sample:
        number, self.calls = self.calls, self.calls + 1
        if number in self.fail:
            raise SourceError("gone for a moment")
        now = time.time()
        config = ServerConfig("chat", "m", "0.26.0", 1000.0, {"max_num_seqs": "64"}, {"GPU-1": 5.0})
        chat = dataclasses.replace(BASE.servers["chat"], wall=now, config=config)
        if self.change is not None:
            chat = self.change(number, chat)
        return Sample(now, {"chat": chat}, {}, {"driver": "580"})


class Ears:
    """An announcer that remembers."""

    def __init__(self, problem: str | None = None) -> None:
        self.heard: list[tuple[str, str, str, str]] = []
        self.problem = problem

    def started(self, run: str, scenario: str, server: str, at: float) -> str | None:
        self.heard.append(("started", run, scenario, server))
        return self.problem

    def stopped(self, run: str, scenario: str, server: str, at: float) -> str | None:
        self.heard.append(("stopped", run, scenario, server))
        return None


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "state")


def plan(code: str, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "name": "t",
        "command": (PYTHON, "-c", code),
        "scenario": "short",
        "server": "chat",
        "interval": 0.05,
    }
    return Plan(**{**values, **changes})


def test_a_run_records_everything_about_it(store: RunStore) -> None:
    """Start, end, exit code, configuration before and after, samples, software, marks."""
    ears = Ears()
    outcome = record(plan("import time; time.sleep(0.4)"), store, Source(), [ears])
    (run,) = store.find("t")
    assert run == outcome.run
    assert (run.state, run.exit_code, run.passed, run.invalid) == ("finished", 0, True, ())
    assert run.ended is not None
    assert run.ended - run.started > 0.4
    assert run.before["chat"].settings == run.after["chat"].settings == {"max_num_seqs": "64"}
    assert run.software == {"driver": "580"}
    found, problem = store.samples(run.id)
    assert problem is None
    assert len(found) >= 5
    assert found[0].wall == run.started
    assert ears.heard == [("started", "t", "short", "chat"), ("stopped", "t", "short", "chat")]


def test_the_exit_code_of_the_command_is_kept(store: RunStore) -> None:
    """A failing load test is a stored run that did not pass."""
    outcome = record(plan("raise SystemExit(7)", level="L3"), store, Source())
    assert (outcome.run.exit_code, outcome.run.passed, outcome.run.level) == (7, False, "L3")


def test_a_command_that_does_not_exist_is_a_message(store: RunStore) -> None:
    """The run is closed properly and the message names the command."""
    outcome = record(plan("", command=("no-such-load-tool",)), store, Source())
    assert outcome.run.exit_code == 127
    assert any("no-such-load-tool cannot be started" in message for message in outcome.messages)


def test_a_stored_command_holds_no_secret(store: RunStore) -> None:
    """Keys, tokens and passwords are masked in options, headers and ``-u``; numbers of tokens are none."""
    words = (
        *("bench", "--api-key", "s3cret", "--header", "Authorization=Bearer s3cret", "-H", "X-Api-Key: s3cret"),
        *("-u", "alice:s3cret", "-u", "10", "--target=http://bob:s3cret@h/", "OPENAI_API_KEY=s3cret"),
        *("--extra-inputs", "max_tokens:12", "--max-num-batched-tokens=2048"),
    )
    assert masked_command(words) == (
        *("bench", "--api-key", "***", "--header", "Authorization=***", "-H", "X-Api-Key: ***"),
        *("-u", "alice:***", "-u", "10", "--target=http://***@h/", "OPENAI_API_KEY=***"),
        *("--extra-inputs", "max_tokens:12", "--max-num-batched-tokens=2048"),
    )
    outcome = record(plan("pass", command=("true", "--token", "s3cret")), store, Source())
    assert outcome.run.command == ("true", "--token", "***")
    assert "s3cret" not in (store.folder / outcome.run.id / "run.json").read_text()


def test_a_load_test_gets_none_of_our_secrets(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is ours, but for password and tokens."""
    secret = ("VLLMETER_PASSWORD", "VLLMETER_TOKEN", "VLLMETER_GRAFANA_TOKEN")
    for name in (*secret, "VLLMETER_URL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, f"value of {name}")
    seen = tmp_path / "seen.json"
    code = f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    assert record(plan(code), store, Source()).run.exit_code == 0
    found = json.loads(seen.read_text())
    assert not [value for value in found.values() if value in {f"value of {name}" for name in secret}]
    assert found["VLLMETER_URL"] == "value of VLLMETER_URL"
    assert found["OPENAI_API_KEY"] == "value of OPENAI_API_KEY"
    assert found["PATH"] == os.environ["PATH"]


def test_a_restart_in_the_middle_makes_the_run_invalid(store: RunStore) -> None:
    """Another process start means other numbers: the reason is stored."""

    def restart(number: int, chat: ServerSample) -> ServerSample:
        if number < 4 or chat.config is None:
            return chat
        return dataclasses.replace(chat, config=dataclasses.replace(chat.config, start_timestamp=2000.0, restarts=1))

    outcome = record(plan("import time; time.sleep(0.5)"), store, Source(restart))
    assert outcome.run.invalid == ("chat restarted during the run",)


def test_a_changed_configuration_makes_the_run_invalid(store: RunStore) -> None:
    """The reason says what changed."""

    def change(number: int, chat: ServerSample) -> ServerSample:
        if number < 4 or chat.config is None:
            return chat
        return dataclasses.replace(chat, config=dataclasses.replace(chat.config, settings={"max_num_seqs": "32"}))

    outcome = record(plan("import time; time.sleep(0.5)"), store, Source(change))
    assert outcome.run.invalid == ("chat changed its configuration during the run: max_num_seqs 64 -> 32",)


def test_a_server_that_goes_away_makes_the_run_invalid(store: RunStore) -> None:
    """Also when it never comes back."""

    def go(number: int, chat: ServerSample) -> ServerSample:
        assert chat.config is not None
        gone = ServerSample(None, "gone", config=dataclasses.replace(chat.config, start_timestamp=None))
        return chat if number < 4 else gone

    outcome = record(plan("import time; time.sleep(0.4)"), store, Source(go))
    assert outcome.run.invalid == ("chat went away during the run",)


def test_missing_samples_are_counted_and_the_rest_is_kept(store: RunStore) -> None:
    """An exporter that fails for a while costs its samples, not the run."""
    outcome = record(plan("import time; time.sleep(0.6)"), store, Source(fail=range(3, 6)))
    assert outcome.run.invalid == ()
    assert any("3 samples are missing" in message for message in outcome.messages)
    assert len(store.samples(outcome.run.id)[0]) > 4


def test_without_any_sample_nothing_is_started(store: RunStore, tmp_path: Path) -> None:
    """No sample at the beginning is an error before the load test costs anything."""
    mark = tmp_path / "ran"
    with pytest.raises(SourceError):
        record(plan(f"open({str(mark)!r}, 'w')"), store, Source(fail=range(1)))
    with pytest.raises(StoreError, match=r"no server 'chta'; test source samples: chat"):
        record(plan(f"open({str(mark)!r}, 'w')", server="chta"), store, Source())
    assert not mark.exists()
    assert store.all() == []


def test_a_deaf_announcer_is_only_a_message(store: RunStore) -> None:
    """The run goes on; the user is told."""
    outcome = record(plan("pass"), store, Source(), [Ears("Grafana refused the token")])
    assert outcome.messages == ("Grafana refused the token",)
    assert outcome.run.invalid == ()


def test_a_full_disk_stops_the_samples_but_not_the_load_test(store: RunStore) -> None:
    """The command runs to its end, the run is closed, marked invalid, and what was flushed stays."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = Source()
    source_sample = source.sample

    def limited() -> Sample:
        if source.calls == 12:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        sample = source_sample()
        return dataclasses.replace(sample, gpus={f"GPU-{os.urandom(600).hex()}": 1.0})

    source.sample = limited  # type: ignore[method-assign]
    try:
        outcome = record(plan("import time; time.sleep(1.2); print('done')"), store, source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert outcome.run.exit_code == 0
    assert outcome.run.invalid == ("samples could not be stored to the end",)
    assert any("sampling ended early" in message for message in outcome.messages)
    found, problem = store.samples(outcome.run.id)
    assert problem is None
    assert found


def test_the_result_file_that_the_tool_wrote_is_found(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files that an importer knows are taken; old ones and others are not."""
    fixture = Path(__file__).parent / "fixtures" / "vllm-bench-base-2048-short.json.gz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json.gz").write_bytes(fixture.read_bytes())
    os.utime(tmp_path / "old.json.gz", (1e9, 1e9))
    (tmp_path / "out").mkdir()
    copy = f"shutil.copyfile({str(fixture)!r}, 'out/new.json.gz')"
    code = f"import shutil, pathlib; {copy}; pathlib.Path('x.json').write_text('{{}}')"
    outcome = record(plan(code, command=(PYTHON, "-c", code, "--result-dir", "out")), store, Source())
    (result,) = store.results(outcome.run.id)
    assert len(result.requests) == 24
    assert outcome.messages == ()


def test_a_named_result_file_that_is_missing_is_reported(store: RunStore, tmp_path: Path) -> None:
    """--results names it: then its absence is worth a message."""
    outcome = record(plan("pass", results=(tmp_path / "no.json",)), store, Source())
    assert any("no.json: no such file" in message for message in outcome.messages)


def test_of_several_exports_of_one_tool_the_detailed_one_is_kept() -> None:
    """aiperf writes JSON, CSV and records of the same test: it is one result."""
    from vllmeter.runs.importers import read_result

    fixtures = Path(__file__).parent / "fixtures"
    every = [
        read_result(fixtures / name)[0]
        for name in ("aiperf-0.13.0.json.gz", "aiperf-0.13.0.csv", "aiperf-0.13.0-records.jsonl.gz")
    ]
    (kept,) = _richest(every)
    assert len(kept.requests) == 20
    (kept,) = _richest(every[:2])
    assert kept.tool_version == "0.13.0"


class _Stub(BaseHTTPRequestHandler):
    seen: list[tuple[str, str, dict[str, Any], str]]
    status = 200

    def log_message(self, format: str, *args: Any) -> None:
        """Stays silent."""

    def _any(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        type(self).seen.append((self.command, self.path, body, self.headers.get("Authorization", "")))
        data = b'{"id": 17, "message": "ok"}'
        self.send_response(type(self).status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._any()

    def do_POST(self) -> None:
        self._any()

    def do_PATCH(self) -> None:
        self._any()


@pytest.fixture
def stub():  # type: ignore[no-untyped-def]
    class Handler(_Stub):
        seen: list[tuple[str, str, dict[str, Any], str]] = []  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    server.server_close()


def test_grafana_gets_one_region(stub: Any) -> None:
    """An annotation at the start, its end at the end, with the run's tags and the token."""
    url, handler = stub
    grafana = GrafanaAnnouncer(url, "secret")
    assert grafana.started("base", "short", "chat", 1000.5) is None
    assert grafana.stopped("base", "short", "chat", 1100.25) is None
    (first, second) = handler.seen
    assert first[:2] == ("POST", "/api/annotations")
    assert first[2]["time"] == 1000500
    assert first[2]["tags"] == ["vllmeter", "run", "run:base", "scenario:short", "server:chat"]
    assert second == ("PATCH", "/api/annotations/17", {"timeEnd": 1100250}, "Bearer secret")


def test_grafana_without_an_open_annotation_gets_the_region_at_the_end(stub: Any) -> None:
    """When the start was lost the end still tells the whole story."""
    url, handler = stub
    grafana = GrafanaAnnouncer(url, "secret")
    handler.status = 500
    assert "answered 500" in (grafana.started("base", "short", "", 1000.0) or "")
    handler.status = 200
    assert grafana.stopped("base", "short", "", 1100.0) is None
    method, path, body, _ = handler.seen[-1]
    assert (method, path, body["time"], body["timeEnd"]) == ("POST", "/api/annotations", 1000000, 1100000)


def test_grafana_credentials_in_an_address_are_not_shown() -> None:
    """A message names the place without the password."""
    problem = GrafanaAnnouncer("http://bob:s3cret@127.0.0.1:1", "t").started("a", "b", "", 1.0) or ""
    assert "http://***@127.0.0.1:1" in problem
    assert "s3cret" not in problem


def test_grafana_problems_are_words(stub: Any) -> None:
    """A refused token and a dead server say what to do; nothing is raised."""
    url, handler = stub
    handler.status = 401
    assert "needs annotations:write" in (GrafanaAnnouncer(url, "bad").started("a", "b", "", 1.0) or "")
    assert "did not answer" in (GrafanaAnnouncer("http://127.0.0.1:1", "t").started("a", "b", "", 1.0) or "")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates as people make them at home."""
    folder = tmp_path_factory.mktemp("certified")
    certificates.make(folder, plain=True)
    return folder


@pytest.fixture
def secure(stub: Any, certified: Path) -> Iterator[tuple[str, Any]]:
    """The stub behind TLS."""
    _, handler = stub
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified / "server.pem", certified / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


def test_grafana_behind_a_home_made_ca(
    secure: tuple[str, Any], certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its CA the annotation is made, also where Python (3.13) makes strict contexts."""
    url, handler = secure

    def strict(real: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        def made(*args: Any, **more: Any) -> ssl.SSLContext:
            context = real(*args, **more)
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            return context

        return made

    monkeypatch.setattr(ssl, "create_default_context", strict(ssl.create_default_context))
    monkeypatch.setattr(urllib3.connection, "create_urllib3_context", strict(urllib3.util.ssl_.create_urllib3_context))
    grafana = GrafanaAnnouncer(url, "secret", certified / "ca.pem")
    assert grafana.started("base", "short", "chat", 1000.5) is None
    assert grafana.stopped("base", "short", "chat", 1100.25) is None
    assert [(method, token) for method, _, _, token in handler.seen] == [
        ("POST", "Bearer secret"),
        ("PATCH", "Bearer secret"),
    ]


def test_a_refused_certificate_of_grafana_is_one_clear_message(
    secure: tuple[str, Any], certified: Path, store: RunStore
) -> None:
    """It says which CA did not sign it and what to give, once; no token is sent, and the run is kept."""
    url, handler = secure
    give = "no annotation. Give the CA that signed it with --grafana-ca-file"
    outcome = record(plan("pass"), store, Source(), [GrafanaAnnouncer(url, "secret")])
    assert outcome.messages == (f"Grafana at {url}: its certificate is not signed by a public CA: {give}",)
    assert outcome.run.exit_code == 0
    other = certified / "stranger.pem"
    outcome = record(plan("pass"), store, Source(), [GrafanaAnnouncer(url, "secret", other)])
    assert outcome.messages == (f"Grafana at {url}: its certificate is not signed by the CA in {other}: {give}",)
    named = url.replace("127.0.0.1", "localhost")
    problem = GrafanaAnnouncer(named, "secret", certified / "ca.pem").started("a", "b", "", 1.0) or ""
    assert "its certificate is not for 'localhost': no annotation. Use the name that the certificate holds" in problem
    assert handler.seen == []


def test_the_exporter_is_told_over_its_api(stub: Any) -> None:
    """POST /api/runs with start and stop; a refusal is a message."""
    url, handler = stub
    source = ExporterSource(RemoteExporter(make_access(url + "/", environment={})))
    assert source.started("base", "short", "chat", 1.0) is None
    assert source.stopped("base", "short", "chat", 2.0) is None
    bodies = [(path, body) for _, path, body, _ in handler.seen]
    assert bodies == [
        ("/api/runs", {"run": "base", "scenario": "short", "server": "chat", "action": action})
        for action in ("start", "stop")
    ]
    handler.status = 409
    assert "409" in (source.started("base", "short", "chat", 1.0) or "")
    with pytest.raises(SourceError):
        source.sample()
    handler.status = 200
    with pytest.raises(SourceError, match="is no snapshot"):
        source.sample()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path, number: int) -> None:
    """Ctrl-C (which the terminal sends to both) and SIGTERM end the load test; the run is closed and readable."""
    here = Path(__file__).parent
    code = f"""
import sys
sys.path[:0] = [{str(here.parent)!r}, {str(here.parents[1] / "exporter")!r}]
from pathlib import Path
from runs.test_wrap import Source, plan
from vllmeter.runs.store import RunStore
from vllmeter.runs.wrap import record
store = RunStore(Path({str(tmp_path)!r}))
outcome = record(plan("import time; print('up', flush=True); time.sleep(60)"), store, Source())
print(outcome.stopped, outcome.run.exit_code, flush=True)
"""
    process = subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.6)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    rest, _ = process.communicate(timeout=20)
    stopped, exit_code = rest.split()[-2:]
    assert stopped == "True"
    assert int(exit_code) != 0
    (stored,) = RunStore(tmp_path).all()
    assert stored.run is not None
    assert stored.run.state == "finished"
    assert "stopped by the user before its end" in stored.run.notes
    samples, problem = RunStore(tmp_path).samples(stored.id)
    assert problem is None
    assert len(samples) >= 5
