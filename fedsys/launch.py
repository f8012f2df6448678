"""torchrun for fedsys: start the ranks of this host.

The options are those of torchrun. An invalid configuration gives one line and exit code 2. A signal
that requests a stop reaches the ranks, which write a checkpoint and end with exit code 75 (Ctrl-C:
130). Ranks end with this process, however it ends.

    python -m fedsys.launch --standalone --nproc-per-node=4 algorithm=local_sgda clients=8

All arguments before the first override, or before `--`, belong to torchrun. Plain
`torchrun -m fedsys ...` works as well and adds its own report when a rank fails.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NoReturn

from fedsys.system.process import tune_process


def main(arguments: list[str] | None = None) -> None:
    """Start the ranks of this host and wait for them."""
    # Before there are ranks to forward it to, Ctrl-C ends the launcher without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tune_process()  # before torch is imported; the ranks inherit the environment
    from fedsys.core.errors import FedsysError, print_error
    from fedsys.distributed import torch_internals
    from fedsys.distributed.agent import RankSupervisor
    from fedsys.distributed.launcher_hooks import (
        LauncherStoppedError,
        RankFailedError,
        RendezvousFailedError,
    )
    from fedsys.distributed.rendezvous import secure
    from fedsys.training.run_directory import new_run_timestamp

    # It names runs without a name; restarted ranks belong to the same run.
    os.environ.setdefault("FEDSYS_RUN_TIMESTAMP", new_run_timestamp())
    own, job = _split(sys.argv[1:] if arguments is None else arguments)
    command = [*own, "-m", "fedsys", *job]
    if not torch_internals.is_tested():
        _run_plain_torchrun(command)
    args = torch_internals.parse_arguments(command)
    _divide_cores(args.nproc_per_node)
    try:
        secure(args)
        torch_internals.run(args, RankSupervisor())
    except RankFailedError as failure:
        if failure.exit_code > 0:
            sys.exit(failure.exit_code)
        name = signal.Signals(-failure.exit_code).name
        print_error(f"rank {failure.rank} ({socket.gethostname()}) was ended by {name}")
        sys.exit(1)
    except FedsysError as error:
        print_error(error.message)
        sys.exit(error.exit_code)
    except LauncherStoppedError as stopped:
        if stopped.number == signal.SIGINT:
            print_error("SIGINT (Ctrl-C) twice: ended at once; the newest checkpoint is kept")
        sys.exit(128 + stopped.number)
    except RendezvousFailedError as error:
        print_error(f"the hosts did not meet ({error}); start each, with the same address and port")
        sys.exit(1)


def _run_plain_torchrun(command: list[str]) -> NoReturn:
    """Replace this process by torchrun, which has the same options, and warn of what is lost."""
    from fedsys.core.errors import print_error
    from fedsys.distributed.parent import LAUNCHER
    from fedsys.distributed.torch_internals import untested_message

    print_error(
        untested_message(
            "plain torchrun starts the ranks. Its ports are open on all interfaces and ask for no "
            "secret; after a signal or a failure the report and the exit code are torchrun's; "
            "MAX_RESTARTS applies to invalid configurations, too"
        )
    )
    os.environ[LAUNCHER] = str(os.getpid())
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *command])


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return torchrun's options and the arguments of the job."""
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
    """Set the threads of each rank to cores / ranks; torchrun would choose 1, with a warning."""
    if "OMP_NUM_THREADS" not in os.environ and str(ranks).isdigit():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ["OMP_NUM_THREADS"] = str(max(1, (cores or 1) // int(ranks)))


if __name__ == "__main__":
    main()
