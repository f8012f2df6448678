"""ProxSkip-VIP: the key assumption on estimators, step sizes, probabilities and the bound.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100.

Norms are those of the consensus problem, eq. (2): sums over the n clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from fedsys.core.constants import Constants

_ROUNDING = 1 + 1e-9
"""A step size that is computed as the limit of a theorem may exceed it by rounding."""


@dataclass(frozen=True)
class KeyConstants:
    """The constants of Assumption 2.2 on an unbiased estimator g of F.

    E||g_t - F(x*)||^2 <= 2 A <F(x_t) - F(x*), x_t - x*> + B sigma_t^2 + D1
    E sigma_{t+1}^2    <= 2 C <F(x_t) - F(x*), x_t - x*> + (1 - rho) sigma_t^2 + D2
    """

    A: float
    B: float = 0.0
    C: float = 0.0
    D1: float = 0.0
    D2: float = 0.0
    rho: float = 1.0

    @property
    def weight(self) -> float:
        """M, the weight of sigma_t^2 in V_t: 2 B / rho of Corollary 3.2."""
        return 2 * self.B / self.rho

    def largest_step(self, mu: float) -> float:
        """Return the limit of Theorem 3.1, min(1/mu, 1/(2 (A + M C)))."""
        return min(1 / mu, 1 / (2 * (self.A + self.weight * self.C)))


@dataclass(frozen=True)
class LyapunovBound:
    """Theorem 3.1 for one run: E V_t <= (1 - tau)^t V_0 + gamma^2 (D1 + M D2) / tau.

    V_t = ||x_t - x*||^2 + (gamma/p)^2 ||h_t - F(x*)||^2 + M gamma^2 sigma_t^2
    """

    tau: float
    neighbourhood: float

    def at(self, steps: int, V_0: float) -> float:
        """Return the bound after so many steps."""
        return float((1 - self.tau) ** steps * V_0 + self.neighbourhood)


def lyapunov_bound(key: KeyConstants, mu: float, gamma: float, p: float) -> LyapunovBound | None:
    """Return the bound of Theorem 3.1 with M = 2 B / rho; None if it does not cover gamma.

    tau = min(gamma mu, p^2, rho - B/M), and B/M = rho/2 unless B = 0.
    """
    known = isfinite(key.A) and isfinite(key.D1) and isfinite(key.D2)
    if not known or mu <= 0 or gamma > key.largest_step(mu) * _ROUNDING:
        return None
    memory = key.rho / 2 if key.B > 0 else key.rho
    tau = min(1.0, gamma * mu, p**2, memory)
    return LyapunovBound(tau, gamma**2 * (key.D1 + key.weight * key.D2) / tau)


def unified_step(key: KeyConstants, mu: float) -> float:
    """Return the largest gamma of Corollary 3.2 for any accuracy: also at most rho/(2 mu)."""
    return min(key.largest_step(mu), key.rho / (2 * mu))


def draw_constants(ell: float, sigma: float, clients: int, single_samples: bool) -> KeyConstants:
    """Return the constants of a draw g(x; xi), with variance sigma^2 of each client at x*.

    Single samples have those of Lemma 3.4, A = ell and D1 = 2 sigma_*^2. The operator itself, with
    or without additive noise, needs no Young inequality: ||F(x) - F(x*)||^2 <= ell <...> is the
    assumption with A = ell / 2, and the noise adds D1 = sigma_*^2. sigma_*^2 is that of all clients
    together, at most n sigma^2.
    """
    variance = clients * sigma**2
    if single_samples:
        return KeyConstants(A=ell, D1=2 * variance)
    return KeyConstants(A=ell / 2, D1=variance)


def memory_constants(ell: float, refreshed: tuple[float, float]) -> KeyConstants:
    """Return the constants of Lemma 3.8 for an estimator that remembers operators of samples.

    `refreshed` has the lowest and the highest chance, over the clients, that a sample's memory is
    renewed in a step: (q, q) for L-SVRG. SAGA (Aleksandr Beznosikov, Eduard Gorbunov, Hugo Berard,
    Nicolas Loizou. Stochastic Gradient Descent-Ascent: Unified Theory and New Efficient Methods.
    AISTATS 2023. arXiv:2202.07262) has the same proof with the chance of being drawn.
    """
    low, high = refreshed
    return KeyConstants(A=ell, B=2.0, C=high * ell / 2, rho=low)


def quantised_constants(key: KeyConstants, omega: float, F_star: float, n: int) -> KeyConstants:
    """Return the constants of Q(g), for E Q(v) = v and E||Q(v) - v||^2 <= omega ||v||^2.

    E||Q(g) - F(x*)||^2 = E||Q(g) - g||^2 + E||g - F(x*)||^2, and ||g||^2 in the first part is at
    most 2 ||g - F(x*)||^2 + 2 ||F(x*)||^2. F_star is the root mean square of ||F_i(z*)|| over the n
    clients.
    """
    factor = 1 + 2 * omega
    heterogeneity = 0.0 if omega == 0 else 2 * omega * n * F_star**2
    return KeyConstants(
        factor * key.A, factor * key.B, key.C, factor * key.D1 + heterogeneity, key.D2, key.rho
    )


def quantisation_variance(dim: int, levels: int) -> float:
    """Return omega = min(d/s^2, sqrt(d)/s) of random quantisation to s levels.

    Dan Alistarh, Demjan Grubic, Jerry Li, Ryota Tomioka, Milan Vojnovic. QSGD:
    Communication-Efficient SGD via Gradient Quantization and Encoding. NeurIPS 2017.
    arXiv:1610.02132, Lemma 3.1.
    """
    return float(min(dim / levels**2, dim**0.5 / levels))


def refresh_chance(samples: int, batch_size: int) -> float:
    """Return the chance that a sample is among `batch_size` draws with replacement."""
    return float(1 - (1 - 1 / samples) ** batch_size)


def cocoercivity(c: Constants, kind: str, single_samples: bool) -> float:
    """Return max_i ell_i, or max_ij ell_ij of single samples.

    `kind` is "spectral", the formula of Appendix G, or "exact", the definition.
    """
    if single_samples:
        exact, spectral = c.ell_samples_exact, c.ell_samples_spectral
    else:
        exact, spectral = c.ell_exact, c.ell_spectral
    return exact if kind == "exact" else spectral


def proxskip_step(ell: float, mu: float) -> float:
    """Return gamma of Corollaries 3.5 and 3.6 and of Table 3."""
    return min(0.5 / ell, 0.5 / mu)


def svrgda_step(ell: float, mu: float) -> float:
    """Return gamma of Corollary 3.9."""
    return min(1 / mu, 1 / (6 * ell))


def communication_chance(gamma: float, mu: float) -> float:
    """Return p = sqrt(gamma mu) of Corollaries 3.6 and 3.9."""
    return float(min(1.0, (gamma * mu) ** 0.5))


def reference_chance(gamma: float, mu: float) -> float:
    """Return q = 2 gamma mu of Corollary 3.9."""
    return min(1.0, 2 * gamma * mu)
