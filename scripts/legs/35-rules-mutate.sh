# shellcheck shell=bash
leg_title="Every small mistake put into the rules is noticed by their tests (150 mutants here; scripts/rules-mutate runs all)"
leg_limit=900

leg_run() {
  leg_venv
  leg_debian promtool=prometheus
  python scripts/rules-mutate --sample "${VLLMETER_MUTANTS:-150}"
}
