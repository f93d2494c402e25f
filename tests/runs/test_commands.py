"""The commands as a user types them, and one whole way from a load test to a report."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import uvicorn
from typer.testing import CliRunner

from fakes.openai_stub import OpenAiStub
from runs.commands import app
from runs.synthetic import START, add_run, lockstep_requests
from vllmeter.cli.run import Step, _prepare, parse_warmup, plan_steps
from vllmeter.config.settings import Settings
from vllmeter.runs.sources import SnapshotSource
from vllmeter.runs.store import RunStore

FIXTURES = Path(__file__).parent / "fixtures"
RECORDING = FIXTURES.parents[1] / "captures" / "vllm-0.26.0-h200-three-instances.vmrec"
runner = CliRunner()

LOAD = """
import json, sys, time, threading, urllib.request
url, out, count, clients = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
lock, rows = threading.Lock(), []
def work():
    for _ in range(count // clients):
        begun = time.perf_counter()
        body = json.dumps({"prompt": "a b c", "max_tokens": 4, "stream": True}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            times = [time.perf_counter() for line in answer if line.startswith(b"data: {")]
        with lock:
            rows.append((begun, times[0] - begun, [b - a for a, b in zip(times, times[1:])]))
threads = [threading.Thread(target=work) for _ in range(clients)]
begun = time.perf_counter()
[each.start() for each in threads]
[each.join() for each in threads]
took, n = time.perf_counter() - begun, len(rows)
json.dump({"backend": "test", "num_prompts": n, "max_concurrency": clients, "duration": took, "completed": n,
           "failed": 0, "total_input_tokens": 3 * n, "total_output_tokens": 4 * n, "request_throughput": n / took,
           "output_throughput": 4 * n / took, "ttfts": [r[1] for r in rows], "itls": [r[2] for r in rows],
           "start_times": [r[0] for r in rows], "errors": [""] * n, "input_lens": [3] * n, "output_lens": [4] * n},
          open(out, "w"))
"""


def call(*words: str, code: int | None = 0) -> str:
    result = runner.invoke(app, list(words), catch_exceptions=False)
    assert code is None or result.exit_code == code, result.output
    return result.output


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_import_then_compare_then_regression_exit_code(state: Path) -> None:
    """From result files alone: import, compare, and exit code 4 only where something is worse."""
    for name in ("base-2048-short", "cand-8192-short"):
        call(
            "import",
            str(FIXTURES / f"vllm-bench-{name}.json.gz"),
            "--name",
            name,
            "--scenario",
            "short",
            "--state",
            str(state),
        )
    text = call("compare", "base-2048-short", "cand-8192-short", "--state", str(state), "--fail-on", "regression")
    assert "not enough evidence" in text
    assert "not known, so not compared: configuration of the servers" in text
    store = RunStore(state)
    for position, name in enumerate("abbaab"):
        records = lockstep_requests(position, 400, icc=0.3, sigma=0.15, median=0.13 if name == "b" else 0.1)
        add_run(store, name, records, started=START + 2000 * position)
    assert "worse" in call("compare", "a", "b", "--state", str(state), "--fail-on", "regression", code=4)
    call("compare", "b", "a", "--state", str(state), "--fail-on", "regression", code=0)
    call("compare", "a", "b", "--state", str(state), code=0)


@pytest.mark.parametrize("form", ["markdown", "json", "html", "terminal"])
def test_reports_are_written_to_files(state: Path, tmp_path: Path, form: str) -> None:
    """--output writes the file; the JSON parses."""
    store = RunStore(state)
    for position, name in enumerate("ab"):
        add_run(store, name, lockstep_requests(position, 40), started=START + 2000 * position)
    target = tmp_path / f"report.{form}"
    call("compare", "a", "b", "--format", form, "--output", str(target), "--state", str(state))
    text = target.read_text()
    assert len(text) > 500
    if form == "json":
        assert json.loads(text)["baseline"] == "a"


def test_import_of_a_recording_phase(state: Path) -> None:
    """A phase of a .vmrec becomes a run; without --phase the phases are listed."""
    assert "it has: start, idle, base-2048-short" in call("import", str(RECORDING), "--state", str(state), code=2)
    call(
        "import", str(RECORDING), "--phase", "base-2048-short", "--name", "base", "--scenario", "short",
        "--server", "vllm-qwen3",
        "--client", str(FIXTURES / "vllm-bench-base-2048-short.json.gz"), "--state", str(state),
    )  # fmt: skip
    (run,) = RunStore(state).find("base")
    assert run.before["vllm-qwen3"].settings["max_num_batched_tokens"] == "2048"
    call("baseline", "set", "base", "--state", str(state))
    assert "vllm-qwen3" in call("baseline", "show", "--state", str(state))


def test_import_names_and_errors(state: Path, tmp_path: Path) -> None:
    """The default name is the file's stem; an unreadable file is one message and exit code 1."""
    call("import", str(FIXTURES / "guidellm-0.8.1.json.gz"), "--state", str(state))
    (run,) = RunStore(state).find("guidellm-0.8.1")
    assert run.started == pytest.approx(1796134367.411, abs=0.001)
    broken = tmp_path / "x.json"
    broken.write_text("{}")
    assert "not a known load-test result" in call("import", str(broken), "--state", str(state), code=1)
    call("import", str(FIXTURES / "k6-summary-export.json"), "--run", run.id, "--state", str(state))
    assert RunStore(state).results(run.id)[0].tool == "k6"


def test_runs_list_prune_delete_and_show(state: Path) -> None:
    """Listing names damaged runs on standard error; prune keeps the runs of baselines."""
    store = RunStore(state)
    first = add_run(store, "base", lockstep_requests(1, 80))
    second = add_run(store, "other", lockstep_requests(2, 80), started=START + 5000)
    (store.folder / "broken").mkdir()
    text = call("runs", "--state", str(state))
    assert "base" in text
    assert "run.json is missing" in text
    call("baseline", "set", "base", "--state", str(state))
    assert "removed 2 runs" in call("runs", "--prune", "--keep-size", "1kB", "--state", str(state))
    assert [each.id for each in RunStore(state).all()] == [first.id]
    assert '"name": "base"' in call("runs", "--show", first.id, "--state", str(state))
    assert "no run with the id" in call("runs", "--delete", second.id, "--state", str(state), code=1)
    assert "needs --older" in call("runs", "--prune", "--state", str(state), code=2)
    assert "use for example 12h" in call("runs", "--prune", "--older", "soon", "--state", str(state), code=2)
    call("baseline", "clear", "--all", "--state", str(state))
    call("runs", "--delete", first.id, "--state", str(state))
    assert "no runs in" in call("runs", "--state", str(state))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a"], "at least two names"),
        (["compare", "a", "b"], "no run named 'a'"),
        (["compare", "a", "b", "--format", "pdf"], "use terminal, markdown, json, html"),
        (["compare", "a", "b", "--fail-on", "worse"], "use regression"),
        (["run", "x"], "either after -- or as --load"),
        (["run", "x", "--warmup", "soon", "--", "true"], "--warmup soon: use seconds"),
        (["run", "x", "--level", "L9", "--", "true"], "use L1, L2 or L3"),
        (["run", "x", "--exporter", "http://127.0.0.1:1", "--", "true"], "no exporter"),
        (["run", "x", "--grafana", "http://127.0.0.1:1", "--", "true"], "VLLMETER_GRAFANA_TOKEN"),
        (["baseline", "clear"], "name --server"),
        (["baseline", "set", "x"], "no run named 'x'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes_are_one_clear_message(state: Path, words: list[str], message: str) -> None:
    """No traceback; exit code 1 or 2."""
    at = words.index("--") if "--" in words else len(words)
    result = runner.invoke(app, [*words[:at], "--state", str(state), *words[at:]])
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("nowhere.pem", "cannot be read (No such file or directory): check the path and its permissions"),
        (__file__, "holds no certificate in PEM form"),
    ],
    ids=["missing", "no-certificate"],
)
def test_a_ca_file_of_grafana_is_checked_before_anything_starts(
    state: Path, file: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By option or by variable: one line that names the file."""
    monkeypatch.setenv("VLLMETER_GRAFANA_TOKEN", "secret")
    words = ("run", "x", "--grafana", "https://127.0.0.1:1", "--state", str(state))
    assert call(*words, "--grafana-ca-file", file, "--", "false", code=2) == f"--grafana-ca-file {file}: {message}\n"
    monkeypatch.setenv("VLLMETER_GRAFANA_CA_FILE", file)
    assert call(*words, "--", "false", code=2) == f"--grafana-ca-file {file}: {message}\n"


def test_candidates_take_turns_and_the_order_turns_round() -> None:
    """A B C, C B A, A B C; the set-up runs once per candidate and round, before its first load."""
    steps = plan_steps("n", (), "default", 3, ["A=sa", "B=sb", "C=sc"], ["short=x 1", "long=y 'two words'"])
    order = [(step.repetition, step.name, step.scenario) for step in steps]
    assert [name for repetition, name, scenario in order if scenario == "short" and repetition == 1] == [
        "n-A",
        "n-B",
        "n-C",
    ]
    assert [name for repetition, name, scenario in order if scenario == "short" and repetition == 2] == [
        "n-C",
        "n-B",
        "n-A",
    ]
    assert [scenario for repetition, name, scenario in order if name == "n-A"] == [
        "short",
        "long",
        "long",
        "short",
        "short",
        "long",
    ]
    assert [step.setup for step in steps if step.name == "n-A"] == ["sa", "", "sa", "", "sa", ""]
    assert steps[1].command == ("y", "two words")
    single = plan_steps("n", ("bench", "--x"), "short", 2, [], [])
    assert [(step.name, step.repetition, step.setup) for step in single] == [("n", 1, ""), ("n", 2, "")]


def test_warmup_forms() -> None:
    """Seconds, minutes, requests."""
    assert parse_warmup("20s") == (20.0, None)
    assert parse_warmup("1.5m") == (90.0, None)
    assert parse_warmup("100") == (None, 100)
    assert parse_warmup(None) == (None, None)


def test_a_set_up_gets_none_of_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The set-up command of a candidate sees the environment without password and tokens."""
    for name in ("VLLMETER_PASSWORD", "VLLMETER_TOKEN", "VLLMETER_GRAFANA_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, f"value of {name}")
    seen = tmp_path / "seen"
    step = Step("x", "default", ("true",), f"env > {seen}; exit 7", 1)
    with pytest.raises(typer.Exit) as ended:
        _prepare(step, SnapshotSource(lambda: pytest.fail("the set-up failed")), "", 1.0)
    assert ended.value.exit_code == 7
    assert "OPENAI_API_KEY=value of OPENAI_API_KEY" in seen.read_text()
    assert "value of VLLMETER_" not in seen.read_text()


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[tuple[OpenAiStub, str]]:
    """A real exporter (without GPU) that samples a stub five times a second."""
    from vllmeter.web.app import create_app
    from vllmeter.wiring import Exporter

    with OpenAiStub(ttft=0.02, itl=0.001) as stub:
        settings = Settings.model_validate(
            {
                "servers": [{"name": "chat", "url": stub.url}],
                "interval": "200ms",
                "nvml": {"enabled": False},
                "state_dir": str(tmp_path / "state"),
            }
        )
        service = Exporter(settings)
        service.start()
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 10
        while not (server.started and service.ready()[0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield stub, f"http://127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
        service.stop()
        sock.close()


def test_from_a_load_test_to_a_baseline(
    exporter: tuple[OpenAiStub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real load test against a real exporter: samples and client result agree, and the run becomes a baseline."""
    stub, url = exporter
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.py").write_text(LOAD)
    state = tmp_path / "state"
    text = call(
        "run", "base", "--server", "chat", "--scenario", "short", "--exporter", url, "--state", str(state),
        "--", sys.executable, "load.py", stub.url, "r.json", "80", "4",
    )  # fmt: skip
    assert "stored, exit code 0" in text
    store = RunStore(state)
    (run,) = store.find("base")
    assert run.sampled_by == f"exporter {url}"
    assert run.invalid == ()
    (result,) = store.results(run.id)
    assert result.completed == 80
    from vllmeter.runs.measures import client_side, server_side

    server, client = server_side(run, store.samples(run.id)[0], "chat"), client_side(run, [result])
    assert server.requests + server.cold.requests == 80
    mine, theirs = server.measures["ttft_mean"].value, client.measures["ttft_mean"].value
    assert mine is not None
    assert theirs is not None
    assert 0.02 <= mine <= theirs
    assert "baseline of chat, short: 1 run(s)" in call("baseline", "set", "base", "--state", str(state))


def test_a_restart_under_a_real_exporter_is_invalid(exporter: tuple[OpenAiStub, str], tmp_path: Path) -> None:
    """The exporter sees the new process start; the run says so and the exit code is 3."""
    stub, url = exporter
    threading.Timer(1.2, stub.restart).start()
    text = call(
        "run", "base", "--server", "chat", "--exporter", url, "--state", str(tmp_path / "state"),
        "--", sys.executable, "-c", "import time; time.sleep(3)", code=3,
    )  # fmt: skip
    assert "invalid: chat restarted during the run" in text


def test_without_an_exporter_it_samples_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No exporter answers at the configured address: the command says so and records all the same."""
    monkeypatch.delenv("VLLMETER_URL", raising=False)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with OpenAiStub() as stub:
        config = tmp_path / "vllmeter.yaml"
        config.write_text(
            f"listen: 127.0.0.1:{port}\nstate_dir: {tmp_path / 'state'}\nnvml: {{enabled: false}}\n"
            f"servers:\n  - {{name: chat, url: '{stub.url}'}}\n"
        )
        text = call("run", "alone", "--config", str(config), "--", sys.executable, "-c", "import time; time.sleep(1.5)")
    assert f"no exporter at http://127.0.0.1:{port}: sampling here" in text
    (run,) = RunStore(tmp_path / "state").find("alone")
    assert run.sampled_by == "vllmeter run"
    samples, problem = RunStore(tmp_path / "state").samples(run.id)
    assert problem is None
    assert len(samples) >= 3
    assert all(each.servers["chat"].wall is not None for each in samples)
