#!/usr/bin/env bash
# Runs one leg of scripts/test:  leg.sh FILE run | describe
#
# A leg file sets, each on its own line and as a literal (scripts/test reads them as text):
#   leg_title="..."      what it proves, one sentence
#   leg_limit=600        seconds until it is stopped
#   leg_fast=yes         belongs to scripts/test --fast (leave it out otherwise)
# and defines
#   leg_check            optional, quick, changes nothing: says with `leg_skip REASON` that it cannot run here
#   leg_run              the leg; ends with a non-zero code, or with `leg_skip REASON`
# It runs in the project folder with `set -euo pipefail`, no standard input, and everything of
# scripts/lib at hand. Scratch files belong in $LEG_SCRATCH, which is removed afterwards.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/lib/say.sh
source "$here/say.sh"
# shellcheck source=scripts/lib/debian.sh
source "$here/debian.sh"
# shellcheck source=scripts/lib/venv.sh
source "$here/venv.sh"
# shellcheck source=scripts/lib/tools.sh
source "$here/tools.sh"
# shellcheck source=scripts/lib/podman.sh
source "$here/podman.sh"

file=${1:?usage: leg.sh FILE run | describe}
what=${2:?usage: leg.sh FILE run | describe}
file="$(cd "$(dirname "$file")" && pwd -P)/$(basename "$file")"
cd "$VLLMETER_ROOT"

# leg_skip REASON : ends the leg as "not run here".
leg_skip() {
  if [[ -n ${LEG_REASON_FILE-} ]]; then
    printf '%s\n' "$*" >"$LEG_REASON_FILE"
  fi
  say "cannot run here: $*"
  exit 77
}

# leg_needs_files PATH... : a leg whose subject is not written yet has nothing to prove.
leg_needs_files() {
  local path
  for path in "$@"; do
    [[ -e $path ]] || leg_skip "$path does not exist"
  done
}

# leg_venv : the development environment, first on the PATH.
leg_venv() {
  local result=0
  venv_ready dev || result=$?
  ((result != 1)) || leg_skip "$VENV_REASON"
  ((result == 0)) || die "$VENV_REASON"
  PATH="$VENV/bin:$PATH"
  export PATH
}

# leg_debian ITEM... : Debian packages (see debian_ready), or the leg is not run.
leg_debian() {
  debian_ready "$@" || leg_skip "$DEBIAN_REASON"
}

# leg_tool NAME : a Go-built tool; sets TOOL_PATH. No Go here: not run. A build that fails: failed.
leg_tool() {
  tool_known "$1" || leg_skip "$TOOL_REASON"
  tool_ready "$1" || die "$TOOL_REASON"
}

# leg_containers : Podman with its API; everything that was started is removed when the leg ends.
leg_containers() {
  podman_ready || leg_skip "$PODMAN_REASON"
  leg_at_end podman_end
  podman_api || die "$PODMAN_REASON"
}

# leg_at_end FUNCTION : called when the leg ends, however it ends; the last one named first.
_leg_endings=()
leg_at_end() { _leg_endings=("$1" ${_leg_endings[@]+"${_leg_endings[@]}"}); }

_leg_end() {
  local ending
  for ending in ${_leg_endings[@]+"${_leg_endings[@]}"}; do
    "$ending" || true
  done
  rm -rf "$LEG_SCRATCH"
}

leg_check() { :; }
leg_title="" leg_limit=600
# shellcheck source=/dev/null
source "$file"

case $what in
  describe)
    name="$(basename "$file" .sh)"
    printf '%-20s %s\n' "${name#[0-9][0-9]-}" "$leg_title"
    reason="$( (leg_check) 2>&1 >/dev/null)" || printf '%-20s   %s\n' "" "${reason##*$'\n'}"
    ;;
  run)
    LEG_SCRATCH="$(mktemp -d "${TMPDIR:-/tmp}/vllmeter-leg.XXXXXX")"
    export LEG_SCRATCH
    trap _leg_end EXIT
    # Under `set -e` a script ends without a word; this says where.
    set -E
    trap 'case $BASH_COMMAND in return* | exit*) ;; *) say "failed: $BASH_COMMAND (${BASH_SOURCE[0]##*/}, line $LINENO)" ;; esac' ERR
    leg_check
    leg_run
    ;;
  *) die "leg.sh: $what is neither run nor describe" ;;
esac
