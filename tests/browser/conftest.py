"""Browser tests run in a leg of their own: they need Chromium and two minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.world import ARGUMENTS, CHROMIUM, Exporter, Watched, replayed
from vllmeter.recording.replay import ReplayServer

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the leg's sign they are not run, and say so."""
    why = None
    if not os.environ.get("VLLMETER_BROWSER"):
        why = "browser tests run in their own leg: scripts/test --leg browser"
    elif not Path(CHROMIUM).exists():
        why = f"{CHROMIUM} is not installed (Debian: apt-get install chromium)"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if why is not None:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReplayServer, Exporter]]:
    """Three replayed servers under memory pressure and an exporter."""
    with replayed(tmp_path_factory.mktemp("world"), start=80.0) as both:
        yield both


@pytest.fixture
def watched(chromium: Any) -> Iterator[Watched]:
    """Opens pages; at the end nothing may have been logged as an error, and nothing may have left this host."""
    watch = Watched(chromium)
    yield watch
    watch.close()
    assert watch.problems == []
    assert watch.elsewhere == []
