#!/usr/bin/env bash
#
# Usage: [VARIABLE=value ...] launch/torchrun.sh [HYDRA OVERRIDES ...]
#
# Starts the ranks of one host with torchrun and waits for them. On several hosts, start it once on
# each, with the same overrides. Ends with the exit code of the run: 0, 1 (failure), 2 (invalid
# configuration), 75 (stopped by a signal), 130 (stopped by Ctrl-C).
#
#   RANKS           processes on this host; default: its GPUs, or 4 where there is none.
#                   clients=N is independent of it: a rank hosts one or more clients.
#   IFNAME          the only network interface that ranks and launchers listen on (GLOO_SOCKET_IFNAME,
#                   NCCL_SOCKET_IFNAME); default: the loopback interface on one host, on several the
#                   one that leads to the rendezvous address.
#   OMP_NUM_THREADS threads of each rank; default: cores / RANKS.
#   FEDSYS_PYTHON   the Python interpreter of the ranks; default: that of .venv in this repository, else python.
#   MAX_RESTARTS    how often crashed ranks are restarted, on all hosts; default: 0.
#                   With run.name they resume from the newest checkpoint.
#   NNODES          hosts; default: 1. MIN:MAX with MAX_RESTARTS (c10d only): a lost host's clients are
#                   hosted by the others until it is back. With more than one, give a rendezvous, either
#   MASTER_ADDR       the address of the host with NODE_RANK=0,
#   MASTER_PORT       a free port there; default: 29500,
#   NODE_RANK         the number of this host, 0 .. NNODES-1;
#                   or let torchrun number them (c10d rendezvous), with
#   RDZV_ENDPOINT     HOST:PORT, HOST being any one of the hosts,
#   RDZV_ID           a name that this job's hosts share; default: fedsys,
#   LOCAL_ADDR        the address of this host among them; default: that of IFNAME.
#                     A lost host may come back, if MAX_RESTARTS lets the others wait for it.
#                   Several hosts need a secret that they share, 16 characters or more, in
#   FEDSYS_SECRET_FILE  a file that only you can read, on every host (openssl rand -hex 32), or
#   FEDSYS_SECRET       this variable. Processes without it can neither read, write nor stop the run.
#                     What the ranks send is authenticated by addresses only and is not encrypted:
#                     use a network that you trust.
#
# SIGTERM, SIGUSR1 or SIGHUP make the run write a checkpoint and end with exit code 75, Ctrl-C with 130:
# the same command with the same run.name resumes it. A second Ctrl-C ends it immediately.
#
# Examples:
#   launch/torchrun.sh
#   RANKS=2 launch/torchrun.sh problem=quadratic_game clients=8 rounds=20
#   export FEDSYS_SECRET_FILE=~/fedsys.key                                      # on several hosts
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 launch/torchrun.sh run.name=two   # on 10.0.0.1
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 launch/torchrun.sh run.name=two   # on the other
#   NNODES=2 RDZV_ENDPOINT=10.0.0.1:29400 RDZV_ID=two launch/torchrun.sh        # on both

set -euo pipefail

fail() {
  echo "torchrun.sh: $*" >&2
  exit 2
}

usage() {
  sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

whole_number() { # name, value, least
  [[ "$2" =~ ^[0-9]+$ ]] && (($2 >= $3)) || fail "$1 must be a whole number of at least $3, got '$2'"
}

gpus() {
  if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[^[:space:]]' || true
  elif command -v nvidia-smi >/dev/null; then
    nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true
  else
    echo 0
  fi
}

address_of() { # interface; nothing if none is given, or there is no tool to ask
  [[ -n "$1" ]] && command -v ip >/dev/null || return 0
  local found
  found="$(ip -oneline -family inet address show dev "$1" 2>/dev/null | sed -n 's/.* inet \([0-9.]*\).*/\1/p;q')"
  [[ -n "$found" ]] || fail "IFNAME must be an interface of this host with an address, got '$1'"
  echo "$found"
}

if [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]; then
  usage
  exit 0
fi

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${FEDSYS_PYTHON:-$repository/.venv/bin/python}"
[[ -x "$python" ]] || python="$(command -v python || command -v python3)" || fail "there is no python"
"$python" -c 'import sys; from importlib.util import find_spec as f; sys.exit(not (f("fedsys") and f("torch")))' ||
  fail "$python has no fedsys; activate the environment that has it, or make one with 'make run'"

ranks="${RANKS:-$(gpus)}"
[[ -n "${RANKS:-}" || "$ranks" != 0 ]] || ranks=4
nodes="${NNODES:-1}"
whole_number RANKS "$ranks" 1
whole_number NNODES "${nodes%%:*}" 1
whole_number NNODES "${nodes#*:}" "${nodes%%:*}"
whole_number MAX_RESTARTS "${MAX_RESTARTS:=0}" 0

options=(--nnodes="$nodes" --nproc-per-node="$ranks")
((MAX_RESTARTS == 0)) || options+=(--max-restarts="$MAX_RESTARTS")
if [[ "$nodes" == 1 ]]; then
  options+=(--standalone)
elif [[ -n "${RDZV_ENDPOINT:-}" ]]; then
  options+=(--rdzv-backend=c10d --rdzv-endpoint="$RDZV_ENDPOINT" --rdzv-id="${RDZV_ID:-fedsys}")
elif [[ "$nodes" == *:* ]]; then
  fail "NNODES=$nodes needs RDZV_ENDPOINT: hosts that come and go are numbered anew"
elif [[ -n "${MASTER_ADDR:-}" && -n "${NODE_RANK:-}" ]]; then
  whole_number NODE_RANK "$NODE_RANK" 0
  ((NODE_RANK < nodes)) || fail "NODE_RANK must be less than NNODES=$nodes, got $NODE_RANK"
  whole_number MASTER_PORT "${MASTER_PORT:=29500}" 1
  options+=(--node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT")
else
  fail "NNODES=$nodes needs MASTER_ADDR and NODE_RANK, or RDZV_ENDPOINT; see launch/torchrun.sh --help"
fi
if [[ "$nodes" != 1 ]]; then
  address="${LOCAL_ADDR:-$(address_of "${IFNAME:-${GLOO_SOCKET_IFNAME:-}}")}"
  [[ -z "$address" ]] || options+=(--local-addr="$address")
fi

if [[ -n "${IFNAME:-}" ]]; then
  export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$IFNAME}"
  export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$IFNAME}"
fi

exec "$python" -m fedsys.launch "${options[@]}" -- "$@"
