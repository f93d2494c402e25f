"""``vllmeter top``: golden text, sorting, exit codes, and a pseudo-terminal of 80 columns without colour."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fakes.stepper import Stepper, settings_of
from vllmeter.cli.app import app
from vllmeter.cli.top import SORTS, State, act, bar, between, clean, ordered, rate, seconds, spark
from vllmeter.recording.player import Player
from vllmeter.web.live import Hub

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PRESSURE = ROOT / "tests" / "captures" / "vllm-0.26.0-h200-pressure.vmrec"


class Remote:
    """An exporter's two endpoints that top needs, over what a stepped exporter says at second 45 of the recording."""

    def __init__(self) -> None:
        player = Player(PRESSURE, loop=False)
        stepper = Stepper(settings_of(player))
        for at in range(46):
            moment = player.at(float(at))
            stepper.at, stepper.wall_zero = float(at), moment.wall - at
            stepper.moment(moment)
        hub = Hub(stepper)
        self.live: Any = hub.document()
        self.history = hub.history_document(list(stepper.targets), 0.0, 9e12)
        self.status = 200
        self.asked = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                document = outer.live if self.path.startswith("/api/live") else outer.history
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def remote() -> Iterator[Remote]:
    made = Remote()
    yield made
    made.close()


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["top", *arguments], env={"COLUMNS": "80", "VLLMETER_URL": None, **environment})
    return result.exit_code, result.output


def golden(name: str, text: str, pytestconfig: pytest.Config) -> None:
    """Compares with tests/golden; ``--update-golden`` rewrites."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = GOLDEN / name
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [80, 132])
def test_once_prints_the_table(remote: Remote, columns: int, pytestconfig: pytest.Config) -> None:
    """The same servers, figures and memory as the page, in that many columns, for scripts and eyes."""
    code, text = run("--url", remote.url, "--once", COLUMNS=str(columns))
    assert code == 0
    assert max(map(len, text.splitlines())) <= columns
    assert "\x1b" not in text
    golden(f"top-{columns}.txt", text, pytestconfig)


def test_json_is_what_the_page_gets(remote: Remote) -> None:
    """Nothing is added or left out."""
    code, text = run("--url", remote.url, "--json")
    assert code == 0
    assert json.loads(text) == json.loads(json.dumps(remote.live))


def test_a_server_that_does_not_serve_is_named_and_is_the_exit_code(remote: Remote) -> None:
    """For scripts: 1, and the reason in words."""
    remote.live["servers"][1]["now"].update(
        state="gone",
        reason="connection refused",
        since=remote.live["wall"] - 75,
        running=None,
        waiting=None,
        window=None,
    )
    code, text = run("--url", remote.url, "--once")
    assert code == 1
    assert "vllm-embed: connection refused, for 1 min 15 s" in text
    row = next(line for line in text.splitlines() if line.startswith("vllm-embed "))
    assert row.split()[1:6] == ["gone", "-", "-", "-", "-"]


def test_without_an_exporter_it_says_what_to_do() -> None:
    """Place, cause, remedy; no traceback."""
    code, text = run("--url", "http://127.0.0.1:9", "--once")
    assert code == 2
    assert text.strip() == (
        "http://127.0.0.1:9: no exporter answers (connection refused). Start one with `vllmeter serve`, or check host "
        "and port"
    )
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://x", "write for example"),
        ("http://", "write for example"),
        ("http://user:secret@127.0.0.1:9", "--password-file"),
    ],
)
def test_wrong_addresses_are_explained_without_passwords(url: str, words: str) -> None:
    """A password in the URL is never printed."""
    code, text = run("--url", url, "--once")
    assert code == 2
    assert words in text
    assert "secret" not in text


def test_what_is_no_exporter_is_said(remote: Remote) -> None:
    """Another program behind the address, an older exporter, one that wants a password."""
    remote.live = {"x": 1}
    assert "is no vllmeter exporter" in run("--url", remote.url, "--once")[1]
    remote.live = b"<html>"
    assert "is no JSON" in run("--url", remote.url, "--once")[1]
    remote.status = 401
    assert "it wants credentials. Give --username with --password-file or" in run("--url", remote.url, "--once")[1]
    remote.status = 500
    assert "answers 500" in run("--url", remote.url, "--json")[1]


def test_sorting_and_filtering(remote: Remote) -> None:
    """Every order can be chosen; what is not known comes last."""
    state = State()
    state.take(remote.live)
    names = [server["name"] for server in ordered(state)]
    assert names == ["vllm-reranker", "vllm-embed", "vllm-qwen3"]
    orders = {}
    for sort in SORTS:
        state.sort = sort
        orders[sort] = [server["name"] for server in ordered(state)]
        assert sorted(orders[sort]) == sorted(names)
    assert orders["ttft"][0] == orders["memory"][0] == orders["kv"][0] == "vllm-qwen3"
    assert orders["name"] == sorted(names)
    state.reverse = True
    assert [server["name"] for server in ordered(state)] == sorted(names)[::-1]
    state.only = "qwen busy"
    assert [server["name"] for server in ordered(state)] == ["vllm-qwen3"]


def test_keys() -> None:
    """s sorts, r reverses, p pauses, q ends; others do nothing."""
    state = State()
    assert act("s", state)
    assert state.sort == SORTS[1]
    assert act("r", state)
    assert state.reverse
    assert act("p", state)
    assert state.paused
    assert act("\x1b", state)
    assert not act("q", state)


def test_small_text() -> None:
    """Numbers as people read them; a gap is a gap."""
    assert [seconds(v) for v in (None, 0.0462, 1.27, 0.0005, 123.0)] == ["-", "46.2 ms", "1.27 s", "500 us", "123 s"]
    assert between(0.00568, 0.0176) == "5.68-17.6 ms"
    assert between(0.9, 1.2) == "900 ms-1.20 s"
    assert between(None, 1.0) == "-"
    assert [rate(v) for v in (None, 0, 3.25, 269.4, 57_000)] == ["-", "0", "3.2", "269", "57.0k"]
    assert spark([0, 1, None, 2], 6) == "  ▁▄ █"
    assert spark([0, 0], 2, unicode=False) == ".."
    assert bar(1, 4, 8, unicode=False) == "##......"
    assert clean("a\x1b[31mb\x07") == "a?[31mb?"


class Terminal:
    """``vllmeter top`` in a pseudo-terminal."""

    def __init__(self, url: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.near, far = pty.openpty()
        ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        clear = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllmeter", "top", "--url", url, "--interval", "0.3"],
            stdin=far,
            stdout=far,
            stderr=far,
            start_new_session=True,
            env={
                **clear,
                "PYTHONPATH": str(ROOT / "exporter"),
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                **environment,
            },
        )
        os.close(far)
        self.seen = ""

    def until(self, words: str, seconds: float = 20.0, *, whole: bool = False) -> str:
        """Reads until a (whole) picture after now holds the words; returns that picture as plain text."""
        deadline = time.monotonic() + seconds
        self.seen = ""
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.near], [], [], 0.1)
            if ready:
                try:
                    self.seen += os.read(self.near, 65536).decode("utf-8", "replace")
                except OSError:
                    break
            pictures = self.seen.split("\x1b[H")[1:]
            for picture in pictures[:-1] if whole else pictures:
                plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture).replace("\r", "")
                if words in plain:
                    return plain
        raise AssertionError(f"{words!r} never appeared in:\n{self.seen[-3000:]}")

    def press(self, keys: str) -> None:
        os.write(self.near, keys.encode())

    def end(self) -> int:
        """Waits for its end and gives the exit code."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.near], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.near, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        try:
            return self.process.wait(5)
        finally:
            self.process.kill()
            self.process.wait(5)
            os.close(self.near)


def test_a_terminal_of_80_columns_without_colour(remote: Remote, pytestconfig: pytest.Config) -> None:
    """The picture over SSH, byte for byte; keys sort and pause; q gives the terminal back."""
    terminal = Terminal(remote.url, NO_COLOR="1")
    try:
        picture = terminal.until("vllm-qwen3", whole=True)
        shown = "\n".join(line for line in picture.rstrip().splitlines() if "q quit" not in line)
        assert max(map(len, picture.splitlines())) <= 80
        # The sparkline grows with every look, so only what is before it is compared.
        golden("top-terminal.txt", re.sub(r" +[▁▂▃▄▅▆▇█][▁▂▃▄▅▆▇█ ]*(?=\n|$)", " …", shown), pytestconfig)
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", terminal.seen)
        terminal.press("s")
        terminal.until("s sort: trouble")
        terminal.press("r")
        terminal.until("trouble reversed")
        terminal.press("p")
        terminal.until("paused")
        before = remote.asked
        time.sleep(1.0)
        assert remote.asked <= before + 1
        terminal.press("q")
    finally:
        assert terminal.end() == 0
    assert "\x1b[?1049l" in terminal.seen


def test_an_exporter_that_goes_away_is_said_and_comes_back(remote: Remote) -> None:
    """The last picture stays with the reason below it, until there is a new one."""
    terminal = Terminal(remote.url, NO_COLOR="1")
    try:
        terminal.until("vllm-qwen3")
        remote.status = 503
        terminal.until("answers 503")
        remote.status = 200
        picture = terminal.until("live", whole=True)
        assert "vllm-qwen3" in picture
        terminal.process.send_signal(signal.SIGINT)  # Ctrl-C
    finally:
        assert terminal.end() == 0
