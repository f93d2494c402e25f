# shellcheck shell=bash
leg_title="pytest, warnings as errors: recordings, fakes and real Prometheus servers (rule tests: promtool-*)"
leg_limit=900
leg_fast=yes

leg_run() {
  leg_venv
  grep -Eq '^filterwarnings = \["error"' pyproject.toml || die "pyproject.toml: pytest must treat warnings as errors"
  # Tests that need promtool or a server skip, each with its reason, where these are absent.
  debian_ready promtool=prometheus prometheus=prometheus alertmanager=prometheus-alertmanager \
    || say "Some tests will be skipped: $DEBIAN_REASON"
  # Tests marked promtool belong to the legs promtool-*, once for each version.
  pytest -n "${VLLMETER_TEST_WORKERS:-2}" --durations=15 -p no:cacheprovider -m "not promtool and not realtime"
}
