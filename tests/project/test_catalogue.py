"""The catalogue is what is exposed, documented and legal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from vllmeter.catalogue import BY_NAME, CATALOGUE
from vllmeter.render.text import document

ROOT = Path(__file__).resolve().parents[2]
UNITS = ("_seconds", "_bytes", "_ratio", "_total", "_info", "_tokens", "_celsius", "_watts", "_hertz")


def test_names_are_unique_and_legal() -> None:
    """One entry per name; no colons, no upper case, no reserved suffix."""
    assert len(BY_NAME) == len(CATALOGUE)
    for family in CATALOGUE:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), family.name
        assert not family.name.endswith(("_bucket", "_sum", "_count", "_created", "_milliseconds", "_percent"))
        assert len(set(family.labels)) == len(family.labels)
        assert not {"le", "quantile_", "host", "instance", "job", "pid"} & set(family.labels) - {"le"}


def test_suffix_and_kind_agree() -> None:
    """Counters end in _total, facts in _info, and nothing else does."""
    for family in CATALOGUE:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.name.endswith("_info") == (family.kind == "info"), family.name


def test_help_texts_are_plain_sentences() -> None:
    """Nothing that would need escaping, and a full stop at the end."""
    for family in CATALOGUE:
        assert family.help.endswith("."), family.name
        assert not set('"\\\n') & set(family.help), family.name


def test_the_reference_documents_are_current() -> None:
    """docs/metrics.md and docs/configuration.md hold every metric and setting."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build-docs"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for family in CATALOGUE:
        assert f"`{family.exposed}`" in text


def test_the_compatibility_page_is_current() -> None:
    """docs/compatibility.md is written from the name table."""
    script = str(ROOT / "scripts" / "build-compatibility")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_family_is_exposed_by_some_golden_file_or_has_a_reason_not_to_be() -> None:
    """A family that no capture and no test can produce would be a promise without proof."""
    shown = set()
    for path in (ROOT / "tests" / "golden").glob("*.metrics"):
        shown |= set(re.findall(r"^# TYPE vllmeter_(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    missing = {family.name for family in CATALOGUE} - shown
    assert missing == set(NOT_IN_GOLDEN), sorted(missing ^ set(NOT_IN_GOLDEN))


NOT_IN_GOLDEN = {"build_info": "left out of golden files: it holds the Python version; tests/web and the demo show it"}
"""family -> where it is shown instead"""


def test_a_document_without_samples_is_empty() -> None:
    """No family without a sample; OpenMetrics still ends properly."""
    assert document([], openmetrics=False) == b""
    assert document([], openmetrics=True) == b"# EOF\n"
