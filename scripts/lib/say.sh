# shellcheck shell=bash
# Messages, retries and small questions about the machine, for every script here.
#
# Source this file; it sets VLLMETER_ROOT (the project folder) and defines functions only.
# All messages go to standard error, so that a function may print its result.

VLLMETER_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
export VLLMETER_ROOT

say() { printf '%s\n' "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# hash_of FILE... : one short hash over the names and contents of the files that exist.
# Used as the key of everything that is built once and kept.
hash_of() {
  local file
  for file in "$@"; do
    if [[ -f $file ]]; then
      printf '%s\n' "${file##*/}"
      cat -- "$file"
    fi
  done | sha256sum | cut -c1-12
}

# retry N COMMAND... : runs it up to N times, 5, 15, 45 s apart. For package registries, which
# fail for a moment now and then; never for a test.
retry() {
  local tries=$1 try pause=5
  shift
  for ((try = 1; try <= tries; try++)); do
    if "$@"; then
      return 0
    fi
    if ((try < tries)); then
      warn "try $try of $tries failed: $1 ${2-} ${3-}; again in $pause s"
      sleep "$pause"
      pause=$((pause * 3))
    fi
  done
  return 1
}

# as_root COMMAND... : runs it as root where that needs no password; returns 126 where it does.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif have sudo && sudo -n true 2>/dev/null; then
    sudo -n -- "$@"
  else
    return 126
  fi
}

can_be_root() { as_root true; }

# free_port : prints a TCP port of 127.0.0.1 that was free a moment ago.
free_port() {
  python3 - <<'PY'
import socket

with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1])
PY
}

# cache_folder : prints the folder that keeps what is expensive to make.
cache_folder() {
  printf '%s\n' "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/vllmeter"
}
