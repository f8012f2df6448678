"""Unbiased estimators of the clients' operators, for ProxSkip.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100. Each estimator declares the constants of Assumption 2.2, from which the
step size and the bound of Theorem 3.1 follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.algorithm import State
from fedsys.core.constants import Theory
from fedsys.core.errors import require
from fedsys.core.fields import Checked
from fedsys.core.oracles import Variational
from fedsys.core.sync import Sync
from fedsys.theory import proxskip
from fedsys.theory.proxskip import KeyConstants

Memory = tuple[Tensor, ...]
"""The fields that an estimator adds to the state, in their order."""


@dataclass(frozen=True)
class ProxSkipState(State):
    """The point x and the control variate h, which tends to F_i(z*)."""

    x: Tensor
    h: Tensor


@dataclass(frozen=True)
class Estimator(Checked, ABC):
    """An unbiased estimator g_t of F(x_t); yours is a frozen dataclass with these methods.

    `state` is the state of ProxSkip with what the estimator remembers.
    """

    state: ClassVar[type[ProxSkipState]] = ProxSkipState
    needs_full_operator: ClassVar[bool] = False
    needs_samples: ClassVar[bool] = False
    described_as: ClassVar[str] = "an estimator of fedsys.algorithms"

    def start(self, oracle: Variational) -> Memory:
        """Return the memory before the first step."""
        return ()

    @abstractmethod
    def __call__(self, s: Any, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        """Return g_t at s.x, and the memory after this step."""

    @abstractmethod
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        """Return A, B, C, D1, D2 and rho of Assumption 2.2."""

    def step_size(self, theory: Theory, cocoercivity: str) -> float:
        """Return gamma; by default the one of Corollary 3.2."""
        return proxskip.unified_step(self.key_constants(theory, cocoercivity), theory.constants.mu)

    @property
    def coins(self) -> Mapping[str, float]:
        """The shared coins that it reads, with their probabilities."""
        return {}

    def awaiting_theory(self) -> list[str]:
        """The hyperparameters that are left to the theory."""
        return []

    def tuned(self, gamma: float, mu: float) -> Self:
        """Return the estimator with the theorem's numbers, for the step size gamma."""
        return self

    def deviation(self, s: Any, oracle: Variational, z: Tensor) -> Tensor:
        """Return sigma_t^2 of each hosted client [C], for the solution z [C, d]."""
        zero: Tensor = s.x.new_zeros(len(s.x))
        return zero


@dataclass(frozen=True)
class SGDA(Estimator):
    """g_t = F(x_t; xi_t): what the problem draws. Lemma 3.4 and Corollary 3.5."""

    @override
    def __call__(self, s: Any, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        return oracle.operator(s.x, oracle.draw()), ()

    @override
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        c, sampled = theory.constants, theory.finite_sum
        ell = proxskip.cocoercivity(c, cocoercivity, sampled)
        return proxskip.draw_constants(ell, c.sigma, theory.clients, sampled)

    @override
    def step_size(self, theory: Theory, cocoercivity: str) -> float:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, theory.finite_sum)
        return proxskip.proxskip_step(ell, theory.constants.mu)


@dataclass(frozen=True)
class FullOperator(Estimator):
    """g_t = F(x_t), on all data, whatever the problem draws. Corollary 3.6."""

    needs_full_operator: ClassVar[bool] = True

    @override
    def __call__(self, s: Any, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        return oracle.full_operator(s.x), ()

    @override
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, False)
        return proxskip.draw_constants(ell, 0.0, theory.clients, False)

    @override
    def step_size(self, theory: Theory, cocoercivity: str) -> float:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, False)
        return proxskip.proxskip_step(ell, theory.constants.mu)


@dataclass(frozen=True)
class Quantised(Estimator):
    """g_t = Q(v), v the estimate of another estimator and Q unbiased random quantisation.

        Q(v)_k = ||v|| sign(v_k) l/s,  l = s |v_k| / ||v|| rounded up or down at random

    QSGD of Alistarh et al. (NeurIPS 2017), arXiv:1610.02132. A client draws its own random numbers.
    The error does not vanish at a solution where clients disagree: D1 has the mean of
    ||F_i(z*)||^2.

    Args:
        levels: s, the number of levels of a coordinate.
        estimator: v.
    """

    levels: int = 16
    estimator: Estimator = field(default_factory=SGDA)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.levels >= 1, type(self).__name__, "levels", self.levels, "at least 1")
        for name in ("state", "needs_full_operator", "needs_samples"):
            object.__setattr__(self, name, getattr(self.estimator, name))

    @override
    def start(self, oracle: Variational) -> Memory:
        return self.estimator.start(oracle)

    @override
    def __call__(self, s: Any, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        v, memory = self.estimator(s, oracle, sync)
        uniform = torch.special.ndtr(oracle.normal())
        return quantise(v, self.levels, uniform), memory

    @property
    @override
    def coins(self) -> Mapping[str, float]:
        return self.estimator.coins

    @override
    def awaiting_theory(self) -> list[str]:
        return [f"estimator.{name}" for name in self.estimator.awaiting_theory()]

    @override
    def tuned(self, gamma: float, mu: float) -> Self:
        return replace(self, estimator=self.estimator.tuned(gamma, mu))

    @override
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        c = theory.constants
        key = self.estimator.key_constants(theory, cocoercivity)
        omega = proxskip.quantisation_variance(c.dim, self.levels)
        return proxskip.quantised_constants(key, omega, c.F_star, theory.clients)

    @override
    def deviation(self, s: Any, oracle: Variational, z: Tensor) -> Tensor:
        return self.estimator.deviation(s, oracle, z)


def quantise(v: Tensor, levels: int, uniform: Tensor) -> Tensor:
    """Return Q(v) of each row, given uniform random numbers of the same shape."""
    norms: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    unit = norms / levels
    exact = v.abs() / unit.clamp(min=torch.finfo(v.dtype).tiny)
    return v.sign() * unit * (exact + uniform).floor()
