#!/usr/bin/env bash
#
# Install the programs of the cluster tests: SLURM, podman and network tools.
# On failure, print the reason in one line and exit with 1.

set -euo pipefail

# Programs and the Debian packages that contain them. aardvark-dns resolves the names of containers.
# The network of containers needs iptables, which podman only recommends.
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
((EUID == 0)) || fail "these tests need root to create hosts, nodes and containers"
if [[ -n "$(missing)" ]]; then
  [[ -e /etc/debian_version ]] && command -v apt-get >/dev/null ||
    fail "missing programs: $(missing); this is not Debian, so install them yourself and run this again"
  log="$(mktemp)"
  trap 'rm -f "$log"' EXIT
  echo "test-cluster: installing ${packages[*]}"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    "${packages[@]}"; } >"$log" 2>&1 || fail "apt-get could not install ${packages[*]}: $(tail -n 1 "$log")"
fi
unshare --net --uts --mount true 2>/dev/null || fail "root cannot create network namespaces on this machine (unshare failed)"
