# shellcheck shell=bash
leg_title="A newcomer on a Debian 12 with nothing but Python: told what is missing, then scripts/demo --check works"
leg_limit=600

leg_check() {
  [[ $(id -u) == 0 ]] || leg_skip "containers are tested as root only"
}

leg_run() {
  podman_ready || leg_skip "$PODMAN_REASON"
  leg_at_end podman_end
  local source="$LEG_SCRATCH/vllmeter" said port
  mkdir "$source"
  git ls-files -z --cached --others --exclude-standard | xargs -0 -r ls -d 2>/dev/null | tar -c -T - | tar -x -C "$source"
  port="$(free_port)"

  # A user who may not install: scripts/demo ends at once and says what to run.
  said="$LEG_SCRATCH/said"
  podman_fresh -v "$source:/home/vllmeter:ro" "$PODMAN_DEBIAN" bash -euc '
    apt-get -q -y purge python3-venv "python3.*-venv" >/dev/null 2>&1
    useradd --create-home newcomer
    su newcomer -c "cd /home/vllmeter && VLLMETER_VENV=/home/newcomer/venv scripts/demo --check"' >"$said" 2>&1 \
    && die "scripts/demo worked without the venv module, which cannot be"
  cat "$said"
  grep -Eq 'sudo apt-get install --no-install-recommends python3(\.11)?-venv' "$said" || die "it did not say what to install"
  grep -q 'Traceback' "$said" && die "it ended with a traceback"

  # root on the same machine: everything that is missing is installed, and every answer is right.
  podman_fresh -v "$source:/root/vllmeter" -w /root/vllmeter "$PODMAN_DEBIAN" bash -euc "
    apt-get -q -y purge python3-venv 'python3.*-venv' >/dev/null 2>&1
    scripts/demo --check --listen 127.0.0.1:$port
    test -x .venv/bin/vllmeter
    command -v promtool"
}
