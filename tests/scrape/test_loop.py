"""The thread of one server against endpoints that answer in part."""

from __future__ import annotations

import socket
import time

from fakes import fault_server as f
from vllmeter.config.settings import Server, Timeouts
from vllmeter.scrape.loop import TargetLoop
from vllmeter.scrape.target import Target


def only_health(sock: socket.socket, path: str) -> bool:
    """/metrics hangs, as with a multi-process directory on a network volume that is gone; the rest works."""
    return f.good(sock, path) if path.endswith("/health") else f.silent(sock, path)


def test_who_is_late_with_metrics_is_asked_for_its_health() -> None:
    """A hanging /metrics with a good /health is a server that serves: nobody may be paged for connection errors."""
    with f.FaultServer(only_health) as endpoint:
        quick = Timeouts(connect=0.5, read=0.3, total=1.0)
        target = Target(Server(name="s", url=endpoint.url, timeout=quick), 0.2)
        loop = TargetLoop(target, lambda *_: None, lambda _: False)
        loop.start()
        try:
            deadline = time.monotonic() + 5
            while target.status(time.monotonic()).healthy is None and time.monotonic() < deadline:
                time.sleep(0.02)
            status = target.status(time.monotonic())
        finally:
            loop.stop(2.0)
    assert (status.up, status.reason, status.healthy) == (False, "timeout", True)


def test_a_server_that_hangs_altogether_is_not_healthy_while_it_is_asked() -> None:
    """/metrics timed out, /health is asked and hangs as well: what it said before does not stand for now."""
    hangs = False

    def behaviour(sock: socket.socket, path: str) -> bool:
        return f.silent(sock, path) if hangs else f.good(sock, path)

    with f.FaultServer(behaviour) as endpoint:
        slow = Timeouts(connect=0.5, read=1.7, total=2.0)
        target = Target(Server(name="s", url=endpoint.url, timeout=slow), 0.2)
        loop = TargetLoop(target, lambda *_: None, lambda _: False)
        loop.start()
        seen: list[tuple[bool, bool | None, int | str | None]] = []
        try:
            deadline = time.monotonic() + 5
            while target.status(time.monotonic()).healthy is None and time.monotonic() < deadline:
                time.sleep(0.02)
            hangs = True
            deadline = time.monotonic() + 10
            while target.status(time.monotonic()).health != "timeout" and time.monotonic() < deadline:
                status = target.status(time.monotonic())
                seen.append((status.up, status.healthy, status.health))
                time.sleep(0.02)
        finally:
            loop.stop(2.0)
    assert (False, None, "pending") in seen
    # between the end of the scrape and the question lie microseconds, not the seconds of the question
    assert seen.count((False, True, 200)) <= 1
