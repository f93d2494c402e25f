"""Options and settings of the whole suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites golden files."""
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; the diff is the review")


REALTIME = (
    "tests/cli/test_top.py",
    "tests/deploy/test_stack_command.py",
    "tests/deploy/test_systemd.py",
    "tests/discovery/test_live.py",
    "tests/e2e/",
    "tests/faults/",
    "tests/legs/",
    "tests/runs/test_commands.py",
    "tests/security/test_serve_process.py",
)
"""Tests that start real programs and wait for what they do: run one at a time, not beside tests that use every core."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what must not share its processor with other tests."""
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(REALTIME):
            item.add_marker("realtime")
