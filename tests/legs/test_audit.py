"""What the legs `audit` and `hashes` call good, on reports and lock files made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

CLEAN: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
UNKNOWN: dict[str, Any] = {"name": "b", "skip_reason": "not found"}
BAD: dict[str, Any] = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "verdict"),
    [
        ([CLEAN], 0, "1 of 1 packages audited, no known vulnerabilities in them"),
        ([CLEAN, UNKNOWN], 3, "1 of 2 packages audited, no known vulnerabilities in them; 1 not audited"),
        ([UNKNOWN], 3, "none of 1 packages was audited: the advisory service knows none of them"),
        ([], 3, "none of 0 packages was audited: the advisory service knows none of them"),
        ([CLEAN, UNKNOWN, BAD], 1, "2 of 3 packages audited, 1 known vulnerabilities in them; 1 not audited"),
    ],
)
def test_only_a_whole_audit_passes(tmp_path: Path, packages: list[dict[str, Any]], code: int, verdict: str) -> None:
    """Nothing that was not looked up counts as clean; the last line says how many were."""
    report, reason = tmp_path / "report.json", tmp_path / "reason"
    report.write_text(json.dumps({"dependencies": packages}))
    command = [sys.executable, str(ROOT / "scripts" / "audit_report.py"), str(report), str(reason)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == verdict
    assert (reason.read_text().strip() if reason.exists() else None) == (verdict if code == 3 else None)


def test_every_package_of_the_lock_files_has_its_hashes() -> None:
    """What the leg reads with awk, read here in another way; no place of one machine is left in the files."""
    for name in ("requirements.lock", "build.lock"):
        entries = (ROOT / "exporter" / name).read_text().replace("\\\n", " ").splitlines()
        entries = [line for line in entries if not line.startswith("#")]
        assert entries
        assert all("==" in line.split()[0] and "--hash=sha256:" in line for line in entries), name
