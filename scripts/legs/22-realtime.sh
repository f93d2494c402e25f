# shellcheck shell=bash
leg_title="Real processes, one test at a time: Prometheus 2.42 and 3.16, Alertmanager, faults, kill -9, signals, reloads"
leg_limit=900

leg_run() {
  leg_venv
  debian_ready promtool=prometheus prometheus=prometheus alertmanager=prometheus-alertmanager \
    || say "Some tests will be skipped: $DEBIAN_REASON"
  if tool_known prometheus && leg_tool prometheus; then
    export VLLMETER_PROMETHEUS3="$TOOL_PATH"
  else
    say "Prometheus 3 is not built here ($TOOL_REASON): its tests are skipped, the legs promtool-3 and dashboards say so too"
  fi
  pytest --durations=15 -p no:cacheprovider -m "realtime and not promtool"
}
