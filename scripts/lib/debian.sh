# shellcheck shell=bash
# Debian and Ubuntu packages: installed when absent and permitted, otherwise named. Never fatal.
#
# Source after say.sh.
#
# Some packages start a service when they are installed (prometheus on port 9090,
# prometheus-alertmanager on 9093). Nothing here uses those services: every script starts its
# own process on a free port. So the install step forbids the start (policy-rc.d) and, where
# systemd runs, disables the unit that the package has just enabled. A service that was
# already there is left as it is.

# Filled by debian_ready: the packages that are still missing, and one sentence that says why.
DEBIAN_MISSING=""
DEBIAN_REASON=""

_debian_updated=""

debian_installed() {
  local status
  status="$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null)" || return 1
  [[ $status == "install ok installed" ]]
}

# _debian_apt ARGS... : apt-get as root, without questions, patient with another apt.
_debian_apt() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 \
    -o Acquire::Retries=3 "$@" >&2
}

debian_update() {
  [[ -n $_debian_updated ]] && return 0
  retry 3 _debian_apt update && _debian_updated=yes
}

# debian_ready ITEM... : an item is PACKAGE, or COMMAND=PACKAGE where the command is enough,
# whoever installed it. Returns 0 when everything is there (perhaps now installed), else 1 with
# DEBIAN_MISSING and DEBIAN_REASON set; the caller decides what to do without.
debian_ready() {
  local item command package policy="" unit
  local -a wanted=()
  DEBIAN_MISSING="" DEBIAN_REASON=""
  for item in "$@"; do
    command="${item%%=*}" package="${item#*=}"
    if [[ $item == *=* ]] && have "$command"; then
      continue
    fi
    if [[ $item != *=* ]] && debian_installed "$package"; then
      continue
    fi
    wanted+=("$package")
  done
  ((${#wanted[@]} == 0)) && return 0
  DEBIAN_MISSING="${wanted[*]}"
  if ! have apt-get; then
    DEBIAN_REASON="not a Debian-like system; please install: ${wanted[*]}"
    return 1
  fi
  if ! can_be_root; then
    DEBIAN_REASON="needs root to install; run: sudo apt-get install --no-install-recommends ${wanted[*]}"
    return 1
  fi

  say "Installing Debian packages: ${wanted[*]}"
  if ! debian_update; then
    DEBIAN_REASON="apt-get update failed; missing: ${wanted[*]}"
    return 1
  fi
  if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  if ! retry 3 _debian_apt install --no-install-recommends "${wanted[@]}"; then
    # One package that this release lacks must not keep the others away.
    for package in "${wanted[@]}"; do
      debian_installed "$package" || _debian_apt install --no-install-recommends "$package" || true
    done
  fi
  if [[ -n $policy ]]; then
    as_root rm -f "$policy"
  fi
  hash -r

  local -a still=()
  for package in "${wanted[@]}"; do
    if ! debian_installed "$package"; then
      still+=("$package")
      continue
    fi
    case $package in
      prometheus | prometheus-alertmanager | victoria-metrics | prometheus-node-exporter)
        unit="$package.service"
        if [[ -d /run/systemd/system ]] && have systemctl; then
          as_root systemctl disable --now "$unit" >/dev/null 2>&1 || true
          say "$unit was installed for its program only and is disabled (systemctl enable --now $unit turns it on)."
        fi
        ;;
    esac
  done
  DEBIAN_MISSING="${still[*]}"
  if ((${#still[@]} > 0)); then
    DEBIAN_REASON="apt-get could not install: ${still[*]}"
    return 1
  fi
}
