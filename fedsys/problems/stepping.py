"""The base class of all oracles, which counts iterations and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from fedsys.core.constants import Constants
from fedsys.core.errors import InputError
from fedsys.core.oracles import StepSize
from fedsys.core.random import BlockedDraws
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.problems.counting import count_calls

GivenDraws = Callable[[int, int, int], int | Sequence[int]]
"""Samples given by the user: a function of (client, step, k), one index or one for each of B."""

_new = object.__new__
_FIRST_DRAW_OF_INIT = 1 << 20
"""The first draw k of `init`, which must not share draws with iteration 0."""


def given_picks(
    draws: GivenDraws, clients: Sequence[int], sizes: Sequence[int], step: int, k: int, batch: int
) -> np.ndarray:
    """Return the samples [C, B] that the user gives for a draw; refuse those that do not exist."""
    rows = [np.atleast_1d(draws(client, step, k)) for client in clients]
    for client, size, row in zip(clients, sizes, rows, strict=True):
        is_index = row.dtype.kind in "iu" and row.shape == (batch,)
        if not (is_index and row.min() >= 0 and row.max() < size):
            raise InputError(
                f"draws: {batch} of the samples 0 to {size - 1} must be given for client {client} "
                f"in step {step}, draw {k}; got {row.tolist()}"
            )
    return np.stack(rows).astype(np.int64)


class SteppingOracle:
    """An oracle that counts its draws in iteration `step`; by default it has no terms.

    `warnings` has the warnings of evaluations by topic; each topic is printed once. `calls` counts
    the evaluations of operators and gradients at a draw in iteration `step`, `passes` those on all
    data (fedsys/problems/counting.py).
    """

    step = 0
    calls = 0
    passes = 0
    synchronised_buffers: Tensor | None = None
    uses_autograd = True
    z0: Tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        count_calls(cls)

    def __init__(self, site: Site) -> None:
        # A dictionary that does not share its keys with those of other instances is copied faster.
        self.__dict__ = {"step": 0, "calls": 0, "passes": 0}
        self.site = site
        self.sizes = [1] * len(site.hosted)
        self.warnings: dict[str, str] = {}
        self._normals = BlockedDraws(site.seed, "normal", site.hosted)
        self._drawn = 0

    def at(self, step: int) -> Self:
        """Return the same oracle at the beginning of iteration `step`."""
        bound = _new(self.__class__)  # copy.copy takes thirty times as long
        fields = bound.__dict__ = self.__dict__.copy()
        fields["step"] = step
        fields["_drawn"] = fields["calls"] = fields["passes"] = 0
        return bound

    def initial(self) -> Self:
        """Return the same oracle before the first iteration, with draws of its own."""
        bound = self.at(0)
        bound._drawn = _FIRST_DRAW_OF_INIT
        return bound

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a sample of the client's data."""
        return False

    @property
    def samples_per_draw(self) -> int | None:
        """B, the samples of a draw; None for all of them, and if a draw is no sample of data."""
        return 1 if self.finite_sum else None

    @property
    def draws_per_pass(self) -> list[float]:
        """The calls at a draw that an evaluation on all data costs, for each hosted client.

        They are the client's samples divided by those of a draw, or 1 if draws have no samples.
        """
        batch = self.samples_per_draw
        return [size / batch if batch else 1.0 for size in self.sizes]

    def use_draws(self, draws: GivenDraws) -> None:
        """Take the samples of draws from a function of (client, step, k)."""
        raise InputError(
            f"draws= is for finite sums whose samples have numbers, which {type(self).__name__} "
            "has not; use it with a game that has samples and a batch_size"
        )

    def normal(self) -> Tensor:
        """Draw a standard normal vector for each hosted client."""
        return self.site.convert(self._normals.normal(*self._next(), self.z0.shape[1]))

    def constants(self, sync: Sync) -> Constants | None:
        """Return the constants of the theory, or None if they are unknown."""
        return None

    def prox(self, z: Tensor, step: float) -> Tensor:
        """Apply the proximal map of both players' terms: z itself, as there are none."""
        return z

    def prox_x(self, x: Tensor, step: StepSize) -> Tensor:
        """Apply the proximal map of the min player's term: x itself, as there is none."""
        return x

    def prox_y(self, y: Tensor, step: StepSize) -> Tensor:
        """Apply the proximal map of the max player's term: y itself, as there is none."""
        return y

    def mirror(self, z: Tensor, weight: float) -> Tensor:
        """Apply the mirror map of both players' terms: z itself, as there are none."""
        return z

    def _next(self) -> tuple[int, int]:
        """Return (step, k) of the next draw, and count it."""
        k = self._drawn
        self._drawn += 1
        return self.step, k
