# shellcheck shell=bash
leg_title="Types: mypy strict over the package, and loosely over the tests"
leg_limit=300
leg_fast=yes

leg_run() {
  leg_venv
  local bad=0
  mypy --strict exporter/vllmeter || bad=1
  # Tests state their types where that helps; what they state has to be right.
  mypy --no-strict --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls \
    --allow-untyped-decorators --allow-any-generics --no-warn-return-any --no-warn-unused-ignores \
    --allow-subclassing-any --implicit-reexport --explicit-package-bases --ignore-missing-imports tests || bad=1
  return "$bad"
}
