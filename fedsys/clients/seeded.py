"""Initial weights that depend on the seed only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from fedsys.core.random import generator, global_generators

Built = TypeVar("Built")


def seeded_build(build: Callable[[], Built], seed: int) -> Built:
    """Build a module with weights of this seed, and restore all global random states afterwards."""
    key = int(generator(seed, "initial weights").integers(2**62))
    with global_generators(key, torch.device("cpu")):
        return build()
