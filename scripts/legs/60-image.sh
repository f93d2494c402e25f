# shellcheck shell=bash
leg_title="exporter/Dockerfile builds twice to the same bytes; the container is small, not root, read-only, healthy"
leg_limit=420

leg_check() {
  [[ $(id -u) == 0 ]] || leg_skip "containers are tested as root only"
}

_image_bytes() {
  podman run --rm --network=none --entrypoint sh "$1" -c \
    'cd /opt/vllmeter && find . -type f -print0 | sort -z | xargs -0 sha256sum' >"$2"
}

leg_run() {
  # shellcheck source=scripts/lib/stack.sh
  source scripts/lib/stack.sh
  leg_containers
  stack_image
  local size base port container word
  size="$(podman image inspect -f '{{.Size}}' localhost/vllmeter:0.1.0)"
  base="$(podman image inspect -f '{{.Size}}' "$(_stack_base)")"
  say "the image is $((size / 1000000)) MB, $(((size - base) / 1000000)) MB of them on top of the base image"
  ((size - base < 140000000)) || die "that is more than 140 MB on top of the base image"

  say "Building again without any cache ..."
  retry 2 podman_build localhost/vllmeter:again --no-cache --format docker -f exporter/Dockerfile "$STACK_CONTEXT" >"$LEG_SCRATCH/again.log" 2>&1 \
    || { tail -n 20 "$LEG_SCRATCH/again.log" >&2 && die "the second build failed"; }
  _image_bytes localhost/vllmeter:0.1.0 "$LEG_SCRATCH/one"
  _image_bytes localhost/vllmeter:again "$LEG_SCRATCH/two"
  podman rmi -f localhost/vllmeter:again >/dev/null
  diff "$LEG_SCRATCH/one" "$LEG_SCRATCH/two" >&2 || die "the second build has other bytes"
  say "both builds have the same $(wc -l <"$LEG_SCRATCH/one") files"

  port="$(free_port)"
  container="$(podman run -d --read-only --cap-drop=all --security-opt=no-new-privileges -p "127.0.0.1:$port:9877" \
    localhost/vllmeter:0.1.0)"
  for ((word = 0; word < 60; word++)); do
    [[ $(podman inspect -f '{{.State.Health.Status}}' "$container") == healthy ]] && break
    sleep 1
  done
  [[ $(podman inspect -f '{{.State.Health.Status}}' "$container") == healthy ]] || die "the container is not healthy"
  curl -fsS "http://127.0.0.1:$port/metrics" | grep -q '^vllmeter_build_info' || die "no metrics on the published port"
  [[ $(podman exec "$container" id -u) == 65532 ]] || die "it runs as uid $(podman exec "$container" id -u)"
  podman exec "$container" sh -c 'command -v pip' && die "there is a pip in the image"
  podman exec "$container" vllmeter --version
  podman exec "$container" test -r /usr/share/vllmeter/prometheus/prometheus.yml || die "the assets are not in the image"
  podman stop -t 5 "$container" >/dev/null
  [[ $(podman inspect -f '{{.State.ExitCode}}' "$container") == 0 ]] || die "SIGTERM did not end it properly"
  say "healthy, not root, ends on SIGTERM"
}
