# shellcheck shell=bash
leg_title="Every small mistake put into the rules is noticed by their tests (scripts/rules-mutate, all mutants)"
leg_limit=1200

leg_run() {
  leg_venv
  leg_debian promtool=prometheus
  python scripts/rules-mutate
}
