"""The command line: conf/ and overrides in, one run directory out."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from difflib import get_close_matches
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

from fedsys import config
from fedsys.errors import FedsysError, InputError, InterruptedRunError, LostRankError, tell
from fedsys.runtime.interruption import Interruption
from fedsys.runtime.run_directory import began
from fedsys.runtime.world import World

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    Job = Callable[[DictConfig], float | None]

_SECONDS_FOR_LAST_WORDS = 4.8


def main() -> None:
    """Run what the arguments say, and end with an exit code.

    0; 1, a run failed; 2, it was asked wrongly; 75, it was stopped by a signal and can go on.
    """
    world = World.from_environment()
    code = 0
    try:
        code = _run_hydra(world)
    except FedsysError as error:
        world.last_words(error, tell)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    _leave(world, code)


def _leave(world: World, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if world.ranks > 1:
        # A rank that failed must not wait in its destructors for ranks that are gone; and a thread
        # of gloo's that still holds a tensor aborts an interpreter that is ending.
        os._exit(code)
    sys.exit(code)


def _leave_anyway(world: World, error: LostRankError) -> None:
    """End soon, whatever happens: a rank that was cut off cannot reach the others' store either."""

    def leave() -> None:
        if not world.roll_call.is_over:
            tell(f"rank {world.rank} ({socket.gethostname()}) was cut off ({error.message})")
        os._exit(error.exit_code)

    timer = Timer(_SECONDS_FOR_LAST_WORDS, leave)
    timer.daemon = True
    timer.start()


def _run_hydra(world: World) -> int:
    """Compose the settings and run them, or all of a sweep; the exit code of the first failure."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    _register(world)
    codes: list[int] = []
    interruption = Interruption(world)
    interruption.listen()

    def job(settings: DictConfig) -> float | None:
        from fedsys.runtime.job import run_job

        try:
            return run_job(settings, world, interruption)
        except LostRankError as error:
            # Nothing more can be run without that rank.
            _leave_anyway(world, error)
            world.last_words(error, tell)
            sys.stdout.flush()
            os._exit(error.exit_code)
        except InterruptedRunError as stop:
            # Not of this job alone, but of the sweep that it is part of.
            world.last_words(stop, tell)
            _leave(world, stop.exit_code)
        except (FedsysError, HydraException, OmegaConfBaseException) as error:
            # Told here, not raised: Hydra would add a line per rank, and stop a sweep.
            told = answer(error)
            world.last_words(told, tell)
            codes.append(told.exit_code)
            return None  # a sweeper that learns from results counts it as failed

    conf = str(config.folder())
    try:
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(Portable(job))()
    except (HydraException, OmegaConfBaseException) as error:
        raise answer(error) from error
    finally:
        interruption.let_go()
    return codes[0] if codes else 0


def _register(world: World) -> None:
    """What the files in conf/ refer to."""
    from omegaconf import OmegaConf

    # Hydra would print errors itself, once per rank; this hands them to us.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    config.register()
    OmegaConf.register_new_resolver(
        "fedsys.moment", lambda: world.share("moment", began), use_cache=True, replace=True
    )


class Portable:
    """A job that is run here, or pickled by a launcher of Hydra's (submitit) and run elsewhere.

    Nothing of this process travels along: over there the job is made anew, for the ranks there.

    Args:
        job: what is run here.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, settings: DictConfig) -> float | None:
        """Run it here."""
        return self._job(settings)

    def __reduce__(self) -> tuple[Callable[[], Job], tuple[()]]:
        return job_elsewhere, ()


def job_elsewhere() -> Job:
    """The job of a process that a launcher of Hydra's started; signals are that launcher's."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    world = World.from_environment()
    _register(world)

    def job(settings: DictConfig) -> float | None:
        from fedsys.runtime.job import run_job

        try:
            return run_job(settings, world, Interruption(world))
        except (FedsysError, HydraException, OmegaConfBaseException) as error:
            # Told here, in the log of this job, and raised again where the sweep was started.
            told = answer(error)
            world.last_words(told, tell)
            kind = InputError if isinstance(told, InputError) else FedsysError
            raise kind(told.message) from None

    return job


def answer(error: BaseException) -> FedsysError:
    """What the user is told of an error: our own words inside it, or Hydra's on one line."""
    from hydra.errors import InstantiationException, MissingConfigException
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, FedsysError):
            return cause
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        choices = ", ".join(error.options or [])
        return InputError(f"{group}={name} is unknown; choose one of {choices}")
    for cause in causes:
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            return InputError(_unknown_option(cause))
    if isinstance(error, InstantiationException) and len(causes) > 1:
        causes = causes[1:]
    lines = dict.fromkeys(str(cause).splitlines()[0].strip() for cause in causes if str(cause))
    return InputError("; ".join(line.rstrip(".") for line in lines))


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from."""
    chain: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None:
        chain.append(inner)
        inner = inner.__cause__
    return chain


def _unknown_option(error: OmegaConfBaseException) -> str:
    """Which option there is not, and which there are."""
    parent: Any = error.parent_node
    known = sorted(str(key) for key in parent or ())
    close = get_close_matches(str(error.key), known, n=1)
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    group = str(error.full_key).split(".")[0]
    if any(word.startswith(f"{group}=") and "," in word for word in sys.argv):
        advice += f"; options of what a sweep goes through are set by ++{error.full_key}=..."
    return f"there is no option {error.full_key}; {advice} (all: fedsys --cfg job)"
