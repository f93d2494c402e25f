# shellcheck shell=bash
leg_title="compose.yaml, profile demo, from a clean state: Prometheus answers, an alert reaches a webhook, nothing is left"
leg_limit=420

leg_check() {
  [[ $(id -u) == 0 ]] || leg_skip "containers are tested as root only"
}

_stack_variants=("compose.yaml" "compose.yaml compose.docker-api.yaml" "compose.yaml compose.wsl2.yaml" "compose.existing.yaml")

# Both loaders accept every variant, with the example's settings and with none.
_stack_loaders() {
  local variant file profile empty="$LEG_SCRATCH/empty.env"
  local -a files
  : >"$empty"
  for variant in "${_stack_variants[@]}"; do
    files=()
    for file in $variant; do files+=(-f "$file"); done
    for file in .env.example "$empty"; do
      for profile in gpu demo; do
        podman_compose "${files[@]}" --env-file "$file" --profile "$profile" config -q || die "Compose v2 refuses $variant"
        docker-compose "${files[@]}" --env-file "$file" --profile "$profile" config -q || die "docker-compose 1.29 refuses $variant"
      done
    done
  done
  say "Compose v2 and docker-compose 1.29 accept ${#_stack_variants[@]} variants"
}

leg_run() {
  # shellcheck source=scripts/lib/stack.sh
  source scripts/lib/stack.sh
  leg_tool compose
  leg_debian docker-compose=docker-compose
  leg_containers
  _stack_loaders
  stack_ready
  export COMPOSE_PROFILES=demo ALERT_WEBHOOK_URL=http://webhook:9099 DEMO_SPEED=1
  STACK_FILES+=(-f tests/deploy/without-grafana.compose.yaml -f tests/deploy/webhook.compose.yaml)
  local before password
  before="$(podman volume ls -q; podman network ls --format '{{.Name}}')"
  stack_compose up -d --wait --wait-timeout 120 || { stack_failed && die "the demo does not come up"; }

  python3 tests/deploy/stack_checks.py answers --prometheus "http://127.0.0.1:$PROMETHEUS_PORT"

  # The engine of one server dies behind its API: health 503.
  podman exec vllmetertest-exporter-demo-1 /opt/vllmeter/bin/python -c '
import requests
requests.post("http://replay:8900/replay/fault", json={"server": "vllm-qwen3", "mode": "health503"}).raise_for_status()'
  podman logs -f vllmetertest-webhook-1 >"$LEG_SCRATCH/webhook.log" 2>&1 &
  local follow=$!
  python3 tests/deploy/stack_checks.py alert --log "$LEG_SCRATCH/webhook.log" /watchdog firing VllmeterWatchdog
  python3 tests/deploy/stack_checks.py alert --log "$LEG_SCRATCH/webhook.log" /vllmeter firing VllmeterEngineDead vllm-qwen3 \
    || { stack_failed && die "no alert"; }
  kill "$follow" 2>/dev/null || true

  password="$(podman run --rm --no-healthcheck -v vllmetertest_grafana-secret:/s:ro --entrypoint cat localhost/vllmeter:0.1.0 /s/grafana-password)"
  ((${#password} >= 20)) || die "no password was made up for Grafana"

  # A second start keeps the password; then nothing is left.
  stack_compose up -d --wait --wait-timeout 120 >"$LEG_SCRATCH/second.log" 2>&1 \
    || { tail -n 20 "$LEG_SCRATCH/second.log" >&2 && stack_failed && die "a second start fails"; }
  [[ $(podman run --rm --no-healthcheck -v vllmetertest_grafana-secret:/s:ro --entrypoint cat localhost/vllmeter:0.1.0 /s/grafana-password) == "$password" ]] \
    || die "the second start made up another password"
  stack_compose down -v --timeout 3 >/dev/null 2>&1
  [[ -z $(podman ps -aq) ]] || die "containers are left: $(podman ps -a)"
  [[ $(podman volume ls -q; podman network ls --format '{{.Name}}') == "$before" ]] || die "volumes or networks are left"
  say "down -v left nothing"
}
