# shellcheck shell=bash
leg_title="Every file of the lock has its hash; known vulnerabilities (pip-audit) where advisories can be reached, else NOT AUDITED"
leg_limit=300

PIP_AUDIT=2.10.1

leg_run() {
  leg_venv
  local tools="$LEG_SCRATCH/tools" report="$LEG_SCRATCH/audit.json"
  python -m venv "$tools"
  retry 3 "$tools/bin/pip" --disable-pip-version-check install -q "pip-audit==$PIP_AUDIT"
  # Fails on any requirement without a hash, and on any file whose hash is another.
  retry 3 "$tools/bin/pip" --disable-pip-version-check download -q --no-deps --require-hashes \
    --dest "$LEG_SCRATCH/files" --requirement exporter/requirements.lock
  printf '%d files as their hashes in exporter/requirements.lock say\n' "$(find "$LEG_SCRATCH/files" -type f | wc -l)"
  timeout 120 "$tools/bin/pip-audit" --disable-pip --require-hashes --timeout 15 --progress-spinner off \
    --format json --output "$report" --requirement exporter/requirements.lock || true
  [[ -s $report ]] || { say "NOT AUDITED: the advisory service cannot be reached from here"; return 0; }
  python scripts/audit_report.py "$report"
}
