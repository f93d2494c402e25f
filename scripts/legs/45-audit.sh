# shellcheck shell=bash
leg_title="No package of the lock files has a known vulnerability (pip-audit)"
leg_limit=300

PIP_AUDIT=2.10.1

leg_run() {
  leg_venv
  local tools="$LEG_SCRATCH/tools" report="$LEG_SCRATCH/audit.json" result=0
  python -m venv "$tools"
  retry 3 "$tools/bin/pip" --disable-pip-version-check install -q "pip-audit==$PIP_AUDIT"
  timeout 120 "$tools/bin/pip-audit" --disable-pip --require-hashes --timeout 15 --progress-spinner off \
    --format json --output "$report" --requirement exporter/requirements.lock --requirement exporter/build.lock || true
  [[ -s $report ]] || leg_skip "no package was audited: the advisory service (pypi.org) cannot be reached"
  python scripts/audit_report.py "$report" "$LEG_SCRATCH/unknown" || result=$?
  # 3: no vulnerability among those that were looked up, but not all were
  ((result != 3)) || leg_skip "$(<"$LEG_SCRATCH/unknown")"
  return "$result"
}
