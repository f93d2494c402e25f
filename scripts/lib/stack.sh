# shellcheck shell=bash
# The image and compose.yaml in test legs. Source after the files of leg.sh.
#
#   stack_image          localhost/vllmeter:0.1.0, built from the Dockerfile on the pinned base image's name
#   stack_ready          image, stand-ins of Prometheus and Alertmanager under the pinned names, free ports,
#                        a project of our own; after it stack_compose works
#   stack_compose ARGS   Compose v2 with the files in STACK_FILES
#   stack_failed         what the containers say, for the log of a leg that fails

STACK_FILES=(-f compose.yaml)
STACK_CONTEXT=.

# The names that the files pin, read from them.
_stack_base() { sed -n 's/^ARG BASE=//p' exporter/Dockerfile; }
_stack_version() { sed -n "s/^$1=//p" .env.example; }

# The build's context is a copy of what git knows, as a clone would have it.
stack_image() {
  local log="$LEG_SCRATCH/build.log"
  STACK_CONTEXT="$LEG_SCRATCH/context"
  mkdir -p "$STACK_CONTEXT"
  git ls-files -z --cached --others --exclude-standard | xargs -0 -r ls -d 2>/dev/null | tar -c -T - | tar -x -C "$STACK_CONTEXT"
  podman_base "$(_stack_base)"
  if ! retry 2 podman_build localhost/vllmeter:0.1.0 --format docker -f exporter/Dockerfile "$STACK_CONTEXT" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "the image does not build"
  fi
}

stack_ready() {
  local name
  stack_image
  podman_standin prometheus "docker.io/prom/prometheus:$(_stack_version PROMETHEUS_VERSION)" || die "$PODMAN_REASON"
  podman_standin alertmanager "docker.io/prom/alertmanager:$(_stack_version ALERTMANAGER_VERSION)" || die "$PODMAN_REASON"
  for name in VLLMETER PROMETHEUS ALERTMANAGER GRAFANA CHAT EMBED RERANKER; do
    export "${name}_PORT=$(free_port)"
  done
  export COMPOSE_PROJECT_NAME=vllmetertest
}

stack_compose() { podman_compose "${STACK_FILES[@]}" "$@"; }

stack_failed() {
  local container
  podman ps -a >&2
  for container in $(podman ps -a --format '{{.Names}}'); do
    say "--- $container"
    podman logs --tail 15 "$container" >&2 || true
  done
}
