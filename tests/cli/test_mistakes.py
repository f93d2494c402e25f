"""One typical mistake for each command: one clear line with place, cause and remedy, and the exit code of its help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllmeter.cli.app import app

RECORDING = Path(__file__).parents[1] / "captures" / "vllm-0.26.0-h200-pressure.vmrec"


def run(*words: str, **environment: str | None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "VLLMETER_URL": None, **environment})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing is but a text file and an empty configuration."""
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "empty.yaml").write_text("listen: 127.0.0.1:0\nservers: []\nnvml: {enabled: false}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLMETER_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("serv", 2, "Did you mean 'serve'?"),
        ("serve --confg x", 2, "--config"),
        ("serve -c none.yaml", 2, "none.yaml: no such file. `vllmeter init` writes one"),
        ("serve -c empty.yaml --listen 9877", 2, "--listen 9877: no HOST:PORT, for example 127.0.0.1:9877"),
        ("serve -c empty.yaml --listen no-such-host.invalid:0", 1, "Use an address of this machine: 127.0.0.1"),
        ("serve -c empty.yaml --listen 192.0.2.1:0", 1, "Cannot assign requested address. Use an address of this"),
        ("check -c none.yaml", 2, "none.yaml: no such file"),
        ("check --format xml", 2, "use table or json"),
        ("init", 2, "give either --from-compose FILE or --from-processes"),
        ("init --from-compose none", 2, "none: no file that can be read (it does not exist); give the path of your"),
        ("demo --listen 127.0.0.1", 2, "--listen 127.0.0.1: no HOST:PORT, for example"),
        ("demo --speed 0", 2, "--speed 0: use a number above 0"),
        ("demo --recording none.vmrec", 2, "none.vmrec: no such recording; check the path"),
        ("demo --folder text", 2, "text: cannot be a folder for logs and data: File exists; name another"),
        ("stack -c empty.yaml --retention soon", 2, "--retention soon: use for example 15d"),
        ("stack -c empty.yaml --folder text", 1, "text: cannot be a folder for data: File exists; name another"),
        ("stack -c empty.yaml --token-file none", 2, "--token-file none: cannot be read (No such file or directory)"),
        (
            "top --url http://127.0.0.1:9 --once",
            2,
            "http://127.0.0.1:9: no exporter answers (connection refused). St",
        ),
        ("top --sort size", 2, "use one of configured, trouble"),
        ("record text -u http://127.0.0.1:9", 1, "text: exists; give another name, or --force to overwrite it"),
        ("record text --copy none.vmrec --force", 1, "none.vmrec: cannot be opened (no such file); check the path"),
        ("replay text", 1, "text: this is not a vllmeter recording (.vmrec); check the path"),
        ("replay none.vmrec", 1, "none.vmrec: cannot be opened (No such file or directory); check the path"),
        ("run x", 2, "give the load test either after -- or as --load SCENARIO=COMMAND"),
        ("run x! -- true", 2, "'x!' cannot be a run name"),
        ("run x --exporter http://127.0.0.1:9 -- true", 1, "leave --exporter (VLLMETER_URL) out to sample here"),
        ("compare a b", 1, "no run named 'a' in"),
        ("import none.json", 1, "none.json: no such file. Give the path of the tool's result file"),
        ("runs --show nix", 1, "no run with the id 'nix'"),
        ("runs --state text", 2, "text: is no folder: give the state folder with --state or VLLMETER_STATE"),
        ("baseline set nix", 1, "no run named 'nix'"),
        ("baseline clear", 2, "name --server and/or --scenario, or --all"),
        ("assets export text", 1, "cannot be written: Not a directory; name another folder"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 and ":" not in value else "",
)
def test_a_mistake_is_one_clear_line(folder: Path, line: str, code: int, message: str) -> None:
    """No traceback, nothing overwritten, nothing left behind."""
    found, text = run(*line.split())
    assert (found, message in text) == (code, True), text
    assert (folder / "text").read_text() == "hello\n"
    assert not (folder / "state" / "runs").exists()


def test_every_command_says_its_exit_codes_and_fits_80_columns() -> None:
    """Help is read in terminals of 80 columns; whoever scripts a command finds its exit codes there."""
    commands = re.findall(r"^│ ([a-z]+) ", run("--help")[1], re.MULTILINE)
    assert len(commands) == 14
    silent = []
    for command in commands:
        code, text = run(command, "--help", COLUMNS="80")
        assert code == 0
        assert max(map(len, text.splitlines())) <= 80
        if not re.search(r"xit\s+code", text):
            silent.append(command)
    assert silent == ["baseline", "assets"]  # groups: their own commands say it
    for words in (("baseline", "set"), ("assets", "export")):
        assert "Exit code" in run(*words, "--help")[1]


@pytest.mark.parametrize("words", [("serve", "--check-config"), ("serve",)])
def test_a_web_config_that_is_not_there_is_told_before_anything_starts(folder: Path, words: tuple[str, ...]) -> None:
    """Also by --check-config: one line with the file, the cause and the remedy, no name of an exception."""
    (folder / "with.yaml").write_text(f"listen: 127.0.0.1:0\nnvml: {{enabled: false}}\nweb_config: {folder}/web.yml\n")
    code, output = run(*words, "-c", "with.yaml")
    assert code == 2
    assert output == (
        f"{folder}/web.yml: cannot be read (No such file or directory): correct `web_config`, or take it out to serve "
        "without TLS and authentication\n"
    )
    (folder / "web.yml").write_bytes(b"\xff\xfe")
    assert "cannot be read (no UTF-8 text): correct" in run(*words, "-c", "with.yaml")[1]
    (folder / "web.yml").write_text("basic_auth: {}\n")
    code, output = run(*words, "-c", "with.yaml")
    assert code == 2
    assert f"{folder}/web.yml:1: basic_auth: unknown key" in output


def test_check_config_accepts_a_good_web_config(folder: Path) -> None:
    """It is read, and found to be right."""
    (folder / "web.yml").write_text("allowed_hosts: [gpu-1]\n")
    (folder / "with.yaml").write_text(f"servers: []\nweb_config: {folder}/web.yml\n")
    assert run("serve", "--check-config", "-c", "with.yaml") == (0, "with.yaml: ok, 0 servers\n")
