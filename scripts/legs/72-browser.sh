# shellcheck shell=bash
leg_title="The live page in Debian's Chromium: numbers, kills, slow servers, reconnection, zoom, keyboard, axe, 201 servers"
leg_limit=300

axe_version=4.14.1

# axe-core is a development tool under the MPL: fetched from the npm registry and kept in the cache, never shipped.
fetch_axe() {
  local folder
  folder="$(cache_folder)/axe-core-$axe_version"
  axe="$folder/axe.min.js"
  [[ -s $axe ]] && return 0
  have npm || return 1
  mkdir -p "$folder"
  (cd "$LEG_SCRATCH" && retry 2 npm pack --silent "axe-core@$axe_version" >/dev/null 2>&1 &&
    tar -xzf "axe-core-$axe_version.tgz" package/axe.min.js package/LICENSE) || return 1
  cp "$LEG_SCRATCH/package/LICENSE" "$folder/LICENSE"
  cp "$LEG_SCRATCH/package/axe.min.js" "$axe.part" && mv "$axe.part" "$axe"
}

leg_run() {
  local axe=""
  leg_venv
  leg_debian /usr/bin/chromium=chromium
  python -c 'import playwright' 2>/dev/null || leg_skip "the Python package playwright is not installed"
  if fetch_axe; then
    export VLLMETER_AXE="$axe"
  else
    say "axe-core could not be fetched (npm): names, widths and keys are checked without it"
  fi
  VLLMETER_BROWSER=1 pytest -q -s --durations=5 -p no:cacheprovider tests/browser
}
