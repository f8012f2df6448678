"""FGDA and AdaFGDA.

Feihu Huang, Xinrui Wang, Junyi Li, Songcan Chen. Adaptive Federated Minimax Optimization with Lower
Complexities. AISTATS 2024. arXiv:2211.07303.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.algorithms.minimax.adaptive import Adam, BoundedRule, DiagonalRule
from fedsys.algorithms.minimax.base import MinimaxAlgorithm, MinimaxState
from fedsys.core.algorithm import fill_in
from fedsys.core.arithmetic import add_scaled
from fedsys.core.constants import Constants, Theory
from fedsys.core.errors import InputError
from fedsys.core.oracles import Minimax
from fedsys.core.schedules import FromTheory, Rate, at
from fedsys.core.sync import Sync
from fedsys.theory import fgda

READINGS = ("average", "storm-local", "storm-mean", "carry")


@dataclass(frozen=True)
class FGDAState(MinimaxState):
    """The players, and the estimators w of grad_x and v of grad_y."""

    w: Tensor
    v: Tensor


AnyFGDAState = TypeVar("AnyFGDAState", bound=FGDAState)


@dataclass(frozen=True)
class _VarianceReduced(MinimaxAlgorithm[AnyFGDAState]):
    """The hyperparameters and the STORM estimators of both algorithms."""

    eta: Rate = 1.0
    alpha: Rate = 0.9
    beta: Rate = 0.9
    sync_estimator: str = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("eta")
        for name in ("alpha", "beta"):
            self._require(0 <= self._highest(name, 0.0) <= 1, name, "in [0, 1]")
        known = self.sync_estimator in READINGS
        self._require(known, "sync_estimator", "one of " + ", ".join(READINGS))

    def _first_estimators(self, oracle: Minimax) -> tuple[Tensor, Tensor]:
        """w_1 and v_1, the means of q sampled gradients (line 2)."""
        q = self.local_steps
        w, v = torch.zeros_like(oracle.x0), torch.zeros_like(oracle.y0)
        for _ in range(q):
            gx, gy = oracle.grads(oracle.x0, oracle.y0, oracle.draw())
            w, v = w + gx / q, v + gy / q
        return w, v

    def _estimators(
        self, own: FGDAState, agreed: FGDAState, x: Tensor, y: Tensor, oracle: Minimax, sync: Sync
    ) -> tuple[Tensor, Tensor]:
        """Lines 15 and 16, w and v at the new point: one sample, two gradient calls.

        `own` is a client's state before the average and `agreed` the one after it; on a local step
        they are the same. The printed box has no estimators after an average: `sync_estimator`.
        """
        if sync and self.sync_estimator == "carry":
            return agreed.w, agreed.v
        old = agreed if self.sync_estimator == "storm-mean" else own
        xi = oracle.draw()
        old_x, old_y = oracle.grads(old.x, old.y, xi)
        new_x, new_y = oracle.grads(x, y, xi)
        alpha, beta = at(self.alpha, oracle.step), at(self.beta, oracle.step)
        # In two passes over the vector, not three, and the second in the memory of the first.
        w, v = agreed.w - old_x, agreed.v - old_y
        add_scaled(new_x, w, 1 - beta, out=w)
        add_scaled(new_y, v, 1 - alpha, out=v)
        if self.sync_estimator == "average":
            w, v = sync(w, v)
        return w, v


@dataclass(frozen=True)
class FGDA(_VarianceReduced[FGDAState]):
    """FGDA of Huang et al. (AISTATS 2024), arXiv:2211.07303, Algorithm 1 with A = B = I.

    Descent and ascent along momentum-based variance-reduced gradients:

        x+ = x - eta lr_x w,   w+ = grad_x f(x+, y+; xi) + (1 - beta) (w - grad_x f(x, y; xi))
        y+ = y + eta lr_y v,   v+ = grad_y f(x+, y+; xi) + (1 - alpha) (v - grad_y f(x, y; xi))

    A communication step first averages x, y, w and v. What becomes of the estimators then is open
    in the printed box. The default averages w+ and v+ again, a second exchange: it is the only
    reading under which Lemmas 8 and 11 hold together, and the one that converges linearly.

    Theory (Theorem 2, n = 1): eta = K^(1/3) / (m + t)^(1/3) for K clients, alpha = c1 eta^2 and
    beta = c2 eta^2, with the smallest m, c1 and c2 and the largest steps that it allows.

    Args:
        lr_x: gamma, a number, a schedule or "theory".
        lr_y: lambda, a number, a schedule or "theory".
        eta: the factor of both steps, a number, a schedule or "theory".
        alpha: the weight of the new gradient in v, or "theory"; 1 is plain SGDA.
        beta: the same in w.
        sync_estimator: "average"; "storm-local", the same without averaging w+ and v+;
            "storm-mean", with the old gradients at the averaged point; "carry", w+ = w and v+ = v.
        local_steps: q, the number of steps of a round.
    """

    lr_x: Rate | FromTheory = 1.0  # type: ignore[assignment]
    lr_y: Rate | FromTheory = 0.1  # type: ignore[assignment]
    eta: Rate | FromTheory = 1.0  # type: ignore[assignment]
    alpha: Rate | FromTheory = 0.5  # type: ignore[assignment]
    beta: Rate | FromTheory = 0.5  # type: ignore[assignment]

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")
    stackable: ClassVar[tuple[str, ...] | None] = ("lr_x", "lr_y", "eta", "alpha", "beta")

    @override
    def init(self, oracle: Minimax, sync: Sync) -> FGDAState:
        return FGDAState(oracle.x0, oracle.y0, *self._first_estimators(oracle))

    @override
    def step(self, s: FGDAState, oracle: Minimax, sync: Sync) -> FGDAState:
        agreed = FGDAState(*sync(s.x, s.y, s.w, s.v))
        eta = at(self.eta, oracle.step)
        x, y = self._move(agreed.x, agreed.y, agreed.w, agreed.v, oracle, eta)
        return FGDAState(x, y, *self._estimators(s, agreed, x, y, oracle, sync))

    @override
    def tuned(self, theory: Theory) -> Self:
        K, q = theory.clients, self.local_steps
        return fill_in(
            self,
            theory,
            lr_x=lambda c: fgda.min_step(c, K, q),
            lr_y=lambda c: fgda.max_step(c, K),
            eta=lambda c: fgda.eta(c, K, q),
            alpha=lambda c: fgda.alpha(c, K, q),
            beta=lambda c: fgda.beta(c, K, q),
        )


@dataclass(frozen=True)
class AdaFGDAState(FGDAState):
    """And the diagonals A and B, with what their rules remember."""

    A: Tensor
    B: Tensor
    memory_x: Tensor
    memory_y: Tensor


@dataclass(frozen=True)
class AdaFGDA(_VarianceReduced[AdaFGDAState]):
    """AdaFGDA of Huang et al. (AISTATS 2024), arXiv:2211.07303, Algorithm 1.

    FGDA along A^-1 w and B^-1 v; once a round the server computes A and B for all clients.

    Terms and constraints are applied in the norms of A and B, so that the solution stays where the
    steps rest; a Euclidean projection would move it.

    Theory (Theorem 1, n = 1): the numbers of FGDA with rho, the smallest entry of A and B, and
    rho_u, the largest of B. rho_u follows from the bound G of the gradients (Remark 1), which an
    affine game has within its radius only.

    Args:
        lr_x: gamma, a number, a schedule or "theory".
        lr_y: lambda, a number, a schedule or "theory".
        eta: the factor of both steps, a number, a schedule or "theory".
        alpha: the weight of the new gradient in v, or "theory"; 1 is plain SGDA.
        beta: the same in w.
        sync_estimator: as in FGDA.
        matrix_x: the rule for A, such as Adam or AdaBelief of fedsys.algorithms.minimax.adaptive.
        matrix_y: the rule for B.
        local_steps: q, the number of steps of a round.
    """

    lr_x: Rate | FromTheory = 0.1  # type: ignore[assignment]
    lr_y: Rate | FromTheory = 0.1  # type: ignore[assignment]
    eta: Rate | FromTheory = 1.0  # type: ignore[assignment]
    alpha: Rate | FromTheory = 0.9  # type: ignore[assignment]
    beta: Rate | FromTheory = 0.9  # type: ignore[assignment]
    matrix_x: DiagonalRule = field(default_factory=lambda: Adam(floor=0.03))
    matrix_y: DiagonalRule = field(default_factory=Adam)

    term_maps: ClassVar[tuple[str, ...]] = ("prox_x", "prox_y")
    needs_server: ClassVar[bool] = True

    @override
    def init(self, oracle: Minimax, sync: Sync) -> AdaFGDAState:
        w, v = self._first_estimators(oracle)
        start = self.matrix_x.start(w[0]), self.matrix_y.start(v[0])
        A, B, *memories = sync.server(lambda w, v: self._matrices(*start, w, v), w, v)
        if self.local_steps == 1:  # t = 1 communicates, and applies line 6 to the same w and v
            memories = [memory.expand(len(w), *memory.shape) for memory in start]
        return AdaFGDAState(oracle.x0, oracle.y0, w, v, A, B, *memories)

    @override
    def step(self, s: AdaFGDAState, oracle: Minimax, sync: Sync) -> AdaFGDAState:
        agreed = self._agree(s, sync) if sync else s
        eta = at(self.eta, oracle.step)
        lr_x, lr_y = eta * at(self.lr_x, oracle.step), eta * at(self.lr_y, oracle.step)
        x = agreed.x.sub(agreed.w / agreed.A, alpha=lr_x)
        y = agreed.y.add(agreed.v / agreed.B, alpha=lr_y)
        x, y = oracle.prox_x(x, lr_x / agreed.A), oracle.prox_y(y, lr_y / agreed.B)
        w, v = self._estimators(s, agreed, x, y, oracle, sync)
        return replace(agreed, x=x, y=y, w=w, v=v)

    def _agree(self, s: AdaFGDAState, sync: Sync) -> AdaFGDAState:
        """Lines 5 and 6, by the server: the means, and the matrices of the mean estimators."""
        memories = s.memory_x[0], s.memory_y[0]

        def serve(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            return x, y, w, v, *self._matrices(*memories, w, v)

        return AdaFGDAState(*sync.server(serve, s.x, s.y, s.w, s.v))

    def _matrices(
        self, memory_x: Tensor, memory_y: Tensor, w: Tensor, v: Tensor
    ) -> tuple[Tensor, ...]:
        """A and B after a round with mean estimators w and v, and what their rules remember."""
        memory_x, memory_y = (
            self.matrix_x.remember(memory_x, w),
            self.matrix_y.remember(memory_y, v),
        )
        diagonals = self.matrix_x.diagonal(memory_x), self.matrix_y.diagonal(memory_y)
        return *diagonals, memory_x, memory_y

    @override
    def tuned(self, theory: Theory) -> Self:
        K, q = theory.clients, self.local_steps
        c = theory.constants
        of = self._matrix_range(c)
        # The theorem needs the PL condition in y only, which holds with mu_y.
        theory = replace(theory, constants=replace(c, mu=max(c.mu, c.mu_y)))
        return fill_in(
            self,
            theory,
            lr_x=lambda c: fgda.min_step(c, K, q, of),
            lr_y=lambda c: fgda.max_step(c, K),
            eta=lambda c: fgda.eta(c, K, q, of),
            alpha=lambda c: fgda.alpha(c, K, q, of),
            beta=lambda c: fgda.beta(c, K, q, of),
        )

    def _matrix_range(self, c: Constants) -> fgda.Matrices:
        """Return rho and rho_u of Assumption 7."""
        first, second = self.matrix_x, self.matrix_y
        if not (isinstance(first, BoundedRule) and isinstance(second, BoundedRule)):
            raise InputError(
                "AdaFGDA: theory needs bounds of its matrices, which a rule gives as "
                "bounds(gradient); add that method, or give algorithm.lr_x, lr_y, eta numbers"
            )
        (low_x, _), (low_y, high) = first.bounds(c.G), second.bounds(c.G)
        return fgda.matrix_range(min(low_x, low_y), high)
