"""The table of everything that was checked against real vLLM, printed at the end and written to a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vllm.table import ROWS, render


def pytest_configure() -> None:
    """A time limit sends SIGTERM: as Ctrl-C it ends the tests in order, and the servers with them."""
    if "VLLMETER_VLLM_ENV" not in os.environ:
        return

    def ended(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ended)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table."""
    if not ROWS:
        return
    text = render(ROWS)
    terminalreporter.write_sep("=", "what was checked against real vLLM")
    terminalreporter.write_line(text)
    if path := os.environ.get("VLLMETER_VLLM_TABLE"):
        Path(path).write_text(text + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def patience() -> float:
    """Seconds that any single thing may take: a machine shared with others is slow, a hung test is worse."""
    return float(os.environ.get("VLLMETER_VLLM_PATIENCE", "240"))
