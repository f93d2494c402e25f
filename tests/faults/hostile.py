"""Bodies and connections that are wrong in every way we could think of, beside those of tests/fakes/fault_server.py."""

from __future__ import annotations

import itertools
import re
import socket
import time
from functools import lru_cache

from fakes import fault_server as f
from vllmeter.recording.format import Answer, RecordingReader

RECORDING = "tests/captures/vllm-0.26.0-h200-three-instances.vmrec"


@lru_cache(maxsize=1)
def good_body() -> bytes:
    """What a real vLLM answered under load."""
    with RecordingReader(RECORDING) as reader:
        return max((one.body for one in reader if isinstance(one, Answer) and one.status == 200), key=len)


def body(text: bytes, kind: str = "text/plain; version=0.0.4") -> f.Behaviour:
    """Answers with a body."""
    return f.content_type(kind, text)


def healthy(sock: socket.socket, _path: str) -> bool:
    """The real answer."""
    f.respond(sock, good_body(), kind="text/plain; version=0.0.4; charset=utf-8")
    return True


def million(sock: socket.socket, _path: str) -> bool:
    """A million series within the size limit (no copy: the test's own memory is looked at)."""
    text = _million()
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(text))
    sock.sendall(text)
    return True


@lru_cache(maxsize=1)
def _million() -> bytes:
    return b"".join(b'a{x="%d"} 1\n' % number for number in range(1_000_000))


def label_bomb(sock: socket.socket, _path: str) -> bool:
    """New label values with every answer, as a server that puts request ids into labels would give."""
    start = next(_counter)
    rows = b"".join(
        b'vllm:num_requests_running{engine="0",model_name="m",id="%d-%d"} 1\n' % (start, number)
        for number in range(2000)
    )
    f.respond(sock, b"# TYPE vllm:num_requests_running gauge\n" + rows)
    return True


_counter = itertools.count()


def clock_jump(sock: socket.socket, _path: str) -> bool:
    """A process that started in the future, then in 1970, and so on: a clock that is set to and fro."""
    start = (4e9, 0.0, 1.7e9, -5.0)[next(_counter) % 4]
    line = b"process_start_time_seconds %s" % repr(start).encode()
    f.respond(sock, re.sub(rb"(?m)^process_start_time_seconds .*$", line, good_body()))
    return True


def falling(sock: socket.socket, _path: str) -> bool:
    """Counters that go down with every answer, below zero in the end."""
    value = repr(1000.0 - 300.0 * next(_counter)).encode()
    rows = b'vllm:num_preemptions_total{engine="0",model_name="m"} %s\n' % value
    f.respond(sock, b"# TYPE vllm:num_preemptions_total counter\n" + rows + f.BODY)
    return True


def flapping(sock: socket.socket, path: str) -> bool:
    """Something else every second."""
    turn = int(time.monotonic()) % len(_FLAPS)
    return _FLAPS[turn](sock, path)


GENERATE = b'{engine="0",model_name="m"}'
RUNNING = b"# TYPE vllm:num_requests_running gauge\n"

CASES: dict[str, tuple[f.Behaviour, frozenset[str | None]]] = {
    # name: behaviour, reasons under which it may be counted (None = a usable answer)
    "slow-headers": (f.slow_headers, frozenset({"timeout"})),
    "slow-body": (f.slow_body, frozenset({"timeout"})),
    "endless-body": (f.endless_body, frozenset({"too_large"})),
    "truncated": (f.truncated, frozenset({"truncated"})),
    "reset": (f.reset, frozenset({"reset"})),
    "silent": (f.silent, frozenset({"timeout"})),
    "html": (f.content_type("text/html", b"<html>login</html>"), frozenset({"content_type"})),
    "html-as-text": (body(b"<html><body>login</body></html>"), frozenset({"parse"})),
    "binary": (f.content_type("application/octet-stream", bytes(range(256)) * 100), frozenset({"content_type"})),
    "binary-as-text": (body(bytes(range(256)) * 100), frozenset({"parse", "encoding"})),
    "invalid-utf8": (body(RUNNING + b'vllm:num_requests_running{model_name="\xff\xfe"} 1\n'), frozenset({"parse"})),
    "gzip-bomb": (f.gzip_bomb, frozenset({"too_large"})),
    "bad-gzip": (f.bad_gzip, frozenset({"encoding"})),
    "empty": (f.status("200 OK", b""), frozenset({"empty"})),
    "401": (f.status("401 Unauthorized"), frozenset({"auth"})),
    "404": (f.status("404 Not Found"), frozenset({"http_4xx"})),
    "503": (f.status("503 Service Unavailable"), frozenset({"http_5xx"})),
    "redirect": (f.redirect("http://example.invalid/metrics"), frozenset({"redirect"})),
    "redirect-loop": (f.redirect("/metrics"), frozenset({"redirect"})),
    "json": (f.content_type("application/json", b'{"detail": "no"}'), frozenset({"parse"})),
    "cut-line": (body(RUNNING + b"vllm:num_requests_running{engine="), frozenset({"parse"})),
    "nul": (body(RUNNING + b"vllm:num_requests_running\0 1\n"), frozenset({"parse"})),
    # Usable or refused as a whole, but never half believed: see test_values_of_lying_servers.
    "duplicates": (
        body(RUNNING + b"vllm:num_requests_running" + GENERATE + b" 1\nvllm:num_requests_running" + GENERATE + b" 2\n"),
        frozenset({None, "parse"}),
    ),
    "conflicting-types": (
        body(RUNNING + b"# TYPE vllm:num_requests_running counter\nvllm:num_requests_running" + GENERATE + b" 1\n"),
        frozenset({None, "parse"}),
    ),
    "nan": (body(RUNNING + b"vllm:num_requests_running" + GENERATE + b" NaN\n"), frozenset({None})),
    "infinite": (body(RUNNING + b"vllm:num_requests_running" + GENERATE + b" +Inf\n"), frozenset({None})),
    "negative": (body(RUNNING + b"vllm:num_requests_running" + GENERATE + b" -7\n"), frozenset({None})),
    "falling": (falling, frozenset({None})),
    "million": (million, frozenset({None, "too_large", "parse"})),
    "label-bomb": (label_bomb, frozenset({None})),
    "long-label": (
        body(RUNNING + b'vllm:num_requests_running{model_name="' + b"x" * 1_000_000 + b'"} 1\n'),
        frozenset({None, "parse"}),
    ),
    "frozen": (healthy, frozenset({None})),
    "clock-jump": (clock_jump, frozenset({None})),
    "flapping": (flapping, frozenset({None, "http_5xx", "parse", "reset", "truncated", "auth", "timeout"})),
}

_FLAPS = (healthy, f.status("503 Service Unavailable"), body(b"}{"), f.reset, f.status("401 Unauthorized"))
