#!/usr/bin/env bash
#
# Installs what the clusters of these tests are made of: SLURM, podman, and tools for networks.
# Where it cannot, it says why in one line and ends with 1.

set -euo pipefail

# Programs and the packages of Debian that hold them; aardvark-dns lets containers find each other.
# Containers have a network by iptables, which podman only recommends.
programs=(slurmctld slurmd sbatch munged podman runc iptables debootstrap ip nsenter unshare)
packages=(slurm-wlm munge podman runc netavark aardvark-dns iptables debootstrap iproute2 util-linux)

fail() {
  echo "test-cluster: $*" >&2
  exit 1
}

missing() {
  local program absent=()
  for program in "${programs[@]}"; do
    command -v "$program" >/dev/null || absent+=("$program")
  done
  echo "${absent[*]}"
}

export PATH="$PATH:/usr/sbin:/sbin"
((EUID == 0)) || fail "only root can make the hosts, nodes and containers that these tests need"
if [[ -n "$(missing)" ]]; then
  [[ -e /etc/debian_version ]] && command -v apt-get >/dev/null ||
    fail "there is no $(missing), and this is not Debian; install them and start again"
  log="$(mktemp)"
  trap 'rm -f "$log"' EXIT
  echo "test-cluster: installing ${packages[*]}"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    "${packages[@]}"; } >"$log" 2>&1 || fail "apt-get could not install ${packages[*]}: $(tail -n 1 "$log")"
fi
unshare --net --uts --mount true 2>/dev/null || fail "this machine does not let root make hosts (unshare failed)"
