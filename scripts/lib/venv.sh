# shellcheck shell=bash
# The project's Python environment: found or made, and brought up to date only when needed.
#
# Source after say.sh and debian.sh.
#
#   venv_ready runtime   what `vllmeter` itself needs
#   venv_ready dev       also the test, lint, browser and dashboard tools
#
# Sets VENV (the folder) and VENV_PYTHON. With VENV_REASON set it returns 1 when this machine lacks
# something (Python, the venv module), and 2 when the installation into it failed.
# VLLMETER_PYTHON chooses the interpreter, VLLMETER_VENV another folder than .venv.
# Versions come from scripts/constraints.txt, which scripts/lock writes.

VENV="${VLLMETER_VENV:-$VLLMETER_ROOT/.venv}"
VENV_PYTHON="$VENV/bin/python"
VENV_REASON=""

VENV_CONSTRAINTS="$VLLMETER_ROOT/scripts/constraints.txt"

# python_usable COMMAND [VERSION] : runs, and is 3.10 or newer (or exactly that minor version).
# A name on the PATH proves nothing: version managers leave stubs there that only print an error.
python_usable() {
  "$1" - "${2-}" >/dev/null 2>&1 <<'PY'
import sys

wanted = sys.argv[1]
have = "%d.%d" % sys.version_info[:2]
sys.exit(0 if sys.version_info >= (3, 10) and wanted in ("", have) else 1)
PY
}

# python_find [VERSION] : prints the path of an interpreter, or returns 1.
python_find() {
  local wanted=${1-} candidate
  local -a candidates=()
  if [[ -n ${VLLMETER_PYTHON-} && -z $wanted ]]; then
    candidates+=("$VLLMETER_PYTHON")
  elif [[ -n $wanted ]]; then
    candidates+=("python$wanted")
    for candidate in "${PYENV_ROOT:-${HOME:-/root}/.pyenv}/versions/$wanted".*/bin/python; do
      candidates+=("$candidate")
    done
  else
    candidates+=(python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3)
  fi
  for candidate in "${candidates[@]}"; do
    if have "$candidate" && python_usable "$candidate" "$wanted"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

_venv_key() {
  {
    printf '%s\n' "$VLLMETER_ROOT"
    "$VENV_PYTHON" -c 'import sys; print(sys.version)'
    hash_of "$VLLMETER_ROOT/pyproject.toml" "$VENV_CONSTRAINTS"
  } | sha256sum | cut -c1-16
}

_venv_make() {
  local python minor
  if ! python="$(python_find)"; then
    debian_ready python3-venv || true
    if ! python="$(python_find)"; then
      VENV_REASON="needs Python 3.10 or newer; the newest found here is: $(python3 --version 2>&1 || echo none)"
      return 1
    fi
  fi
  if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    # Debian and Ubuntu ship venv apart from Python.
    minor="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if ! debian_ready "$minor" && ! debian_ready python3-venv; then
      VENV_REASON="$python lacks the venv module; $DEBIAN_REASON"
      return 1
    fi
  fi
  say "Making $VENV with $python"
  if ! "$python" -m venv --clear "$VENV" >&2; then
    VENV_REASON="$python -m venv $VENV failed (see above)"
    return 1
  fi
}

_venv_pip() {
  retry 3 "$VENV_PYTHON" -m pip --disable-pip-version-check --no-input install -q "$@" >&2
}

_venv_install() {
  local kind=$1 started=$SECONDS
  local -a with=()
  [[ -f $VENV_CONSTRAINTS ]] && with+=(-c "$VENV_CONSTRAINTS")
  if [[ $kind == dev ]]; then
    with+=(--group "$VLLMETER_ROOT/pyproject.toml:dev")
    # Dependency groups came with pip 25.1; Debian 12 and Ubuntu 22.04 make environments with older ones.
    if ! "$VENV_PYTHON" -c 'import pip; raise SystemExit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))'; then
      _venv_pip 'pip>=25.1' || return 1
    fi
  fi
  say "Installing vllmeter ($kind) into $VENV ..."
  _venv_pip "${with[@]}" -e "$VLLMETER_ROOT" || return 1
  say "... done in $((SECONDS - started)) s"
}

venv_ready() {
  local kind=${1:-runtime} lock_fd
  VENV_REASON=""
  # One at a time: scripts/demo and scripts/test may be started side by side.
  exec {lock_fd}<"$VLLMETER_ROOT"
  if have flock; then
    flock "$lock_fd"
  fi
  _venv_ready_locked "$kind"
  local result=$?
  exec {lock_fd}<&-
  return "$result"
}

_venv_ready_locked() {
  local kind=$1 key stamp failed
  if ! python_usable "$VENV_PYTHON" || ! "$VENV_PYTHON" -m pip --version >/dev/null 2>&1; then
    if [[ -e $VENV && ! -f $VENV/pyvenv.cfg ]]; then
      VENV_REASON="$VENV exists and is no Python environment; move it away"
      return 1
    fi
    _venv_make || return 1
  fi
  key="$(_venv_key)"
  for stamp in "$VENV/.vllmeter-dev" "$VENV/.vllmeter-$kind"; do
    if [[ -f $stamp && $(<"$stamp") == "$key" ]]; then
      return 0
    fi
  done
  # Within one run of scripts/test a failed installation is not tried again by each leg.
  failed="${VLLMETER_TEST_RUN:-/nonexistent}/venv-$key-$kind"
  if [[ -e $failed ]]; then
    VENV_REASON="pip could not install vllmeter ($kind) into $VENV; an earlier leg shows why"
    return 2
  fi
  if ! _venv_install "$kind"; then
    [[ -z ${VLLMETER_TEST_RUN-} ]] || : >"$failed"
    VENV_REASON="pip could not install vllmeter ($kind) into $VENV (see above); is a package index reachable?"
    return 2
  fi
  printf '%s\n' "$key" >"$VENV/.vllmeter-$kind"
}
