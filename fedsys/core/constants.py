"""The constants of a problem that theorems use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf, isfinite


@dataclass(frozen=True)
class Constants:
    """Constants over all clients; infinite where a property does not hold.

    Attributes:
        mu: strong monotonicity, the smallest of the clients'.
        mu_y: strong concavity in y of a game, or strong convexity in y of a lower level, the
            smallest of the clients'.
        L: Lipschitz constant, the largest of the clients'. Of a compositional problem it is that of
            the outer gradients; of a bilevel problem, of the gradients of both levels.
        C_f: bound of the gradients of the outer function.
        C_g: bound of the inner Jacobian; of a bilevel problem, of the mixed derivatives of g.
        L_g: Lipschitz constant of the same; of a bilevel problem, of all second derivatives of g.
        ell_spectral: co-coercivity of the clients' operators by the papers' formula
            1/ell = min Re(1/eigenvalue) (Zhang et al., ICLR 2024, Appendix G), the largest. Their
            step sizes use it; for a Jacobian that is not normal it is too small.
        ell_exact: the same by definition, 1/ell = smallest eigenvalue of sym(J^-1).
        ell_samples_spectral: the largest over all single samples by the papers' formula.
        ell_samples_exact: what Assumptions 4.1 and 4.3 need, max_i of the largest eigenvalue of
            S^-1/2 E_j[J_ij' J_ij] S^-1/2 with S = sym(J_i).
        beta: co-coercivity of the mean operator.
        sigma: standard deviation of a client's stochastic operator (at the solution).
        F_star: root mean square of ||F_m(z*)|| over the clients, at a known solution.
        xi: heterogeneity, the largest ||F_m(z) - F(z)|| within the radius.
        G: bound of ||F||; of an affine operator within the radius only.
        Lambda: second-order boundedness (Assumption 1 of Wang and Kale, 2026, arXiv:2602.09164).
        radius: D, the radius of the ball that the gap is taken over.
        dim: d.
        affine: whether the operator is.
        monotone: whether the operators of all clients are.
        exact: whether they hold everywhere, rather than where they were measured; bounds need that.
        source: how they were found, for the reader.
    """

    mu: float = 0.0
    mu_y: float = 0.0
    L: float = inf
    C_f: float = inf
    C_g: float = inf
    L_g: float = inf
    ell_spectral: float = inf
    ell_exact: float = inf
    ell_samples_spectral: float = inf
    ell_samples_exact: float = inf
    beta: float = inf
    sigma: float = 0.0
    F_star: float = inf
    xi: float = 0.0
    G: float = inf
    Lambda: float = inf
    radius: float = 1.0
    dim: int = 1
    affine: bool = False
    monotone: bool = True
    exact: bool = True
    source: str = ""

    def finite(self) -> dict[str, float]:
        """The constants that have a value, by name."""
        numbers = {name: v for name, v in asdict(self).items() if name not in ("exact", "source")}
        return {name: float(v) for name, v in numbers.items() if isfinite(v)}


@dataclass(frozen=True)
class Theory:
    """A problem's constants and the length of a run: all that a theorem's step size needs."""

    constants: Constants
    clients: int
    steps: int | None = None
    rounds: int | None = None
    finite_sum: bool = False
    """Whether single samples are drawn, rather than the full operator with or without noise."""
    chosen: frozenset[str] = frozenset()
    """The hyperparameters that were left to the theory; the user gave the others."""
    terms: bool = False
    """Whether the problem has a composite term or a constraint."""
    exact_means: bool = True
    """Whether communication takes the mean of all clients, with equal weights and without loss."""
    samples: tuple[int, int] = (1, 1)
    """The fewest and the most samples of a client, if single samples are drawn."""
    batch_size: int = 1
    """The samples of a draw, if single samples are drawn."""

    def covers(self, local_steps: int, *numbers: str) -> bool:
        """Return whether the theorems that state a bound with its constants cover this run.

        They assume monotone operators that are the same on all clients, noise of bounded variance
        (that of single samples is not bounded), exact means, at least one whole round, and their
        own step sizes: `numbers` names the hyperparameters.
        """
        whole = self.steps is None or self.steps >= local_steps
        same = self.constants.monotone and self.constants.xi == 0 and self.constants.exact
        own = self.chosen.issuperset(numbers)
        return whole and same and own and self.exact_means and not self.finite_sum

    def size(self, local_steps: int) -> tuple[float, int]:
        """(R, M): the rounds of K local steps each, and the clients."""
        rounds = self.rounds if self.rounds is not None else (self.steps or 0) / local_steps
        return max(1.0, rounds), self.clients
