# shellcheck shell=bash
leg_title="Python style: ruff's rules and its formatting"
leg_limit=120
leg_fast=yes

leg_run() {
  leg_venv
  local bad=0
  ruff check --no-cache . || bad=1
  ruff format --no-cache --check . || bad=1
  return "$bad"
}
