# shellcheck shell=bash
leg_title="The same under promtool 3.16, built from tools/go"
leg_limit=900

leg_check() {
  tool_known promtool || leg_skip "$TOOL_REASON"
}

leg_run() {
  leg_needs_files prometheus/rules alerts
  # shellcheck source=scripts/lib/promtool.sh
  source scripts/lib/promtool.sh
  leg_tool promtool
  promtool_all "$TOOL_PATH"
}
