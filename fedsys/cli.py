"""The command line: conf/ and overrides in, one run directory out."""

from __future__ import annotations

import os
import sys
from typing import Any

from fedsys import config
from fedsys.errors import FedsysError, InputError
from fedsys.runtime.run_directory import moment
from fedsys.runtime.world import World


def main() -> None:
    """Run what the arguments say; end with 0, 1 (the run failed) or 2 (it was asked wrongly)."""
    world = World.from_environment()
    try:
        _run_hydra(world)
    except FedsysError as error:
        world.last_words(error, _say)
        _leave(world, error.exit_code)
    except KeyboardInterrupt:
        _leave(world, 130)
    _leave(world, 0)


def _run_hydra(world: World) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # Hydra would print errors itself, once per rank; this hands them to us.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    config.register()
    name = world.share
    OmegaConf.register_new_resolver("fedsys.moment", lambda: name("moment", moment), use_cache=True)

    def job(settings: DictConfig) -> None:
        from fedsys.runtime.job import run_job

        run_job(settings, world)

    conf = str(config.folder())
    try:
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise _cause(error) from error


def _cause(error: BaseException) -> FedsysError:
    """The answer inside what Hydra raised, or Hydra's own words on one line."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, FedsysError):
            return inner
        inner = inner.__cause__
    lines = [line.strip() for line in str(error).splitlines()]
    text = "; ".join(line for line in lines if line and not line.startswith("full_key"))
    return InputError(text)


def _say(message: str) -> None:
    print(f"fedsys: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _leave(world: World, code: Any) -> None:
    sys.stdout.flush()
    if world.ranks > 1 and code:
        # A rank that failed must not wait in its destructors for ranks that are gone.
        os._exit(code)
    sys.exit(code)
