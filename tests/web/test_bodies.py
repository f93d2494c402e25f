"""Who gets which /metrics body, and who waits for one."""

from __future__ import annotations

import gzip
import threading
import time

from vllmeter.web.bodies import DEAR, FRESH, OLDEST, Bodies


class Maker:
    """Renders numbered bodies; each takes ``cost`` seconds of the test's own clock."""

    def __init__(self, cost: float) -> None:
        self.now = 100.0
        self.cost = cost
        self.made = 0
        self.go = threading.Event()
        self.go.set()

    def render(self, openmetrics: bool) -> bytes:
        assert self.go.wait(5)
        self.made += 1
        self.now += self.cost
        return f"{'open' if openmetrics else 'text'} {self.made}".encode()

    def clock(self) -> float:
        return self.now


def test_many_scrapers_cost_one_rendering() -> None:
    """Requests that follow each other closely get the same bytes; each format has its own."""
    maker = Maker(0.001)
    bodies = Bodies(maker.render, maker.clock)
    assert bodies.at_once(False) is None
    assert bodies.get(False) == bodies.get(False) == bodies.at_once(False) == b"text 1"
    assert bodies.at_once(False, packed=True) is None
    assert bodies.get(True) == b"open 2"
    maker.now += FRESH
    assert bodies.get(False) == b"text 3"


def test_a_single_scraper_never_gets_an_old_body() -> None:
    """Whoever asks after more than a second gets a body made for the request, however dear it is."""
    maker = Maker(5 * DEAR)
    bodies = Bodies(maker.render, maker.clock)
    assert bodies.get(False) == b"text 1"
    maker.now += OLDEST
    assert bodies.get(False) == b"text 2"


def test_nobody_waits_for_a_dear_body_while_one_of_this_second_is_there() -> None:
    """Under many requests a dear body is made beside them, by one thread at a time."""
    maker = Maker(5 * DEAR)
    bodies = Bodies(maker.render, maker.clock)
    bodies.get(False)
    maker.now += 0.8
    maker.go.clear()
    assert [bodies.get(False) for _ in range(20)] == [b"text 1"] * 20
    assert sum(thread.name == "render" for thread in threading.enumerate()) == 1
    maker.go.set()
    deadline = time.monotonic() + 5
    while bodies.get(False) != b"text 2" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bodies.get(False) == b"text 2"
    assert maker.made == 2


def test_whoever_waited_while_a_body_was_made_gets_that_one() -> None:
    """Several first requests at once render once."""
    maker = Maker(0.001)
    bodies = Bodies(maker.render, lambda: 100.0)
    maker.go.clear()
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(bodies.get(False))) for _ in range(8)]
    for thread in threads:
        thread.start()
    maker.go.set()
    for thread in threads:
        thread.join(5)
    assert got == [b"text 1"] * 8


def test_a_packed_body_holds_the_same_text() -> None:
    """Gzip is made once per body, only when somebody wants it, and also ahead for those who wanted it before."""
    maker = Maker(5 * DEAR)
    bodies = Bodies(maker.render, maker.clock)
    assert bodies.get(False) == b"text 1"
    packed = bodies.get(False, packed=True)
    assert gzip.decompress(packed) == b"text 1"
    assert bodies.get(False, packed=True) is packed
    maker.now += OLDEST
    assert gzip.decompress(bodies.get(False, packed=True)) == b"text 2"
    assert bodies.get(False) == b"text 2"
