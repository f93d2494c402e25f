# shellcheck shell=bash
leg_title="Rules, alerts and their tests under Debian's promtool (2.42 on Debian 12)"
leg_limit=300

leg_run() {
  leg_needs_files prometheus/rules alerts
  # shellcheck source=scripts/lib/promtool.sh
  source scripts/lib/promtool.sh
  local promtool=/usr/bin/promtool
  leg_debian promtool=prometheus
  [[ -x $promtool ]] || promtool="$(command -v promtool)"
  promtool_all "$promtool"
  # What pytest asks promtool beside these files: are planted mistakes in the rules noticed?
  leg_venv
  PROMTOOL="$promtool" pytest -n "${VLLMETER_TEST_WORKERS:-2}" -p no:cacheprovider -m promtool -k "not accepts_the_rules"
}
