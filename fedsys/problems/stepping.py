"""The counting that all oracles share."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from fedsys.communication import Sync
from fedsys.problems.constants import Constants
from fedsys.problems.site import Site
from fedsys.random import BlockedDraws

_FIRST_DRAW_OF_INIT = 1 << 20
"""Draws k from here on belong to `init`, so that it shares none with iteration 0."""


class SteppingOracle:
    """The part of an oracle that counts: iteration `step`, and how many draws it has made."""

    step = 0
    rider: Tensor | None = None
    uses_autograd = True
    z0: Tensor

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sizes = [1] * len(site.hosted)
        self._normals = BlockedDraws(site.seed, "normal", site.hosted)
        self._drawn = 0

    def at(self, step: int) -> Self:
        """The same oracle at the beginning of iteration `step`."""
        bound = object.__new__(type(self))  # copy.copy takes thirty times as long
        fields = bound.__dict__ = self.__dict__.copy()
        fields["step"], fields["_drawn"] = step, 0
        return bound

    def at_start(self) -> Self:
        """The same oracle before the first iteration, with draws of its own."""
        bound = self.at(0)
        bound._drawn = _FIRST_DRAW_OF_INIT
        return bound

    @property
    def finite_sum(self) -> bool:
        """Whether a draw is a sample of the client's data."""
        return False

    def normal(self) -> Tensor:
        """A standard normal vector for each hosted client, as a draw of its own."""
        return self.site.convert(self._normals.normal(*self._next(), self.z0.shape[1]))

    def constants(self, sync: Sync) -> Constants | None:
        """Nobody knows them."""
        return None

    def prox(self, z: Tensor, step: float) -> Tensor:
        """No terms."""
        return z

    prox_x = prox_y = mirror = prox

    def _next(self) -> tuple[int, int]:
        """(step, k) of the next draw."""
        k = self._drawn
        self._drawn += 1
        return self.step, k
