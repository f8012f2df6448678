"""Step sizes and probabilities of ProxSkip-VIP-FL and ProxSkip-L-SVRGDA-FL.

Siqi Zhang, Sayantan Choudhury, Sebastian U. Stich, Nicolas Loizou. Communication-Efficient Gradient
Descent-Accent Methods for Distributed Variational Inequalities: Unified Analysis and Local Updates.
ICLR 2024. arXiv:2306.05100.
"""

from __future__ import annotations

from fedsys.core.constants import Constants


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
    """Return gamma of Corollary 3.6 and Table 3."""
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
