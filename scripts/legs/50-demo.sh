# shellcheck shell=bash
leg_title="scripts/demo --check: the recording, the exporter and a real Prometheus, asked a dozen questions"
leg_limit=300

leg_run() {
  leg_needs_files scripts/demo
  bash scripts/demo --check
}
