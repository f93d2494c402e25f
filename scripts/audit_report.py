#!/usr/bin/env python3
"""Judge a JSON report of pip-audit.

    audit_report.py REPORT [REASON]

Exit code 0: every package was looked up, none has a known vulnerability.  1: there are known vulnerabilities.  3: none
among those that were looked up, but not all were; file REASON then says in one line how many.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def judge(packages: list[dict[str, object]]) -> tuple[int, list[str]]:
    """(exit code, lines to print); the last line is the verdict."""
    skipped = [str(package["name"]) for package in packages if "skip_reason" in package]
    lines = []
    for package in packages:
        for each in package.get("vulns") or ():  # type: ignore[attr-defined]
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            lines.append(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    found, all_of_them = len(lines), len(packages)
    audited = all_of_them - len(skipped)
    if skipped:
        lines.append(f"not known to the advisory service: {', '.join(skipped)}")
    if not audited:
        verdict = f"none of {all_of_them} packages was audited: the advisory service knows none of them"
    else:
        verdict = f"{audited} of {all_of_them} packages audited, {found or 'no'} known vulnerabilities in them"
        verdict += f"; {len(skipped)} not audited" if skipped else ""
    code = 1 if found else 3 if skipped or not audited else 0
    return code, [*lines, verdict]


def main() -> int:
    code, lines = judge(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["dependencies"])
    print("\n".join(lines))
    if code == 3 and len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(lines[-1] + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
