# shellcheck shell=bash
leg_title="The GitHub workflows are valid: actionlint, with shellcheck over their scripts"
leg_limit=300

leg_check() {
  tool_known actionlint || leg_skip "$TOOL_REASON"
}

leg_run() {
  leg_debian shellcheck=shellcheck
  leg_tool actionlint
  "$TOOL_PATH" .github/workflows/*.yml
  printf 'actionlint has nothing to say\n'
}
