# shellcheck shell=bash
leg_title="Types: mypy strict over the package, and loosely over the tests"
leg_limit=300
leg_fast=yes

leg_run() {
  leg_venv
  local bad=0
  mypy --strict exporter/vllmeter || bad=1
  mypy --config-file scripts/legs/mypy-tests.ini tests || bad=1
  return "$bad"
}
