"""The jobs that Hydra runs: one, or those of a sweep, in this process or in another one."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsys.cli.exits import leave, leave_after_lost_rank, report_unforeseen
from fedsys.cli.hydra_errors import as_fedsys_error
from fedsys.core.errors import (
    FedsysError,
    InputError,
    InterruptedRunError,
    LostRankError,
    UnforeseenError,
    debugs,
    print_error,
    unforeseen,
)
from fedsys.distributed import network
from fedsys.distributed.stop_signal import StopSignal
from fedsys.distributed.world import World
from fedsys.system.process import tune_process
from fedsys.training import config
from fedsys.training.checks import forget_refused_job, forget_refused_sweep, sweep_folder
from fedsys.training.run_directory import run_timestamp

Job = Callable[[DictConfig], float | None]


def register_resolvers(world: World) -> None:
    """Register the types and functions that the files in conf/ refer to."""
    # Hydra raises its errors instead of printing them, which it would do on every rank.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    config.register()
    OmegaConf.register_new_resolver(
        "fedsys.run_timestamp",
        lambda: world.from_first_rank("run timestamp", run_timestamp),
        use_cache=True,
        replace=True,
    )


class LocalJobs:
    """Runs jobs in this process and collects their exit codes.

    A failure is reported here and not raised: Hydra would print it on every rank and end the sweep.

    Args:
        world: the ranks that run the jobs.
        stop_signal: stops the job, and with it the sweep that it is part of.
    """

    def __init__(self, world: World, stop_signal: StopSignal) -> None:
        self._world, self._stop_signal = world, stop_signal
        self._sweeps: list[Path | None] = []
        """The folder of the sweep, or None, for each job that was started."""
        self._failures: list[int] = []
        """The exit code of each job that failed."""

    def __call__(self, settings: DictConfig) -> float | None:
        """Run one job; return its objective, or None to a sweeper if it failed."""
        from fedsys.training.job import run_job

        self._sweeps.append(sweep_folder())
        try:
            return run_job(settings, self._world, self._stop_signal)
        except LostRankError as error:
            leave_after_lost_rank(self._world, error)  # no other job can run without that rank
        except InterruptedRunError as stop:
            self._world.report_failure(stop, print_error)
            leave(self._world, stop.exit_code)
        except (FedsysError, HydraException, OmegaConfBaseException) as error:
            forget_refused_job()
            self._failures.append(self._report(as_fedsys_error(error)))
        except Exception as error:
            self._failures.append(report_unforeseen(error, self._world))
        return None

    def finish(self) -> int:
        """Remove a sweep whose jobs were all refused; return the exit code of the first failure."""
        all_refused = self._failures == [InputError.exit_code] * len(self._sweeps)
        if self._sweeps and self._world.rank == 0 and all_refused:
            forget_refused_sweep(self._sweeps[0])
        return self._failures[0] if self._failures else 0

    def _report(self, error: FedsysError) -> int:
        if isinstance(error, UnforeseenError):
            return report_unforeseen(error, self._world)
        if debugs() and error.__cause__ is not None:  # raised by a user's function
            traceback.print_exception(error)
        self._world.report_failure(error, print_error)
        return error.exit_code


class PicklableJob:
    """A job that runs here, or that a launcher of Hydra (submitit) pickles and runs elsewhere.

    Nothing of this process is pickled: the other process builds the job again, for its own ranks.

    Args:
        job: runs the job in this process.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, settings: DictConfig) -> float | None:
        """Run the job in this process."""
        return self._job(settings)

    def __reduce__(self) -> tuple[Callable[[], Job], tuple[()]]:
        # sbatch passes the environment on to the job, whose nodes need a secret of their own.
        if not os.environ.get(network.SECRET_FILE):
            os.environ.setdefault(network.SECRET, secrets.token_hex(32))
        return job_elsewhere, ()


def job_elsewhere() -> Job:
    """Return the job for a process that a launcher of Hydra started; it handles the signals."""
    tune_process()
    world = World.from_environment()
    register_resolvers(world)

    def job(settings: DictConfig) -> float | None:
        from fedsys.training.job import run_job

        try:
            return run_job(settings, world, StopSignal(world))
        except Exception as error:
            # Reported in the log of this job, and raised again in the process of the sweep.
            known = isinstance(error, FedsysError | HydraException | OmegaConfBaseException)
            reported = as_fedsys_error(error) if known else unforeseen(error)
            world.report_failure(reported, print_error)
            kind = InputError if isinstance(reported, InputError) else FedsysError
            raise kind(reported.message) from None

    return job
