# shellcheck shell=bash
leg_title="Attribution among real containers: published ports, host network, names, with and without pid: host and Docker's API"
leg_limit=400

leg_check() {
  [[ $(id -u) == 0 ]] || leg_skip "containers are tested as root only"
}

leg_run() {
  leg_venv
  podman_ready || leg_skip "$PODMAN_REASON"
  leg_at_end podman_end
  podman_api || leg_skip "$PODMAN_REASON"
  local chat_port rerank_port embed_port address here
  here="$(pwd)"
  chat_port="$(free_port)" rerank_port="$(free_port)" embed_port="$(free_port)"
  local -a common=(-d -v "$here/tests/fakes/bin:/app:ro")
  podman run "${common[@]}" --name vllmeter-chat --label com.docker.compose.service=chat -p "127.0.0.1:$chat_port:8000" \
    "$PODMAN_DEBIAN" python3 /app/vllm serve /models/chat --api-key s3cret >/dev/null
  podman run "${common[@]}" --name svc-rerank -p "127.0.0.1:$rerank_port:8000" \
    "$PODMAN_DEBIAN" python3 /app/vllm serve /models/rerank >/dev/null
  # A shell as first process, in the host's network: the server is its child.
  podman run "${common[@]}" --name vllmeter-embed --network host \
    "$PODMAN_DEBIAN" sh -c "python3 /app/vllm serve /models/embed --port $embed_port; true" >/dev/null
  sleep 2
  python tests/host/in_containers.py host "$chat_port" "$rerank_port" "$embed_port" "${DOCKER_HOST#unix://}"

  local -a inside=(--rm -v "$here:/vllmeter:ro" -w /vllmeter)
  address="$(podman inspect vllmeter-chat --format '{{.NetworkSettings.IPAddress}}')"
  podman run "${inside[@]}" "$PODMAN_DEBIAN" python3 -B tests/host/in_containers.py own-namespace /proc
  podman run "${inside[@]}" -v /proc:/host/proc:ro "$PODMAN_DEBIAN" python3 -B tests/host/in_containers.py own-namespace /host/proc
  podman run "${inside[@]}" --pid=host "$PODMAN_DEBIAN" python3 -B tests/host/in_containers.py pid-host "$address"
}
