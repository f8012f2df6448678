"""The command `fedsys`: composes conf/ and the overrides, and runs the job or the sweep."""

from __future__ import annotations

import sys

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fedsys.cli.arguments import check_arguments, with_quoted_paths
from fedsys.cli.exits import leave, report_unforeseen
from fedsys.cli.hydra_errors import as_fedsys_error
from fedsys.cli.jobs import LocalJobs, PicklableJob, register_resolvers
from fedsys.core.errors import FedsysError, InputError, first_line, print_error
from fedsys.distributed.stop_signal import StopSignal
from fedsys.distributed.world import World
from fedsys.training import config


def main() -> None:
    """Run what the arguments describe, and end the process with an exit code.

    0: success. 1: a run failed. 2: invalid configuration. 75: a signal stopped the run, which can
    be resumed. 130: the same by Ctrl-C.
    """
    world = World.from_environment()
    code = 0
    try:
        sys.argv[1:] = with_quoted_paths(sys.argv[1:])
        check_arguments(sys.argv[1:])
        code = _run_hydra(world)
    except FedsysError as error:
        world.report_failure(error, print_error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = report_unforeseen(error, world)
    leave(world, code)


def _run_hydra(world: World) -> int:
    """Compose the settings and run the job, or all jobs of a sweep; return the exit code."""
    register_resolvers(world)
    stop_signal = StopSignal(world)
    stop_signal.listen()
    jobs = LocalJobs(world, stop_signal)
    conf = str(config.folder())
    try:
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(PicklableJob(jobs))()
    except (HydraException, OmegaConfBaseException) as error:
        raise as_fedsys_error(error) from error
    except (TypeError, ValueError) as error:
        # Raised by Hydra while it composes the settings; a job reports its own errors.
        if isinstance(error, FedsysError):
            raise
        raise InputError(f"Hydra cannot compose this: {first_line(error)}") from error
    except OSError as error:  # of the folder that Hydra itself creates
        raise InputError(
            f"cannot write to {error.filename}: {error.strerror or error}; choose another "
            "run.root, run.dir or hydra.sweep.dir"
        ) from error
    finally:
        stop_signal.let_go()
    return jobs.finish()
