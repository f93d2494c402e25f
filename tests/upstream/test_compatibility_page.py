"""docs/compatibility.md holds the tables that the name table gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vllmeter.upstream.vllm import ROWS

ROOT = Path(__file__).resolve().parents[2]


def test_page_is_current() -> None:
    """Changing the name table without writing the page anew fails."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build-compatibility"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_page_names_every_upstream_metric() -> None:
    """Each name of the table stands on the page."""
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    missing = [row.name for row in ROWS if row.name not in page]
    assert not missing
