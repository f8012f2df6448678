"""Step sizes and bounds of LESGD, LIPPAX, SLIPPAX, LSGD and local dual extrapolation.

Guanghui Wang, Satyen Kale. Faster Rates For Federated Variational Inequalities. 2026.
arXiv:2602.09164. K is the number of local steps, R the number of rounds, M that of clients, D the
radius; a bound is on the gap of the averaged iterate.

Slips of the printed text, with the reading used here:

- Their 1/sqrt(14 K L) is 1/(sqrt(14 K) L), by units and Remark 1; Theorem 24 likewise.
- The proof of Theorem 2 needs 5 L^2 lr^2 <= 1 where there is noise; its bound is given only then.
- The proofs of Theorems 3 and 4 put 1/4 for what an inner step leaves of the squared error. That
  needs lr L <= 0.155; at lr = 1/L it is 3/4. `inner_contraction` is the factor itself. The proofs
  also use 1/L <= 1, and so lose powers of L and lr. See `lippax_bound`.
- Theorem 5 has 3/5 and 1/3 as the powers of L in its second and third term (units), the term
  D sqrt(M) / (sigma sqrt(K R)) of the other theorems, and delta = lr sigma / d^(1/4), which the
  proof needs for eq. (59), where the statement has lr sigma / sqrt(d).
- The second term of Theorem 7 is D^2/3 / (17^1/3 K R^1/3 L^1/3 G^2/3), which minimises the bound of
  the proof, D^2/(lr K R) + 6 sigma^2 lr/M + 17 L G^2 lr^2 K^2 (with L for the printed L^2: one
  drift term of eq. (79) lost its lr), and has the right units. At this step the first and the last
  term are equal, so that the drift counts twice in the bound. The proof bounds the noisy operator
  by G; its 17 has room for noise up to sigma^2 = 2 K G^2.
"""

from __future__ import annotations

from math import ceil, e, isinf, log, nan, sqrt

from fedsys.core.constants import Theory
from fedsys.theory.expressions import monomial, step_limit


def lesgd_theorem(theory: Theory) -> int:
    """Return the theorem that fits: 24 if clients differ, 2 for an affine operator, else 1."""
    return 24 if theory.constants.xi > 0 else 2 if theory.constants.affine else 1


def lesgd_step(theory: Theory, K: int, theorem: int) -> float:
    """Return eta of Theorem 1, 2 or 24."""
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma, xi = c.radius, c.L, c.sigma, c.xi
    noise = monomial(K, 2 / 3, R, 1 / 3, sigma, 2 / 3, L, 1 / 3)
    if theorem == 24:
        return min(
            1 / (sqrt(K) * L),
            step_limit(D * sqrt(M), sigma * sqrt(K * R)),
            step_limit(monomial(D, 2 / 3), noise),
            step_limit(monomial(D, 2 / 3), monomial(xi, 2 / 3, K, 1, R, 1 / 3, L, 1 / 3)),
            step_limit(D, monomial(xi * sigma, 1 / 2, K, 3 / 4, R, 1 / 2)),
            step_limit(D, xi * K * sqrt(R)),
        )
    first = 1 / (sqrt(14 * K) * L) if theorem == 1 else 1 / L
    factor = monomial(936, 1 / 3, e, 2 / 3) if theorem == 1 else monomial(180, 1 / 3)
    return min(
        first,
        step_limit(D * sqrt(M), sigma * sqrt(6 * K * R)),
        step_limit(monomial(D, 2 / 3), factor * noise),
    )


def lesgd_bound(theory: Theory, K: int, theorem: int, eta: float) -> float | None:
    """Return eq. (6) or (7); Theorem 24 states its bound up to a constant only."""
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma = c.radius, c.L, c.sigma
    noise = monomial(D, 4 / 3, sigma, 2 / 3, L, 1 / 3) / monomial(K, 1 / 3, R, 2 / 3)
    average = D * sigma / sqrt(M * K * R)
    if theorem == 24:
        return None
    if theorem == 2:
        proved = sigma == 0 or sqrt(5) * L * eta <= 1
        if not (c.affine and proved):
            return None
        return 2 * L * D**2 / (K * R) + 2 * sqrt(6) * average + 20 * noise
    return 12 * L * D**2 / (sqrt(K) * R) + 6 * average + 26 * noise


def lippax_step(theory: Theory, K: int, theorem: int) -> float:
    """Return eta of Theorem 3 or 4, with 3/5 for the printed power 2/5 of L."""
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma = c.radius, c.L, c.sigma
    fifth = monomial(K, 3 / 5, R, 1 / 5, sigma, 2 / 5, L, 3 / 5)
    third = monomial(K, 2 / 3, R, 1 / 3, L, 1 / 3, sigma, 2 / 3)
    first = (1 / L, step_limit(D * sqrt(M), sigma * sqrt(K * R)))
    if theorem == 3:
        return min(
            *first,
            step_limit(monomial(D, 2 / 5), monomial(60 * e, 1 / 5) * fifth),
            step_limit(monomial(D, 2 / 3), monomial(54 * e, 1 / 3) * third),
            step_limit(D, sigma * sqrt(15 * K * R)),
        )
    return min(
        *first,
        step_limit(monomial(D, 2 / 5), fifth),
        step_limit(monomial(D, 2 / 3), third),
        step_limit(sqrt(D), monomial(K * R, 1 / 4, sigma * L, 1 / 2)),
        step_limit(monomial(D, 1 / 3), monomial(c.Lambda, 1 / 3, sigma, 2 / 3, K * R, 1 / 6)),
    )


def slippax_step(theory: Theory, K: int) -> float:
    """Return eta of Theorem 5."""
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma, d = c.radius, c.L, c.sigma, c.dim
    fifth = monomial(sigma, 2 / 5, L, 3 / 5, d, 1 / 10, K, 3 / 5, R, 1 / 5)
    return min(
        1 / L,
        step_limit(D * sqrt(M), sigma * sqrt(K * R)),
        step_limit(sqrt(D), monomial(K * R, 1 / 4, L * sigma, 1 / 2, d, 1 / 8)),
        step_limit(monomial(D, 2 / 5), fifth),
        step_limit(monomial(D, 2 / 3), monomial(K, 2 / 3, R, 1 / 3, sigma, 2 / 3, L, 1 / 3)),
    )


def smoothing_radius(eta: float, sigma: float, d: int) -> float:
    """Return delta = eta sigma / d^(1/4) of Theorem 5."""
    return eta * sigma / monomial(d, 1 / 4)


def inner_step(eta: float, L: float) -> float:
    """Return gamma = 1 / (eta (L + 1/eta)^2) of Theorems 3 to 5."""
    return 1 / (eta * (L + 1 / eta) ** 2)


def inner_contraction(eta: float, gamma: float, L: float) -> float:
    """Return what an inner step leaves of the squared distance to the proximal point.

    q = 1 - 2 gamma/eta + gamma^2 (L + 1/eta)^2.
    """
    return max(0.0, 1 - 2 * gamma / eta + (gamma * (L + 1 / eta)) ** 2)


def inner_steps(theory: Theory, K: int, contraction: float) -> float:
    """Return H = 2 ln(K R) / ln(1/q), rounded up; NaN if an inner step does not contract."""
    R, _ = theory.size(K)
    left = 1 / max(2, K * R) ** 2
    if contraction <= left:
        return 1
    return ceil(log(left) / log(contraction)) if contraction < 1 else nan


def lippax_bound(
    theory: Theory, K: int, theorem: int, eta: float, gamma: float, H: float
) -> float | None:
    """Return eq. (8) or (10), for operators with bounded values (and Hessians, in Theorem 4).

    With q of `inner_contraction` and q^H for the printed 4^-H, the gap is in Theorem 3 at most

        D^2/(lr K R) + 2 sigma^2 lr/M + 60 e K^2 L^3 sigma^2 lr^4 + 54 e K L sigma^2 lr^2
        + 15 lr sigma^2 + (60 e K^2 L^3 lr^4 + 30 lr) G^2 q^H,

    and in Theorem 4 at most

        120 (D^2/(lr K R) + K^2 L^3 sigma^2 lr^4 + K L sigma^2 lr^2 + L^2 sigma^2 lr^3
        + Lambda^2 sigma^4 lr^5 + sigma^2 lr/M) + (120 Lambda^2 G^2 lr^5 + 60 lr
        + 120 K^2 L^3 lr^4) G^2 q^H.

    So the factor of sigma D / sqrt(K R) in eq. (8) is 2 sqrt(15), not 4.
    """
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma, G = c.radius, c.L, c.sigma, c.G
    if c.affine or isinf(G) or (theorem == 4 and isinf(c.Lambda)):
        return None
    fifth = monomial(D, 8 / 5, sigma, 2 / 5, L, 3 / 5) / monomial(K, 2 / 5, R, 4 / 5)
    third = monomial(D, 4 / 3, L, 1 / 3, sigma, 2 / 3) / monomial(K, 1 / 3, R, 2 / 3)
    average = D * sigma / sqrt(M * K * R)
    inner = G**2 * monomial(inner_contraction(eta, gamma, L), H)
    if theorem == 3:
        return (
            L * D**2 / (K * R)
            + 2 * sqrt(15) * sigma * D / sqrt(K * R)
            + 2 * monomial(60 * e, 1 / 5) * fifth
            + 2 * monomial(54 * e, 1 / 3) * third
            + 4 * average
            + (60 * e * K**2 * L**3 * eta**4 + 30 * eta) * inner
        )
    lower = monomial(D, 3 / 2, sigma * L, 1 / 2) / monomial(K * R, 3 / 4)
    powers = monomial(D, 5 / 3, c.dim, 1 / 6, c.Lambda, 1 / 3, sigma, 2 / 3)
    curved = powers / monomial(K * R, 5 / 6)
    main = D**2 * L / (K * R) + third + average + fifth + lower + curved
    curvature = 120 * c.Lambda**2 * G**2 * eta**5
    return 240 * main + (curvature + 60 * eta + 120 * K**2 * L**3 * eta**4) * inner


def lsgd_step(theory: Theory, K: int) -> float:
    """Return eta of Theorem 6, for a co-coercive operator."""
    c, R, M = theory.constants, *theory.size(K)
    D, L, sigma = c.radius, c.L, c.sigma
    third = sqrt(2) * monomial(K, 2 / 3, R, 1 / 3, L, 1 / 3, sigma, 2 / 3)
    return min(
        1 / c.beta,
        step_limit(D * sqrt(M), sqrt(K * R) * sigma),
        step_limit(monomial(D, 2 / 3), third),
    )


def lsgd_bound(theory: Theory, K: int) -> float | None:
    """Return eq. (12), for a co-coercive operator."""
    c, R, M = theory.constants, *theory.size(K)
    if isinf(c.beta):
        return None
    D, L, sigma = c.radius, c.L, c.sigma
    return (
        4 * c.beta * D**2 / (K * R)
        + 4 * sigma * D / sqrt(M * K * R)
        + 8 * monomial(D, 4 / 3, L, 1 / 3, sigma, 2 / 3) / monomial(K, 1 / 3, R, 2 / 3)
    )


def lde_step(theory: Theory, K: int) -> float:
    """Return eta of Theorem 7."""
    c, R, M = theory.constants, *theory.size(K)
    D, L = c.radius, c.L
    drift = monomial(17, 1 / 3) * monomial(K, 1, R, 1 / 3, L, 1 / 3, c.G, 2 / 3)
    return min(
        step_limit(D * sqrt(M), c.sigma * sqrt(6 * K * R)),
        step_limit(monomial(D, 2 / 3), 0 if isinf(c.G) else drift),
        1 / (sqrt(10) * L),
    )


def lde_bound(theory: Theory, K: int) -> float | None:
    """Return eq. (14); it is the one bound that holds with a composite term."""
    c, R, M = theory.constants, *theory.size(K)
    if c.affine or isinf(c.G) or c.sigma**2 > 2 * K * c.G**2:
        return None
    D, L = c.radius, c.L
    powers = monomial(L, 1 / 3, D, 4 / 3, c.G, 2 / 3)
    drift = 2 * monomial(17, 1 / 3) * powers / monomial(R, 2 / 3)
    average = 2 * sqrt(6) * D * c.sigma / sqrt(M * K * R)
    return average + drift + sqrt(10) * D**2 * L / (K * R)


def gda_step(beta: float) -> float:
    """Return 1 / (2 ell) of gradient descent-ascent, ell the co-coercivity of the mean operator."""
    return 1 / (2 * beta)


def eg_step(L: float) -> float:
    """Return 1 / (4 L) of extra-gradient."""
    return 1 / (4 * L)
