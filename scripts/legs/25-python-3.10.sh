# shellcheck shell=bash
leg_title="The tests again on the oldest Python that we support"
leg_limit=900

leg_check() {
  python_find 3.10 >/dev/null || leg_skip "no Python 3.10 here (Debian 12 has 3.11; Ubuntu 22.04 has it)"
}

leg_run() {
  VLLMETER_PYTHON="$(python_find 3.10)"
  VLLMETER_VENV="$(cache_folder)/venv-3.10"
  export VLLMETER_PYTHON VLLMETER_VENV
  VENV="$VLLMETER_VENV" VENV_PYTHON="$VLLMETER_VENV/bin/python"
  mkdir -p "$(cache_folder)"
  leg_venv
  python --version
  # Against real programs they ran in the leg before; here only Python matters.
  pytest -n "${VLLMETER_TEST_WORKERS:-2}" -p no:cacheprovider -m "not promtool and not realtime and not browser and not containers"
}
