"""What a plain exporter must not load."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("requests", "urllib3", "charset_normalizer", "numpy", "matplotlib", "rich")


def test_serving_loads_no_library_that_only_some_configurations_need() -> None:
    """requests and urllib3 alone are five megabytes of memory in every exporter; discovery and canary load them."""
    asks = f"import sys, vllmeter.cli.app, vllmeter.wiring; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    assert out.split() == []
