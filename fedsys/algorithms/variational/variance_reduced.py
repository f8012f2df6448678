"""Variance-reduced estimators of the clients' operators, for ProxSkip: L-SVRG and SAGA.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.variational.estimators import Estimator, Memory, ProxSkipState
from fedsys.core.constants import Theory
from fedsys.core.errors import require
from fedsys.core.optional_oracles import FiniteSum
from fedsys.core.oracles import Variational
from fedsys.core.schedules import THEORY, FromTheory
from fedsys.core.sync import Sync
from fedsys.theory import proxskip
from fedsys.theory.proxskip import KeyConstants


@dataclass(frozen=True)
class SVRGState(ProxSkipState):
    """And the reference point w and F_i(w)."""

    w: Tensor
    F_w: Tensor


@dataclass(frozen=True)
class LSVRG(Estimator):
    """g_t = F_j(x_t) - F_j(w_t) + F(w_t), w_{t+1} = x_t with probability q, else w_t.

    Loopless variance reduction, Algorithms 3 and 4. Lemma 3.8 and Corollary 3.9.

    Args:
        q: the chance of a new reference point, or "theory": 2 gamma mu.
    """

    q: float | FromTheory = THEORY

    state: ClassVar[type[ProxSkipState]] = SVRGState
    needs_full_operator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.q, str):  # a configuration has the word for it
            object.__setattr__(self, "q", FromTheory(self.q))
        super().__post_init__()
        require(0 < self._chance <= 1, type(self).__name__, "q", self.q, "in (0, 1]")

    @property
    def _chance(self) -> float:
        return 1.0 if isinstance(self.q, FromTheory) else self.q

    @override
    def start(self, oracle: Variational) -> Memory:
        return oracle.z0, oracle.full_operator(oracle.z0)

    @override
    def __call__(self, s: SVRGState, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        j = oracle.draw()
        g = oracle.operator(s.x, j) - oracle.operator(s.w, j) + s.F_w
        if sync.coin("reference"):
            return g, (s.x, oracle.full_operator(s.x))
        return g, (s.w, s.F_w)

    @property
    @override
    def coins(self) -> Mapping[str, float]:
        return {"reference": self._chance}

    @override
    def awaiting_theory(self) -> list[str]:
        return ["q"] if isinstance(self.q, FromTheory) else []

    @override
    def tuned(self, gamma: float, mu: float) -> Self:
        if not isinstance(self.q, FromTheory):
            return self
        return replace(self, q=proxskip.reference_chance(gamma, mu))

    @override
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, theory.finite_sum)
        return proxskip.memory_constants(ell, (self._chance, self._chance))

    @override
    def step_size(self, theory: Theory, cocoercivity: str) -> float:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, True)
        return proxskip.svrgda_step(ell, theory.constants.mu)

    @override
    def deviation(self, s: SVRGState, oracle: Variational, z: Tensor) -> Tensor:
        if not oracle.finite_sum:
            return (s.F_w - oracle.full_operator(z)).double().square().sum(1)
        return _mean_over_samples(_every_sample(oracle, s.w) - _every_sample(oracle, z), oracle)


@dataclass(frozen=True)
class SAGAState(ProxSkipState):
    """And a table [C, m, d] of the operators F_ij at the point where j was drawn last."""

    table: Tensor


@dataclass(frozen=True)
class SAGA(Estimator):
    """g_t = F_j(x_t) - table_j + mean of the table; then table_j = F_j(x_t).

    The table has a row for every sample of a client and begins with F_j(x_0). With several samples
    per draw, g_t has the mean of their differences. It needs draws of single samples and no second
    coin. Assumption 2.2 holds as for L-SVRG, with the chance that a sample is drawn in place of q
    (Beznosikov et al., AISTATS 2023, arXiv:2202.07262).
    """

    state: ClassVar[type[ProxSkipState]] = SAGAState
    needs_samples: ClassVar[bool] = True

    @override
    def start(self, oracle: Variational) -> Memory:
        return (_every_sample(oracle, oracle.z0),)

    @override
    def __call__(self, s: SAGAState, oracle: Variational, sync: Sync) -> tuple[Tensor, Memory]:
        assert isinstance(oracle, FiniteSum)
        j = oracle.drawn_samples(oracle.draw())
        F_j = oracle.operator_of_samples(s.x, j)
        rows = j[:, :, None].expand_as(F_j)
        g = (F_j - s.table.gather(1, rows)).mean(1) + _mean(s.table, oracle)
        return g, (s.table.scatter(1, rows, F_j),)

    @override
    def key_constants(self, theory: Theory, cocoercivity: str = "exact") -> KeyConstants:
        ell = proxskip.cocoercivity(theory.constants, cocoercivity, True)
        fewest, most = theory.samples
        chances = [proxskip.refresh_chance(m, theory.batch_size) for m in (most, fewest)]
        return proxskip.memory_constants(ell, (chances[0], chances[1]))

    @override
    def deviation(self, s: SAGAState, oracle: Variational, z: Tensor) -> Tensor:
        return _mean_over_samples(s.table - _every_sample(oracle, z), oracle)


def _every_sample(oracle: Variational, z: Tensor) -> Tensor:
    """Return F_mj(z_m) of all samples [C, m, d]; clients with fewer repeat their last sample."""
    assert isinstance(oracle, FiniteSum)
    last = torch.tensor(oracle.sizes, device=z.device)[:, None] - 1
    index = torch.arange(max(oracle.sizes), device=z.device).minimum(last)
    return oracle.operator_of_samples(z, index)


def _mean(table: Tensor, oracle: Variational) -> Tensor:
    """Return the mean over each client's own samples of a table [C, m, ...]."""
    if min(oracle.sizes) == table.shape[1]:
        return table.mean(1)
    sizes = torch.tensor(oracle.sizes, device=table.device)[:, None]
    own = torch.arange(table.shape[1], device=table.device) < sizes
    weights = (own / sizes).to(table.dtype)
    return (weights[:, :, None] * table).sum(1)


def _mean_over_samples(differences: Tensor, oracle: Variational) -> Tensor:
    """Return the mean over samples of the squared norms of differences [C, m, d]."""
    return _mean(differences.double().square().sum(2, keepdim=True), oracle)[:, 0]
