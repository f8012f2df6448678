"""The answer to an algorithm on a problem of the wrong kind: which problems would fit."""

from __future__ import annotations

from collections.abc import Mapping

from hydra.utils import get_class
from omegaconf import OmegaConf

from fedsys import config
from fedsys.errors import InputError, KindError


def explain_kind(error: KindError, choices: Mapping[str, str], needs: str) -> InputError:
    """The same error in the words of the command line."""
    fitting = [name for name, kinds in problem_kinds().items() if needs in kinds]
    advice = f"; try problem={' or problem='.join(fitting)}" if fitting else ""
    return InputError(
        f"{choices['algorithm']} needs a {needs} problem; problem={choices['problem']} is "
        f"{' and '.join(error.kinds)}{advice}",
        error.reporter,
    )


def problem_kinds() -> dict[str, tuple[str, ...]]:
    """The kinds of each problem in conf/problem."""
    files = sorted((config.folder() / "problem").glob("*.yaml"))
    targets = {file.stem: str(OmegaConf.select(OmegaConf.load(file), "_target_")) for file in files}
    return {name: getattr(get_class(target), "kinds", ()) for name, target in targets.items()}
