# shellcheck shell=bash
leg_title="compose.yaml, default profile, with replays in the vLLM containers: whose memory it is, with and without pid: host"
leg_limit=420

leg_check() {
  [[ $(id -u) == 0 ]] || leg_skip "containers are tested as root only"
}

_engine_bytes=(vllm-chat=4000000000 vllm-embed=1700000000 vllm-reranker=900000000)

# The fake driver's view: the engine process of every container, by its PID on this host, and one other program.
_fake_card() {
  local pair server root child file="$FAKE_NVML_FOLDER/card"
  {
    printf 'namespace %s\ntotal 8585740288\nreserved 232000000\ndriver 25165824\n' "$(readlink /proc/self/ns/pid | tr -dc 0-9)"
    printf 'process %s 322122547\n' "$1"
    for pair in "${_engine_bytes[@]}"; do
      server=${pair%=*}
      root="$(podman inspect -f '{{.State.Pid}}' "vllmetertest-$server-1")"
      child="$(pgrep -P "$root" -f EngineCore)" || die "$server has no engine process"
      printf 'process %s %s\n' "$child" "${pair#*=}"
    done
  } >"$file.new"
  mv "$file.new" "$file"
}

_end_desktop() { kill "$_desktop" 2>/dev/null || true; }

_ask() { # SITUATION METHOD
  python3 tests/deploy/stack_checks.py attribution --exporter "http://127.0.0.1:$VLLMETER_PORT" --situation "$1" \
    ${2:+--method "$2"} "${_engine_bytes[@]}" || { stack_failed && die "attribution is wrong"; }
}

leg_run() {
  # shellcheck source=scripts/lib/stack.sh
  source scripts/lib/stack.sh
  leg_tool compose
  leg_debian gcc=gcc libc6-dev
  leg_containers
  stack_ready
  export COMPOSE_PROFILES=gpu FAKE_NVML_FOLDER="$LEG_SCRATCH/nvml"
  mkdir -m 755 "$FAKE_NVML_FOLDER"
  chmod 755 "$LEG_SCRATCH"
  gcc -shared -fPIC -O1 -Wall -Wextra -Werror -o "$FAKE_NVML_FOLDER/libnvidia-ml.so.1" tests/deploy/fake_nvml.c
  : >"$FAKE_NVML_FOLDER/card"
  STACK_FILES+=(-f tests/deploy/replays.compose.yaml)
  # No Prometheus here: the exporter and the servers, which start one after another.
  local -a services=(exporter vllm-chat vllm-embed vllm-reranker)
  stack_compose up -d --wait --wait-timeout 120 "${services[@]}" || { stack_failed && die "it does not come up"; }
  local first second third
  first="$(podman inspect -f '{{.State.StartedAt.UnixNano}}' vllmetertest-vllm-chat-1)"
  second="$(podman inspect -f '{{.State.StartedAt.UnixNano}}' vllmetertest-vllm-embed-1)"
  third="$(podman inspect -f '{{.State.StartedAt.UnixNano}}' vllmetertest-vllm-reranker-1)"
  [[ $first < $second && $second < $third ]] || die "they did not start one after another: $first $second $third"
  sleep 600 >/dev/null 2>&1 &
  _desktop=$!
  leg_at_end _end_desktop
  _fake_card "$_desktop"

  say "pid: host, no API of the container engine"
  _ask seen listening_port
  say "without root and without any right (what Docker makes of VLLMETER_USER=65532)"
  printf 'services: {exporter: {user: "65532", cap_add: !reset []}}\n' >"$LEG_SCRATCH/plain.yaml"
  stack_compose -f "$LEG_SCRATCH/plain.yaml" up -d --wait exporter >/dev/null 2>&1
  _ask unseen ""
  say "the same, matched by command lines, which everybody may read"
  printf 'servers:\n' >"$LEG_SCRATCH/commands.yaml"
  printf '  - {name: vllm-%s, url: "http://vllm-%s:8000", match: {command: "--model=.*%s"}}\n' \
    chat chat Qwen3 embed embed bge-m3 reranker reranker bge-reranker >>"$LEG_SCRATCH/commands.yaml"
  printf 'services: {exporter: {user: "65532", cap_add: !reset [], volumes: ["%s:/etc/vllmeter/vllmeter.yaml:ro"]}}\n' \
    "$LEG_SCRATCH/commands.yaml" >"$LEG_SCRATCH/plain.yaml"
  stack_compose -f "$LEG_SCRATCH/plain.yaml" up -d --wait exporter >/dev/null 2>&1
  _ask seen match_command
  say "no pid: host"
  printf 'services: {exporter: {pid: !reset null}}\n' >"$LEG_SCRATCH/own.yaml"
  stack_compose -f "$LEG_SCRATCH/own.yaml" up -d --wait exporter >/dev/null 2>&1
  _ask hidden ""
  say "pid: host and the engine's API"
  DOCKER_SOCKET="${DOCKER_HOST#unix://}" stack_compose -f compose.docker-api.yaml up -d --wait exporter >/dev/null 2>&1
  _ask seen match_container
  say "no pid: host, with the engine's API"
  DOCKER_SOCKET="${DOCKER_HOST#unix://}" stack_compose -f compose.docker-api.yaml -f "$LEG_SCRATCH/own.yaml" up -d --wait exporter >/dev/null 2>&1
  _ask hidden ""

  say "a variant beside containers that run already: joins their network"
  printf 'servers:\n' >"$LEG_SCRATCH/vllmeter.yaml"
  local server
  for server in vllm-chat vllm-embed vllm-reranker; do
    printf '  - {name: %s, url: "http://%s:8000"}\n' "$server" "$server" >>"$LEG_SCRATCH/vllmeter.yaml"
  done
  stack_compose rm -sf exporter >/dev/null 2>&1
  printf 'services: {exporter: {deploy: !reset {}, environment: {FAKE_NVML: /run/fake-nvml/card, LD_LIBRARY_PATH: /run/fake-nvml}, volumes: ["%s:/run/fake-nvml:ro"]}}\n' \
    "$FAKE_NVML_FOLDER" >"$LEG_SCRATCH/existing.yaml"
  VLLM_NETWORK=vllmetertest_default VLLMETER_CONFIG="$LEG_SCRATCH/vllmeter.yaml" \
    podman_compose -p vllmeterbeside --project-directory . -f compose.existing.yaml -f "$LEG_SCRATCH/existing.yaml" up -d --wait >/dev/null 2>&1 \
    || { stack_failed && die "compose.existing.yaml does not come up"; }
  _ask seen listening_port
}
