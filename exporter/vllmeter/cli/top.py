"""``vllmeter top``: what the live page shows, in a terminal: table, sparklines, memory; over SSH, at 80 columns."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from vllmeter.cli.exporter_options import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    PasswordFileOption,
    ServerNameOption,
    TokenFileOption,
    UrlOption,
    UsernameOption,
    access_from,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from vllmeter.remote import Access

DEFAULT_ADDRESS: Final = "127.0.0.1:9877"
HISTORY_TIMEOUT: Final = 20.0
KEPT: Final = 120
"""Values behind a sparkline."""
GIB: Final = 1 << 30
SORTS: Final = ("configured", "trouble", "waiting", "ttft", "kv", "memory", "name")
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = ".:-=+*#@"
_TONES: Final[Mapping[str, str]] = {
    "ready": "green",
    "busy": "green",
    "starting": "cyan",
    "sleeping": "cyan",
    "late": "yellow",
    "stale_gauges": "yellow",
    "unknown_progress": "yellow",
    "failing": "bold red",
    "stuck": "bold red",
    "engine_dead": "bold red",
    "gone": "bold red",
}
_WORDS: Final[Mapping[str, str]] = {
    "sleeping": "asleep",
    "stale_gauges": "stale",
    "unknown_progress": "unknown",
    "engine_dead": "dead",
}
_WORST: Final = {"bold red": 0, "yellow": 1, "cyan": 2, "green": 3}


class TopError(Exception):
    """The exporter cannot be watched; the message says why and what to do."""


def top(
    url: UrlOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the page gets as JSON once and end.")] = False,
    sort: Annotated[str, typer.Option("--sort", help=", ".join(SORTS) + ".")] = "configured",
    only: Annotated[str, typer.Option("--filter", help="Only servers with this in name, model or state.")] = "",
    interval: Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.2, max=60.0)] = 1.0,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
    server_name: ServerNameOption = None,
    username: UsernameOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Watches an exporter (default http://127.0.0.1:9877) in the terminal: q ends, s sorts, r reverses, p pauses.

    NO_COLOR turns colours off. Exit code of --once and --json: 0 when every server serves, 1 when one does not,
    2 when no exporter answers or it lets nobody in with these options.
    """
    if sort not in SORTS:
        typer.echo(f"--sort {sort}: use one of {', '.join(SORTS)}", err=True)
        raise typer.Exit(2)
    address = url or DEFAULT_ADDRESS
    access = access_from(
        address, ca_file, cert_file, key_file, server_name, username, password_file, token_file
    )  # fmt: skip
    try:
        source = Source(access, given=url is not None)
        if as_json:
            document = source.live()
            typer.echo(json.dumps(document, indent=2))
            raise typer.Exit(exit_code(document))
        state = State(sort=sort, only=only)
        if once:
            state.take(source.live())
            source.remember(state, 60.0)
            console = make_console()
            for part in render(state, console.width, unicode=speaks_unicode(console)):
                console.print(part)
            assert state.document is not None
            raise typer.Exit(exit_code(state.document))
        state.take(source.live())
        if not sys.stdout.isatty():
            raise TopError("standard output is no terminal; use --once or --json")
        source.remember(state, float(KEPT))
        watch(source, state, interval)
    except TopError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


def exit_code(document: Mapping[str, Any]) -> int:
    """1 when a server does not serve (gone, dead, stuck, failing)."""
    bad = [s for s in document["servers"] if _TONES.get(s["now"]["state"]) == "bold red"]
    return int(bool(bad))


# --------------------------------------------------------------------------- the exporter


class Source:
    """An exporter over HTTP."""

    def __init__(self, access: Access, *, given: bool = True) -> None:
        from vllmeter.remote import RemoteExporter

        self._remote = RemoteExporter(access)
        self.shown = access.url
        """without credentials"""
        self._given = given

    def live(self) -> dict[str, Any]:
        """What the page gets now."""
        document = self._get("/api/live")
        if not isinstance(document, dict) or "servers" not in document:
            raise TopError(f"{self.shown} is no vllmeter exporter, or one of another release: check the port")
        return document

    def remember(self, state: State, seconds: float) -> None:
        """Gives ``state`` the last seconds of every server, for sparklines; without them they begin empty."""
        assert state.document is not None
        begin = state.document["wall"] - seconds - 1.0
        with contextlib.suppress(TopError):
            state.remember(self._get(f"/api/history?from={begin:.3f}", HISTORY_TIMEOUT))

    def _get(self, path: str, timeout: float = 5.0) -> Any:
        from vllmeter.remote import RemoteError

        try:
            return self._remote.get(path, timeout)
        except RemoteError as error:
            text = str(error)
            if error.kind == "absent" and not self._given:
                text += "\nor name another exporter: vllmeter top --url http://HOST:9877"
            raise TopError(text) from error


# --------------------------------------------------------------------------- what is shown


@dataclass(slots=True)
class State:
    """What was read and how it is to be shown."""

    sort: str = "configured"
    reverse: bool = False
    only: str = ""
    paused: bool = False
    problem: str | None = None
    document: dict[str, Any] | None = None
    waiting: dict[str, deque[float | None]] = field(default_factory=dict)
    ttft: dict[str, deque[float | None]] = field(default_factory=dict)

    def take(self, document: dict[str, Any]) -> None:
        """A new look."""
        self.document = document
        self.problem = None
        for server in document["servers"]:
            now = server["now"]
            window = now["window"]
            self._push(self.waiting, server["name"], _sum(now["running"], now["waiting"]))
            self._push(self.ttft, server["name"], None if window is None else window["ttft_mean"])

    def remember(self, history: Mapping[str, Any]) -> None:
        """Rows from before the first look."""
        names = ["at", *history["fields"]]
        running, waiting, mean = (names.index(n) for n in ("running", "waiting", "ttft_mean_60s"))
        for name, data in history["servers"].items():
            for values, get in ((self.waiting, lambda r: _sum(r[running], r[waiting])), (self.ttft, lambda r: r[mean])):
                before = [get(row) for row in data["rows"]][-KEPT:]
                values[name] = deque([*before, *values.get(name, ())], maxlen=KEPT)

    @staticmethod
    def _push(values: dict[str, deque[float | None]], name: str, value: float | None) -> None:
        values.setdefault(name, deque(maxlen=KEPT)).append(value)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def ordered(state: State) -> list[dict[str, Any]]:
    """Servers that are to be shown, in their order."""
    assert state.document is not None
    words = state.only.lower().split()

    def text(server: Mapping[str, Any]) -> str:
        return f"{server['name']} {server['facts']['model'] or ''} {server['now']['state']}".lower()

    found = [server for server in state.document["servers"] if all(word in text(server) for word in words)]

    def figure(server: Mapping[str, Any]) -> float:
        now = server["now"]
        window = now["window"] or {}
        value = {
            "waiting": now["waiting"],
            "ttft": window.get("ttft_mean"),
            "kv": now["kv_cache_usage"],
            "memory": used_of(server)[0],
        }[state.sort]
        return -1.0 if value is None else float(value)

    if state.sort == "name":
        found.sort(key=lambda server: server["name"])
    elif state.sort == "trouble":
        found.sort(key=lambda server: _WORST[_TONES.get(server["now"]["state"], "yellow")])
    elif state.sort != "configured":
        found.sort(key=figure, reverse=True)
    return found[::-1] if state.reverse else found


def used_of(server: Mapping[str, Any]) -> tuple[float | None, bool]:
    """(bytes on all GPUs, whether that is an estimate); None as soon as a part is not known."""
    return _total(server["now"]["used"].values())


def budget_of(server: Mapping[str, Any]) -> tuple[float | None, bool]:
    """(budget on all GPUs, whether that is an estimate)."""
    return _total([row["budget"] for row in server["facts"]["memory"]])


def _total(quantities: Any) -> tuple[float | None, bool]:
    known = list(quantities)
    if not known or any(q["value"] is None for q in known):
        return None, False
    return sum(q["value"] for q in known), any(q["estimate"] for q in known)


# --------------------------------------------------------------------------- text


def seconds(value: float | None) -> str:
    """``46.2 ms``, ``1.27 s``; ``-`` when not known."""
    if value is None:
        return "-"
    if value >= 1.0:
        return f"{_three(value)} s"
    if value >= 0.001 or value == 0:
        return f"{_three(value * 1e3)} ms"
    return f"{_three(value * 1e6)} us"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def between(low: float | None, high: float | None) -> str:
    """``5.68-17.6 ms``."""
    if low is None or high is None:
        return "-"
    first, last = seconds(low), seconds(high)
    if first == last:
        return first
    number, _, unit = first.partition(" ")
    return f"{number}-{last}" if last.endswith(f" {unit}") else f"{first}-{last}"


def count(value: float | None) -> str:
    """Whole numbers as such."""
    return "-" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Tokens per second in five characters."""
    if value is None:
        return "-"
    return (
        f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"
    )


def percent(value: float | None) -> str:
    """``23 %``."""
    return "-" if value is None else f"{value * 100:.0f} %"


def memory(server: Mapping[str, Any]) -> str:
    """``5.49/8.39``: GiB held of GiB allowed; ~ marks an estimate."""
    parts = []
    for value, estimate in (used_of(server), budget_of(server)):
        parts.append("-" if value is None else f"{'~' if estimate else ''}{value / GIB:.2f}")
    return "/".join(parts)


def spark(values: Sequence[float | None], width: int, *, unicode: bool = True) -> str:
    """The last values as one line of blocks; a gap where nothing is known."""
    marks = _BLOCKS if unicode else _ASCII
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None]
    most = max(known, default=0.0)
    line = "".join(
        " " if value is None else marks[min(7, int(value / most * 7.999))] if most > 0 else marks[0] for value in shown
    )
    return line.rjust(width)


def bar(part: float, whole: float, width: int, *, unicode: bool = True) -> str:
    """``#####.....``"""
    full = round(width * min(1.0, max(0.0, part / whole))) if whole > 0 else 0
    return ("█" if unicode else "#") * full + ("░" if unicode else ".") * (width - full)


Column = tuple[str, bool, int, Callable[[dict[str, Any], State], str]]
"""(title, right-aligned, narrowest terminal that shows it, text)"""


def _window(server: Mapping[str, Any], name: str) -> Any:
    window = server["now"]["window"]
    return None if window is None else window.get(name)


def _jitter(server: Mapping[str, Any]) -> str:
    return between(_window(server, "ttft_jitter_lower"), _window(server, "ttft_jitter_upper"))


def _p95(server: Mapping[str, Any]) -> str:
    pair = (_window(server, "ttft_quantiles") or {}).get("0.95")
    return between(*pair) if pair else "-"


COLUMNS: Final[tuple[Column, ...]] = (
    ("run", True, 0, lambda s, _: count(s["now"]["running"])),
    ("wait", True, 0, lambda s, _: count(s["now"]["waiting"])),
    ("KV", True, 0, lambda s, _: percent(s["now"]["kv_cache_usage"])),
    ("TTFT", True, 0, lambda s, _: seconds(_window(s, "ttft_mean"))),
    ("jitter", True, 112, lambda s, _: _jitter(s)),
    ("p95", True, 126, lambda s, _: _p95(s)),
    ("ITL", True, 100, lambda s, _: seconds(_window(s, "itl_mean"))),
    ("tok/s", True, 0, lambda s, _: rate(_window(s, "generation_tokens_per_second"))),
    ("preempt", True, 100, lambda s, _: count(_window(s, "preemptions"))),
    ("GiB/budget", True, 0, lambda s, _: memory(s)),
)


def render(state: State, width: int, *, unicode: bool = True, keys: str = "") -> Iterator[RenderableType]:
    """The whole picture for a terminal of that width, part by part."""
    document = state.document
    assert document is not None
    yield from _cards(document, width, unicode)
    yield from _servers(state, width, unicode)
    for server in document["servers"]:
        tone = _TONES.get(server["now"]["state"], "yellow")
        if tone in ("bold red", "yellow"):
            since = server["now"]["since"]
            said = since is None or re.search(r" \d+ s\b", server["now"]["reason"])
            lasting = "" if said else f", for {_span(document['wall'] - since)}"
            yield _text(f"{server['name']}: {server['now']['reason']}{lasting}", style=tone)
        attribution = server["facts"]["attribution"]
        if attribution["state"] != "measured" and attribution["reason"]:
            yield _text(f"{server['name']}: memory: {attribution['reason']}", style="dim")
    for run in document["runs"]:
        if run["ended"] is None:
            where = run["server"] or "all servers"
            yield _text(
                f"run {run['run']} ({run['scenario']}) on {where} for {_span(document['wall'] - run['started'])}"
            )
    alerts = document.get("alerts")
    for alert in (alerts or {}).get("firing", [])[:5]:
        yield _text(
            f"ALERT {alert['severity']} {alert['name']} {alert['server']} {alert['summary']}", style="bold yellow"
        )
    if not document["host"]["nvml_up"] and document["host"]["nvml_reason"]:
        yield _text(f"no GPU readings: {document['host']['nvml_reason']}", style="yellow")
    if state.problem is not None:
        yield _text(state.problem.partition("\n")[0], style="bold red")
    if keys:
        yield _text(keys, style="dim", no_wrap=True, overflow="ellipsis")


def clean(text: str) -> str:
    """Without characters that would control the terminal: names and messages come from elsewhere."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _text(text: str, **more: Any) -> Text:
    from rich.text import Text

    return Text(clean(text), **more)


def _span(value: float) -> str:
    whole = max(0, int(value))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def _cards(document: Mapping[str, Any], width: int, unicode: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    for card in document["gpus"]:
        used, total = card["used"], card["total"]
        title = clean(f"GPU {card['gpu']} {card['name']}")[: max(12, width - 34)]
        size = "memory not known" if used is None or total is None else f"{used / GIB:.2f} of {total / GIB:.2f} GiB"
        more = [] if card["utilization"] is None else [f"{card['utilization'] * 100:.0f} % busy"]
        if card["unattributed"] is not None:
            more.append(f"unattributed {card['unattributed'] / GIB:.2f}")
        while more and len("  ".join((title, size, *more))) > width:
            more.pop()
        room = min(24, width - len("  ".join((title, size, *more))) - 2)
        line = Text(f"{title}  ", style="bold", no_wrap=True)
        line.append(size, style="not bold")
        if room >= 6 and used is not None and total:
            line.append("  " + bar(used, total, room, unicode=unicode), style="not bold cyan")
        line.append("".join(f"  {word}" for word in more), style="not bold")
        yield line


def _servers(state: State, width: int, unicode: bool) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    assert state.document is not None
    shown = ordered(state)
    if not shown:
        yield Text("no server fits" if state.only else "no server is configured, and none was found")
        return
    columns = [column for column in COLUMNS if width >= column[2]]
    cells = [[column[3](server, state) for column in columns] for server in shown]
    states = [_WORDS.get(server["now"]["state"], server["now"]["state"]) for server in shown]
    taken = sum(max(len(title), *(len(row[i]) for row in cells)) + 1 for i, (title, *_) in enumerate(columns))
    taken += max(5, *map(len, states)) + 1
    name = min(max(6, *(len(server["name"]) for server in shown)), max(10, width - taken - 9))
    left = width - taken - name - 1
    sparks = [("requests", state.waiting)] if left < 36 else [("requests", state.waiting), ("TTFT 60 s", state.ttft)]
    each = min(40, left // len(sparks) - 1)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("server", no_wrap=True, max_width=name, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    for title, right, *_ in columns:
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    if each >= 8:
        for title, _ in sparks:
            table.add_column(title, no_wrap=True)
    for server, word, row in zip(shown, states, cells, strict=True):
        lines = (
            [spark(values.get(server["name"], ()), each, unicode=unicode) for _, values in sparks] if each >= 8 else []
        )
        table.add_row(
            _text(server["name"]),
            Text(word, style=_TONES.get(server["now"]["state"], "yellow")),
            *row,
            *map(Text, lines),
        )
    yield table


# --------------------------------------------------------------------------- terminal


def make_console() -> Console:
    """A console that keeps to NO_COLOR and, without a terminal, to 80 columns or COLUMNS."""
    from rich.console import Console

    # rich itself keeps to NO_COLOR and TERM=dumb
    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "80"))
    return Console(width=width, highlight=False, markup=False, emoji=False)


def speaks_unicode(console: Console) -> bool:
    """Whether block characters come out as such."""
    return (console.encoding or "").lower().startswith("utf")


def watch(source: Source, state: State, interval: float) -> None:
    """Shows the picture until q or Ctrl-C."""
    from rich.console import Group
    from rich.live import Live

    console = make_console()
    unicode = speaks_unicode(console)
    pressed: queue.SimpleQueue[str] = queue.SimpleQueue()
    ended = threading.Event()

    def picture() -> RenderableType:
        word = "paused" if state.paused else "live"
        order = f"{state.sort}{' reversed' if state.reverse else ''}"
        place = f"{source.shown} " if console.width >= 110 else ""
        keys = f"{place}{word}  q quit  s sort: {order}  r reverse  p {'go on' if state.paused else 'pause'}"
        return Group(*render(state, console.width, unicode=unicode, keys=keys))

    with (
        contextlib.suppress(KeyboardInterrupt),  # Ctrl-C is an end like q
        _keys(pressed, ended),
        Live(picture(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        due = time.monotonic() + interval
        while True:
            try:
                key = pressed.get(timeout=max(0.01, due - time.monotonic()))
            except queue.Empty:
                key = None
            if key is not None:
                if not act(key, state):
                    return
                live.update(picture(), refresh=True)
                continue
            if ended.is_set():
                return
            due = time.monotonic() + interval
            if not state.paused:
                try:
                    state.take(source.live())
                except TopError as error:
                    state.problem = str(error)  # the last picture stays, with the reason below it
                live.update(picture(), refresh=True)


def act(key: str, state: State) -> bool:
    """What a key does; False ends."""
    if key in ("q", "Q", "\x03", "\x04"):
        return False
    if key == "s":
        state.sort = SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)]
    elif key == "r":
        state.reverse = not state.reverse
    elif key in ("p", " "):
        state.paused = not state.paused
    return True


@contextlib.contextmanager
def _keys(pressed: queue.SimpleQueue[str], ended: threading.Event) -> Iterator[None]:
    """Single keys from the terminal, which is left as it was found."""
    if not sys.stdin.isatty():
        yield  # no keys; Ctrl-C ends
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def read() -> None:
        while not ended.is_set():
            ready, _, _ = select.select([handle], [], [], 0.2)
            if ready:
                data = os.read(handle, 32)
                if not data:
                    ended.set()
                    return
                for key in data.decode("utf-8", "replace"):
                    pressed.put(key)

    tty.setcbreak(handle)
    reader = threading.Thread(target=read, name="keys", daemon=True)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join(1.0)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
