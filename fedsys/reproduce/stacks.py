"""Which runs of an entry can be stepped together, in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsys.core.fields import is_number

_GAMES = "fedsys.problems.games."
_IGNORED_SETTINGS = ("seed", "run", "resume", "checkpoint", "objective", "dataset")
"""What does not matter to the steps of a game; games have no data set."""


def stack_key(settings: Mapping[str, Any]) -> str:
    """Return what the runs of a stack have in common; "" for a run that has to be alone.

    Runs of a game can be stacked that differ in their seeds and in numbers that their algorithm
    declares in `stackable`.
    """
    from hydra.utils import get_class

    from fedsys.training.stack import stackable_names

    algorithm, problem = settings["algorithm"], settings["problem"]
    loggers = settings.get("logger") or {}
    if any(one is not None for one in loggers.values()):
        return ""
    try:
        is_game = get_class(problem["_target_"]).__module__.startswith(_GAMES)
        names = stackable_names(get_class(algorithm["_target_"]))
    except (ImportError, ValueError, TypeError, KeyError, AttributeError):
        return ""  # the run reports what is wrong
    if not is_game or names is None:
        return ""
    fixed = {k: v for k, v in algorithm.items() if not (k in names and is_number(v))}
    others = {k: v for k, v in settings.items() if k not in (*_IGNORED_SETTINGS, "algorithm")}
    return json.dumps([fixed, others], sort_keys=True, default=str)
