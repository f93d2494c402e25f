# shellcheck shell=bash
# Real containers for test legs, by Podman: no Docker engine, no image registry, nothing of the
# user's own containers touched (own storage, own networks, own socket, own configuration).
#
# Source after say.sh, debian.sh and tools.sh. As root only.
#
#   podman_ready                       sets all up; returns 1 with PODMAN_REASON where it cannot
#   podman_base NAME...                Debian with Python under the names that a Dockerfile starts FROM
#   podman_standin KIND NAME           image NAME of prometheus | alertmanager | victoria-metrics,
#                                      made from the Go-built programs, shaped like the official one
#   podman_build NAME [ARGS...] FOLDER podman build, with this machine's certificates and pip settings
#   podman_fresh ARGS... IMAGE COMMAND podman run, with the same; for what a newcomer's machine does
#   podman_api                         Docker's API on a socket, sets DOCKER_HOST; needs podman_end
#   podman_compose ARGS...             Compose v2 against it
#   podman_end                         stops and removes all containers, networks, volumes and the API
#
# Notes on Podman 4.3, which Debian 12 has, are in docs/testing.md.

PODMAN_REASON=""
_podman_pids=()
_podman_lock="" # file descriptor

_podman_packages=(podman=podman runc=runc iptables=iptables debootstrap=debootstrap busybox=busybox
  netavark aardvark-dns catatonit)

# podman_ready : configuration in files of our own, which the environment points at.
podman_ready() {
  local folder run
  PODMAN_REASON=""
  if [[ $(id -u) != 0 ]]; then
    PODMAN_REASON="containers are tested as root only (the process view and the cgroups differ otherwise)"
    return 1
  fi
  if ! debian_ready "${_podman_packages[@]}"; then
    PODMAN_REASON="$DEBIAN_REASON"
    return 1
  fi
  folder="$(cache_folder)/containers"
  run=/run/vllmeter-containers
  mkdir -p "$folder" "$run"
  # One user of this storage at a time: podman_end removes all containers in it.
  exec {_podman_lock}>"$folder/lock"
  if have flock && ! flock -n "$_podman_lock"; then
    say "Waiting: another test run uses the containers"
    flock "$_podman_lock"
  fi
  # runc and cgroupfs: crun refuses hybrid cgroups, and there may be no systemd to manage cgroups.
  # Limits: Podman's own defaults are larger than an enclosing container may grant.
  cat >"$folder/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "$run/libpod"
[network]
network_backend = "netavark"
network_config_dir = "$folder/networks"
default_subnet = "10.131.0.0/16"
default_subnet_pools = [{"base" = "10.132.0.0/16", "size" = 24}]
CONF
  cat >"$folder/storage.conf" <<CONF
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "$run/storage"
CONF
  export CONTAINERS_CONF="$folder/containers.conf" CONTAINERS_STORAGE_CONF="$folder/storage.conf"
  local message
  if ! message="$(podman info 2>&1)"; then
    PODMAN_REASON="podman does not work here: ${message##*$'\n'}"
    return 1
  fi
  _podman_base_image || return 1
  if ! message="$(podman run --rm --network=none "$PODMAN_DEBIAN" true 2>&1)"; then
    PODMAN_REASON="podman cannot start a container here: ${message##*$'\n'}"
    return 1
  fi
}

PODMAN_DEBIAN=localhost/vllmeter/debian-python:bookworm

# A Debian with Python, made from packages, once. It stands for docker.io/library/python:3.x-slim
# in builds: `python` and `python3` there, no compiler, no wget, no curl.
_podman_base_image() {
  local root started=$SECONDS
  podman image exists "$PODMAN_DEBIAN" && return 0
  say "Making a Debian base image from packages (once; about a minute) ..."
  root="$(mktemp -d)/root"
  if ! _podman_debootstrap "$root" >"$root.log" 2>&1; then
    tail -n 5 "$root.log" >&2
    PODMAN_REASON="debootstrap could not make a base image (see above)"
    rm -rf "${root%/root}"
    return 1
  fi
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/*
  ln -s /usr/bin/python3 "$root/usr/local/bin/python"
  ln -s /usr/bin/python3 "$root/usr/local/bin/python3"
  tar -C "$root" -c . | podman import -q \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'CMD ["python3"]' \
    - "$PODMAN_DEBIAN" >/dev/null
  rm -rf "${root%/root}"
  say "... done in $((SECONDS - started)) s"
}

_podman_debootstrap() {
  local -a trust=()
  # Elsewhere than on Debian the keys may be missing.
  [[ -f /usr/share/keyrings/debian-archive-keyring.gpg ]] || trust=(--no-check-gpg)
  retry 3 debootstrap "${trust[@]}" --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$1"
}

podman_base() {
  local name
  for name in "$@"; do
    podman tag "$PODMAN_DEBIAN" "$name"
  done
}

# _podman_copy PROGRAM ROOT [AS] : the program and the libraries that it is linked with.
_podman_copy() {
  local program root=$2 as=${3-} library
  program="$(readlink -f "$(command -v "$1")")"
  as="${as:-/bin/$(basename "$1")}"
  mkdir -p "$root$(dirname "$as")"
  cp "$program" "$root$as"
  { ldd "$program" 2>/dev/null || true; } | sed -n 's|^[^/]*\(/[^ ]*\) .*|\1|p' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L -n "$library" "$root$library"
  done
}

# podman_standin KIND NAME : users, paths, entry point and default arguments are those of the official images.
podman_standin() {
  local kind=$1 name=$2 root applet program second="" hash data="" user=nobody
  local -a changes=()
  case $kind in
    prometheus)
      tool_ready promtool || { PODMAN_REASON=$TOOL_REASON && return 1; }
      second=$TOOL_PATH
      tool_ready prometheus || { PODMAN_REASON=$TOOL_REASON && return 1; }
      program=$TOOL_PATH data=/prometheus
      changes=('ENTRYPOINT ["/bin/prometheus"]' 'EXPOSE 9090'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml","--storage.tsdb.path=/prometheus"]')
      ;;
    alertmanager)
      tool_ready amtool || { PODMAN_REASON=$TOOL_REASON && return 1; }
      second=$TOOL_PATH
      tool_ready alertmanager || { PODMAN_REASON=$TOOL_REASON && return 1; }
      program=$TOOL_PATH data=/alertmanager
      changes=('ENTRYPOINT ["/bin/alertmanager"]' 'EXPOSE 9093'
        'CMD ["--config.file=/etc/alertmanager/alertmanager.yml","--storage.path=/alertmanager"]')
      ;;
    victoria-metrics)
      tool_ready victoria-metrics || { PODMAN_REASON=$TOOL_REASON && return 1; }
      program=$TOOL_PATH user=root
      changes=('ENTRYPOINT ["/victoria-metrics-prod"]' 'EXPOSE 8428')
      ;;
    *) die "podman_standin: no recipe for $kind" ;;
  esac
  hash="$(sha256sum "$program" | cut -c1-12)"
  if ! podman image exists "localhost/vllmeter/$kind:$hash"; then
    root="$(mktemp -d)"
    chmod 755 "$root"
    mkdir -p "$root"/{bin,etc,tmp,proc,sys,dev,var}
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnobody:x:65534:\n' >"$root/etc/group"
    # The official images are built on busybox: a shell and wget, no more.
    _podman_copy busybox "$root"
    for applet in $(busybox --list); do
      [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
    done
    case $kind in
      victoria-metrics) _podman_copy "$program" "$root" /victoria-metrics-prod ;;
      *) _podman_copy "$program" "$root" "/bin/$kind" ;;
    esac
    if [[ -n $second ]]; then
      _podman_copy "$second" "$root" "/bin/${second##*/}"
    fi
    if [[ -n $data ]]; then
      mkdir -p "$root$data" "$root/etc/$kind"
      chown 65534:65534 "$root$data" "$root/etc/$kind"
      changes+=("WORKDIR $data" "VOLUME $data")
    fi
    changes+=("USER $user" 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin')
    local -a flags=()
    local change
    for change in "${changes[@]}"; do
      flags+=(--change "$change")
    done
    tar -C "$root" -c . | podman import -q "${flags[@]}" - "localhost/vllmeter/$kind:$hash" >/dev/null
    rm -rf "$root"
  fi
  podman tag "localhost/vllmeter/$kind:$hash" "$name"
}

# _podman_pip FILE : how pip reaches its index on this machine, as a configuration file.
_podman_pip() {
  {
    printf '[global]\n'
    python3 -m pip config list 2>/dev/null | sed -n "s/^\(:env:\|global\|user\|site\)\.\(cert\|timeout\|default-timeout\|index-url\|extra-index-url\|trusted-host\|proxy\)='\(.*\)'\$/\2 = \3/p" |
      sed 's/^default-timeout/timeout/' | sort -u -t= -k1,1
  } >"$1"
}

# podman_build NAME [ARGS...] FOLDER : certificates and pip's settings come through mounts, so that
# the image keeps nothing of this machine.
podman_build() {
  local name=$1 settings result=0
  shift
  settings="$(mktemp)"
  _podman_pip "$settings"
  podman build --network=host -v /etc/ssl/certs:/etc/ssl/certs:ro -v "$settings:/etc/pip.conf:ro" -t "$name" "$@" || result=$?
  rm -f "$settings"
  return "$result"
}

# podman_fresh ARGS... COMMAND... : a machine with nothing but Debian and Python, in the network of this one.
podman_fresh() {
  local settings result=0
  settings="$(mktemp)"
  _podman_pip "$settings"
  podman run --rm --network=host -v /etc/ssl/certs:/etc/ssl/certs:ro -v "$settings:/etc/pip.conf:ro" "$@" || result=$?
  rm -f "$settings"
  return "$result"
}

# podman_api : the service ends with podman_end; the socket's folder is private.
podman_api() {
  local folder socket try
  folder="$(mktemp -d)"
  socket="$folder/podman.sock"
  podman system service --time=0 "unix://$socket" >"$folder/service.log" 2>&1 &
  _podman_pids+=("$!")
  for ((try = 0; try < 100; try++)); do
    [[ -S $socket ]] && break
    sleep 0.1
  done
  [[ -S $socket ]] || { PODMAN_REASON="podman's API did not start: $(tail -n 1 "$folder/service.log")" && return 1; }
  export DOCKER_HOST="unix://$socket"
  if [[ ! -d /run/systemd/system ]]; then
    # Podman leaves health checks to systemd's timers. Without systemd nobody would run them, and
    # `depends_on: condition: service_healthy` would wait for ever.
    _podman_health_checks &
    _podman_pids+=("$!")
  fi
}

_podman_health_checks() {
  local container
  while sleep 1; do
    for container in $(podman ps -q 2>/dev/null); do
      podman healthcheck run "$container" >/dev/null 2>&1 || true
    done
  done
}

podman_compose() {
  tool_ready compose || { PODMAN_REASON=$TOOL_REASON && return 1; }
  "$TOOL_PATH" "$@"
}

# podman_end : nothing of a leg may be left, whatever happened in it.
podman_end() {
  local pid network
  podman rm --all --force --time 2 >/dev/null 2>&1 || true
  podman volume prune --force >/dev/null 2>&1 || true
  for network in $(podman network ls --format '{{.Name}}' 2>/dev/null); do
    [[ $network == podman ]] || podman network rm --force "$network" >/dev/null 2>&1 || true
  done
  for pid in ${_podman_pids[@]+"${_podman_pids[@]}"}; do
    kill "$pid" 2>/dev/null || true
  done
  _podman_pids=()
  if [[ -n ${DOCKER_HOST-} ]]; then
    rm -rf "$(dirname "${DOCKER_HOST#unix://}")"
    unset DOCKER_HOST
  fi
  if [[ -n $_podman_lock ]]; then
    exec {_podman_lock}>&-
    _podman_lock=""
  fi
}
