"""Initial weights that depend on the seed only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from fedsys.random import generator

Built = TypeVar("Built")


def seeded_build(build: Callable[[], Built], seed: int) -> Built:
    """Build a module with weights of this seed, and leave torch's own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, "initial weights").integers(2**62)))
        return build()
