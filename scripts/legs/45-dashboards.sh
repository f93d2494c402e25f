# shellcheck shell=bash
leg_title="Dashboards: current, linted, every query answered by Prometheus 2.42 and 3.16 on the recording, cost of a day"
leg_limit=600

leg_run() {
  leg_needs_files grafana/source grafana/dashboards
  leg_venv
  python -c 'import grafana_foundation_sdk' 2>/dev/null || leg_skip "grafana-foundation-sdk needs Python 3.11"
  leg_debian prometheus=prometheus promtool=prometheus
  leg_tool prometheus
  export VLLMETER_PROMETHEUS3="$TOOL_PATH"
  python grafana/source/build.py --check
  printf 'the committed dashboards are what grafana/source makes\n'
  # The costs are printed: milliseconds and samples of the dearest panels.
  pytest -q -p no:cacheprovider tests/grafana --ignore=tests/grafana/test_cost.py
  pytest -q -p no:cacheprovider -s tests/grafana/test_cost.py
}
