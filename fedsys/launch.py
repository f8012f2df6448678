"""torchrun for fedsys: the same options, but a mistake of the user gives one line and exit code 2,
and a signal to stop reaches the ranks, which keep their state and end with exit code 75.

    python -m fedsys.launch --standalone --nproc-per-node=4 algorithm=local_sgda clients=8

Everything before the first override is torchrun's; it also takes `--` as the border. Plain
`torchrun -m fedsys ...` works as well and adds a report of its own when a rank fails.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys


def main(arguments: list[str] | None = None) -> None:
    """Start the ranks of this host and wait for them."""
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher import api as launcher

    from fedsys.agent import Agent
    from fedsys.errors import tell
    from fedsys.runtime.run_directory import moment

    # Runs without a name are named by it; ranks that are started again belong to the same run.
    os.environ.setdefault("FEDSYS_MOMENT", moment())
    launcher.LocalElasticAgent = Agent  # type: ignore[misc]  # torchrun has no option for it
    own, job = _split(sys.argv[1:] if arguments is None else arguments)
    args = torchrun.parse_args([*own, "-m", "fedsys", *job])
    _divide_cores(args.nproc_per_node)
    # A rank that fails says why itself; the launcher's own words would only hide that line.
    for part in ("multiprocessing.api", "agent.server.api", "rendezvous.dynamic_rendezvous"):
        logging.getLogger(f"torch.distributed.elastic.{part}").setLevel(logging.CRITICAL)
    try:
        torchrun.run(args)
    except ChildFailedError as failure:
        rank, first = failure.get_first_failure()
        if first.exitcode > 0:
            sys.exit(first.exitcode)
        name = signal.Signals(-first.exitcode).name
        tell(f"rank {rank} ({socket.gethostname()}) was ended by {name}")
        sys.exit(1)
    except SignalException as ended:
        sys.exit(128 + ended.sigval)
    except (RendezvousError, DistError) as error:
        words = (str(error) or type(error).__name__).splitlines()[0]
        tell(f"the hosts did not meet ({words}); start each, with the same address and port")
        sys.exit(1)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """torchrun's options, and what belongs to the job."""
    if "--" in arguments:
        border = arguments.index("--")
        return arguments[:border], arguments[border + 1 :]
    own: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("--") and rest[0].split("=")[0] not in _JOB_OPTIONS:
        own.append(rest.pop(0))
        if "=" not in own[-1] and own[-1] not in _FLAGS and rest:
            own.append(rest.pop(0))
    return own, rest


_FLAGS = {"--standalone", "--no-python", "--run-path"}
_JOB_OPTIONS = {"--multirun", "--help", "--cfg", "--config-dir", "--info", "--resolve"}


def _divide_cores(ranks: str) -> None:
    """Threads of each rank: cores / ranks; torchrun's own choice would be 1, with a warning."""
    if "OMP_NUM_THREADS" not in os.environ and str(ranks).isdigit():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ["OMP_NUM_THREADS"] = str(max(1, (cores or 1) // int(ranks)))


if __name__ == "__main__":
    main()
