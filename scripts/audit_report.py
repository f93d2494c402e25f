#!/usr/bin/env python3
"""Judge a JSON report of pip-audit: vulnerabilities fail, packages that could not be looked up are named as such."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    packages = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    found = [(package, each) for package in packages for each in package.get("vulns", [])]
    for package, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    audited = len(packages) - len(skipped)
    print(f"{audited} packages audited, {len(found)} known vulnerabilities")
    if skipped:
        print(f"NOT AUDITED ({len(skipped)}): the advisory service does not know {', '.join(skipped)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
