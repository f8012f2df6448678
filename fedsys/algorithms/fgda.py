"""FGDA and AdaFGDA (adafgda.txt, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedsys.algorithms.adaptive import Adam, DiagonalRule
from fedsys.algorithms.minimax import MinimaxAlgorithm, MinimaxState
from fedsys.algorithms.rates import THEORY, Decreasing, Rate, rate_at
from fedsys.algorithms.terms_of_bounds import rate
from fedsys.communication import Sync
from fedsys.problems import Constants, Minimax, Theory

READINGS = ("average", "storm-local", "storm-mean", "carry")


@dataclass(frozen=True)
class FGDAState(MinimaxState):
    """The players, and the estimators w of grad_x and v of grad_y."""

    w: Tensor
    v: Tensor


AnyFGDAState = TypeVar("AnyFGDAState", bound=FGDAState)


@dataclass(frozen=True)
class _VarianceReduced(MinimaxAlgorithm[AnyFGDAState]):
    """The hyperparameters and the STORM estimators of both methods."""

    eta: Rate = 1.0
    alpha: Rate = 0.1
    beta: Rate = 0.1
    sync_estimator: str = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("eta")
        for name in ("alpha", "beta"):
            valid = self._awaits_theory(name) or 0 <= rate_at(getattr(self, name), 0) <= 1
            self._require(valid, name, "in [0, 1]")
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
        alpha, beta = rate_at(self.alpha, oracle.step), rate_at(self.beta, oracle.step)
        # In two passes over the vector, not three, and the second in the memory of the first.
        w, v = agreed.w - old_x, agreed.v - old_y
        torch.add(new_x, w, alpha=1 - beta, out=w)
        torch.add(new_y, v, alpha=1 - alpha, out=v)
        if self.sync_estimator == "average":
            w, v = sync(w, v)
        return w, v


@dataclass(frozen=True)
class FGDA(_VarianceReduced[FGDAState]):
    """Descent and ascent along momentum-based variance-reduced gradients.

        x+ = x - eta lr_x w,   w+ = grad_x f(x+, y+; xi) + (1 - beta) (w - grad_x f(x, y; xi))
        y+ = y + eta lr_y v,   v+ = grad_y f(x+, y+; xi) + (1 - alpha) (v - grad_y f(x, y; xi))

    A communication step first averages x, y, w and v. What becomes of the estimators then is open
    in the printed box. The default averages w+ and v+ again, a second exchange: it is the only
    reading under which Lemmas 8 and 11 hold together, and the one that converges linearly.

    Theory (Theorem 2, n = 1): eta = K^(1/3) / (m + t)^(1/3) for K clients, alpha = c1 eta^2 and
    beta = c2 eta^2, with the smallest m, c1 and c2 and the largest steps that it allows.

    Args:
        lr_x: gamma, or "theory".
        lr_y: lambda, or "theory".
        eta: the factor of both steps, a number or a schedule, or "theory".
        alpha: the weight of the new gradient in v, or "theory"; 1 is plain SGDA.
        beta: the same in w.
        sync_estimator: "average"; "storm-local", the same without averaging w+ and v+;
            "storm-mean", with the old gradients at the averaged point; "carry", w+ = w and v+ = v.
        local_steps: q, the steps of a round.
    """

    lr_x: Rate = THEORY
    lr_y: Rate = THEORY
    eta: Rate = THEORY
    alpha: Rate = THEORY
    beta: Rate = THEORY

    def init(self, oracle: Minimax, sync: Sync) -> FGDAState:
        """All clients start from the same point, with estimators of their own."""
        return FGDAState(oracle.x0, oracle.y0, *self._first_estimators(oracle))

    def step(self, s: FGDAState, oracle: Minimax, sync: Sync) -> FGDAState:
        """One iteration of Algorithm 1 with A = B = I."""
        agreed = FGDAState(*sync(s.x, s.y, s.w, s.v))
        eta = rate_at(self.eta, oracle.step)
        x, y = self._move(agreed.x, agreed.y, agreed.w, agreed.v, oracle, eta)
        return FGDAState(x, y, *self._estimators(s, agreed, x, y, oracle, sync))

    def tuned(self, theory: Theory) -> Self:
        """Theorem 2; mu is that of strong monotonicity, which implies the one of the PL condition.

        c1^2 + c2^2 <= 12^4 lambda^4 q^2 L^2 is left aside: its two sides have different units.
        """
        K, q = theory.clients, self.local_steps

        def c1(c: Constants) -> float:
            return 2 / (3 * K) + 4.5 * (c.L / c.mu) ** 2

        def lr_y(c: Constants) -> float:
            return 3 * sqrt(5 * K) / (32 * sqrt(2) * c.mu)

        def m(c: Constants) -> float:
            slow = K * (12 * sqrt(2) * lr_y(c) * q * c.L) ** 3
            return max(2.0, c1(c) ** 3 * K, slow, (4 * c.L * lr_y(c)) ** 3)

        def lr_x(c: Constants) -> float:
            mu, L_f, lam = c.mu, c.L, lr_y(c)
            L = L_f * (1 + L_f / (2 * mu))
            Lambda = 1 / 16 + L_f**2 / (4 * mu**2) + 16 * lam**2 * L_f**2 / K
            return min(
                lam * min(1.0, sqrt(5 * K) / (4 * sqrt(2 * Lambda))),
                rate(m(c), 1 / 3) / (4 * L),
                lam * mu / (16 * L),
                mu / (16 * L_f**2),
                2 * lam * mu**2 / (27 * L_f**2),
                sqrt(K) / (8 * sqrt(3) * L_f),
            )

        def schedule(factor: float, power: float, c: Constants) -> Rate:
            return Decreasing(factor * rate(K, power), m(c) + 1, power)  # the paper counts t from 1

        return self.fill(
            theory,
            lr_x=lr_x,
            lr_y=lr_y,
            eta=lambda c: schedule(1.0, 1 / 3, c),
            alpha=lambda c: schedule(c1(c), 2 / 3, c),
            beta=lambda c: schedule(2 / (3 * K) + 4.5, 2 / 3, c),
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
    """FGDA along A^-1 w and B^-1 v; once a round the server computes A and B for everybody.

    Args:
        lr_x: gamma.
        lr_y: lambda.
        eta: the factor of both steps, a number or a schedule.
        alpha: the weight of the new gradient in v; 1 is plain SGDA.
        beta: the same in w.
        sync_estimator: as in FGDA.
        matrix_x: the rule for A, such as Adam or AdaBelief of fedsys.algorithms.adaptive.
        matrix_y: the rule for B.
        local_steps: q, the steps of a round.
    """

    matrix_x: DiagonalRule = field(default_factory=Adam)
    matrix_y: DiagonalRule = field(default_factory=Adam)

    def init(self, oracle: Minimax, sync: Sync) -> AdaFGDAState:
        """A_1 and B_1 need an exchange before the first step."""
        w, v = self._first_estimators(oracle)
        memory_x, memory_y = self.matrix_x.start(w[0]), self.matrix_y.start(v[0])

        def serve(w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            return w, v, *self._matrices(*self._remember(memory_x, memory_y, w, v))

        mean_w, mean_v, A, B = sync.server(serve, w, v)
        memories = self._remember(memory_x, memory_y, mean_w[0], mean_v[0])
        rows = (memory.expand(len(w), *memory.shape) for memory in memories)
        return AdaFGDAState(oracle.x0, oracle.y0, w, v, A, B, *rows)

    def step(self, s: AdaFGDAState, oracle: Minimax, sync: Sync) -> AdaFGDAState:
        """One iteration of Algorithm 1."""
        agreed = self._agree(s, sync) if sync else s
        eta = rate_at(self.eta, oracle.step)
        down, up = agreed.w / agreed.A, agreed.v / agreed.B
        x, y = self._move(agreed.x, agreed.y, down, up, oracle, eta)
        w, v = self._estimators(s, agreed, x, y, oracle, sync)
        return replace(agreed, x=x, y=y, w=w, v=v)

    def _agree(self, s: AdaFGDAState, sync: Sync) -> AdaFGDAState:
        """Lines 5 and 6, by the server: the means, and A and B with them."""
        memory_x, memory_y = s.memory_x[0], s.memory_y[0]

        def serve(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            return x, y, w, v, *self._matrices(*self._remember(memory_x, memory_y, w, v))

        x, y, w, v, A, B = sync.server(serve, s.x, s.y, s.w, s.v)
        new_x, new_y = self._remember(memory_x, memory_y, w[0], v[0])
        memories = new_x.expand_as(s.memory_x), new_y.expand_as(s.memory_y)
        return AdaFGDAState(x, y, w, v, A, B, *memories)

    def _remember(
        self, memory_x: Tensor, memory_y: Tensor, w: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the rules keep of a round with averaged estimators w and v."""
        return self.matrix_x.remember(memory_x, w), self.matrix_y.remember(memory_y, v)

    def _matrices(self, memory_x: Tensor, memory_y: Tensor) -> tuple[Tensor, Tensor]:
        return self.matrix_x.diagonal(memory_x), self.matrix_y.diagonal(memory_y)
