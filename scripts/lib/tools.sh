# shellcheck shell=bash
# Programs that Debian has only in old versions or not at all, built once with Go and kept.
#
# Source after say.sh.
#
#   tool_ready NAME    builds it where needed; sets TOOL_PATH, or returns 1 and sets TOOL_REASON
#   tool_known NAME    0 when it is built already or Go is there to build it; else TOOL_REASON
#
# NAME is one of: prometheus, promtool, alertmanager, amtool, victoria-metrics, otel-collector, compose, actionlint,
# kustomize, manifests. Only scripts/bench asks for otel-collector, no leg of CI does.
# The versions stand in tools/go/<module>/go.mod, the checksums in its go.sum; the built program lies
# in the cache folder under <name>-<version>-<hash of both>. VLLMETER_<NAME> (VLLMETER_PROMTOOL, ...)
# points at a program of your own instead. The web pages of Prometheus and Alertmanager are left out: nothing
# here needs them.

TOOL_PATH=""
TOOL_REASON=""

# Cores for one build; a build of Prometheus takes about 1 GB of memory per core.
TOOL_CORES="${VLLMETER_BUILD_CORES:-2}"

# Prometheus finds its targets in many clouds, and each of them drags a library in. These are
# the ways that our configurations use; static, file and HTTP discovery are always there.
_TOOL_PROMETHEUS_TAGS="remove_all_sd,enable_dns_sd,enable_kubernetes_sd"

# _tool_facts NAME : sets module folder, package, tags and the variable that holds the version.
_tool_facts() {
  _tool_tags=""
  case $1 in
    prometheus | promtool)
      _tool_module=prometheus
      _tool_of=github.com/prometheus/prometheus
      _tool_package=$_tool_of/cmd/$1
      _tool_tags=$_TOOL_PROMETHEUS_TAGS
      _tool_variable=github.com/prometheus/common/version.Version
      ;;
    alertmanager | amtool)
      _tool_module=alertmanager
      _tool_of=github.com/prometheus/alertmanager
      _tool_package=$_tool_of/cmd/$1
      _tool_variable=github.com/prometheus/common/version.Version
      ;;
    victoria-metrics)
      _tool_module=victoria-metrics
      _tool_of=github.com/VictoriaMetrics/VictoriaMetrics
      _tool_package=$_tool_of/app/victoria-metrics
      _tool_variable=$_tool_of/lib/buildinfo.Version
      ;;
    otel-collector)
      # A program of our own with the one receiver that is needed; the collectors made by others have dozens.
      _tool_module=otel-collector
      _tool_of=go.opentelemetry.io/collector/otelcol
      _tool_package=.
      _tool_tags=remove_all_sd
      _tool_variable=main.version
      ;;
    compose)
      _tool_module=compose
      _tool_of=github.com/docker/compose/v2
      _tool_package=$_tool_of/cmd
      _tool_variable=$_tool_of/internal.Version
      ;;
    actionlint)
      _tool_module=actionlint
      _tool_of=github.com/rhysd/actionlint
      _tool_package=$_tool_of/cmd/actionlint
      _tool_variable=$_tool_of.version
      ;;
    kustomize)
      _tool_module=kustomize
      _tool_of=sigs.k8s.io/kustomize/kustomize/v5
      _tool_package=$_tool_of
      _tool_variable=sigs.k8s.io/kustomize/api/provenance.version
      ;;
    manifests)
      # A program of our own over the types of the operator, whose version it has.
      _tool_module=manifests
      _tool_of=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring
      _tool_package=.
      _tool_variable=main.version
      ;;
    *) die "tool $1 is unknown; scripts/lib/tools.sh knows prometheus, promtool, alertmanager, amtool, victoria-metrics, otel-collector, compose, actionlint, kustomize, manifests" ;;
  esac
  _tool_folder="$VLLMETER_ROOT/tools/go/$_tool_module"
  _tool_version="$(awk -v module="$_tool_of" '
    { sub(/^require /, "") } $1 == module && $2 ~ /^v/ { sub(/^v/, "", $2); print $2; exit }' "$_tool_folder/go.mod")"
  # Prometheus 3.16.0 is the Go module version v0.316.0.
  if [[ $_tool_module == prometheus && $_tool_version =~ ^0\.([0-9])([0-9][0-9])\.(.*)$ ]]; then
    _tool_version="${BASH_REMATCH[1]}.$((10#${BASH_REMATCH[2]})).${BASH_REMATCH[3]}"
  fi
  local hash
  hash="$(printf '%s %s\n' "$_tool_tags" "$(hash_of "$_tool_folder/go.mod" "$_tool_folder/go.sum" "$_tool_folder/main.go")" | sha256sum | cut -c1-12)"
  _tool_built="$(cache_folder)/tools/$1-$_tool_version-$hash/$1"
}

_tool_own() {
  local variable
  variable="VLLMETER_$(printf '%s' "$1" | tr 'a-z-' 'A-Z_')"
  printf '%s' "${!variable-}"
}

# _tool_go : 0 when a Go is here that can build the module, or can fetch the Go that can.
_tool_go() {
  local message
  if ! have go; then
    TOOL_REASON="Go is not installed (needed to build $1 $_tool_version; any Go from 1.21 on)"
    return 1
  fi
  if ! message="$(cd "$_tool_folder" && GOWORK=off go list -m 2>&1)"; then
    TOOL_REASON="this Go cannot build $1 $_tool_version: ${message//$'\n'/ }"
    return 1
  fi
}

# _tool_source : changes to the folder to build in. Alertmanager's module lacks the page that its
# sources embed, so it is built from a copy of the module (checked against go.sum like any) with an
# empty page put in.
_tool_source() {
  local origin copy
  cd "$_tool_folder" || return 1
  [[ $_tool_module == alertmanager ]] || return 0
  origin="$(GOWORK=off go list -m -f '{{.Dir}}' "$_tool_of")" && copy="${_tool_built%/*}/source" || return 1
  rm -rf "$copy"
  cp -r "$origin" "$copy" && chmod -R u+w "$copy" && mkdir -p "$copy"/ui/app/dist/{elm,mantine} || return 1
  printf '<p>This build has no page.</p>\n' | tee "$copy"/ui/app/dist/{elm,mantine}/index.html >/dev/null
  cd "$copy" || return 1
}

tool_known() {
  local own
  TOOL_REASON=""
  own="$(_tool_own "$1")"
  _tool_facts "$1"
  [[ -n $own || -x $_tool_built ]] || _tool_go "$1"
}

tool_ready() {
  local name=$1 own folder lock_fd started=$SECONDS
  local -a flags=()
  TOOL_PATH="" TOOL_REASON=""
  own="$(_tool_own "$name")"
  _tool_facts "$name"
  if [[ -n $own ]]; then
    if ! have "$own"; then
      TOOL_REASON="$own, asked for in the environment, cannot be run"
      return 1
    fi
    TOOL_PATH=$own
    return 0
  fi
  if [[ ! -x $_tool_built ]]; then
    _tool_go "$name" || return 1
    folder="${_tool_built%/*}"
    mkdir -p "$folder"
    exec {lock_fd}>"$folder/lock"
    if have flock && ! flock -n "$lock_fd"; then
      say "Waiting: another process builds $name $_tool_version"
      flock "$lock_fd"
    fi
    if [[ ! -x $_tool_built ]]; then
      say "Building $name $_tool_version with $(cd "$_tool_folder" && go env GOVERSION), $TOOL_CORES cores (once; 1-5 minutes) ..."
      [[ -n $_tool_tags ]] && flags+=(-tags "$_tool_tags")
      # Fetches the modules that this program needs, no others; a registry may fail for a moment.
      if ! (cd "$_tool_folder" && retry 3 env GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0 \
        go list -e -deps "${flags[@]}" "$_tool_package") >/dev/null; then
        TOOL_REASON="the Go modules of $name could not be fetched (see above)"
        return 1
      fi
      # Without cgo the program is static, so that it also runs inside a bare container.
      if ! (_tool_source && env GOWORK=off GOFLAGS=-mod=readonly CGO_ENABLED=0 \
        nice -n 5 go build -p "$TOOL_CORES" -trimpath "${flags[@]}" \
        -ldflags "-s -w -X $_tool_variable=$_tool_version" -o "$_tool_built.new" "$_tool_package") >&2; then
        TOOL_REASON="go build of $name failed (see above)"
        return 1
      fi
      mv -f "$_tool_built.new" "$_tool_built"
      rm -rf "$folder/source"
      say "... $name built in $((SECONDS - started)) s"
    fi
    exec {lock_fd}>&-
  fi
  TOOL_PATH=$_tool_built
}
