"""Constants and gaps of affine operators z -> M z + b, by linear algebra."""

from __future__ import annotations

import torch
from torch import Tensor


def spectral_cocoercivity(J: Tensor) -> float:
    """Return the largest ell of the Jacobians [n, d, d], where 1/ell = min Re(1/eigenvalue).

    This is how the authors of arXiv:2306.05100 compute ell. Eigenvalues that are zero up to
    rounding are ignored: they belong to variables that a client does not have.
    """
    used = ((J != 0).any(0) | (J != 0).any(0).T).any(0)  # the other variables have eigenvalue 0
    if not used.any():
        return 0.0
    eigenvalues = torch.linalg.eigvals(J[:, used][:, :, used])
    sizes = eigenvalues.abs()
    counted = sizes > 1e-12 * sizes.amax(1, keepdim=True)
    smallest = torch.where(counted, eigenvalues.real / sizes.square(), torch.inf).min()
    return float(1 / smallest) if smallest > 1e-12 else float("inf")


def cocoercivity(J: Tensor) -> float:
    """Return the exact ell of z -> J z, the smallest with ||J u||^2 <= ell <J u, u>."""
    return generalised_largest(J.T @ J, (J + J.T) / 2)


def generalised_largest(A: Tensor, S: Tensor) -> float:
    """Return the smallest ell with A <= ell S, for A >= 0.

    It is the largest eigenvalue of S^-1/2 A S^-1/2. It is infinite if S has a negative eigenvalue,
    or if A does not vanish on the null space of S.
    """
    values, vectors = torch.linalg.eigh(S)
    tolerance = 1e-12 * values[-1].abs().clamp(min=1e-300)
    null = vectors[:, values.abs() <= tolerance]
    A_on_null = torch.linalg.matrix_norm(null.T @ A @ null)
    if values[0] < -tolerance or A_on_null > 1e-12 * torch.linalg.matrix_norm(A):
        return float("inf")
    root = (vectors / values.sqrt())[:, values > tolerance]
    return float(torch.linalg.eigvalsh(root.T @ A @ root)[-1]) if root.numel() else 0.0


def symmetric_spectrum(M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of the symmetric part of M."""
    values, vectors = torch.linalg.eigh((M + M.T) / 2)
    return values, vectors


def affine_gap(
    M: Tensor,
    b: Tensor,
    x: Tensor,
    centre: Tensor,
    D: float,
    spectrum: tuple[Tensor, Tensor] | None = None,
) -> float:
    """Return the sup over ||u|| <= D of <M (c + u) + b, x - c - u>, where c is the centre.

    This is a trust-region problem, solved exactly. With F = M c + b and w = x - c the function is
    <F, w> + <M'w - F, u> - u'S u, S = sym(M) >= 0. Its maximiser is u = (2 S + 2 t I)^-1 g,
    g = M'w - F, with t >= 0 such that ||u|| <= D. `spectrum` is `symmetric_spectrum(M)`, if known.
    """
    F, w = M @ centre + b, x - centre
    g = M.T @ w - F
    values, vectors = symmetric_spectrum(M) if spectrum is None else spectrum
    values = values.clamp(min=0)
    c = vectors.T @ g

    def norm(t: float) -> float:
        return float((c / (2 * (values + t)).clamp(min=1e-300)).norm())

    t = 0.0
    if norm(0.0) > D:
        low, high = 0.0, float(c.norm()) / (2 * D)
        for _ in range(200):
            t = (low + high) / 2
            if t in (low, high):  # there is no floating-point number in between
                break
            low, high = (t, high) if norm(t) > D else (low, t)
        t = high
    u = c / (2 * (values + t)).clamp(min=1e-300)
    u = torch.where(c == 0, torch.zeros_like(u), u)
    # u = x - c gives 0, so a negative value is a rounding error.
    return max(0.0, float(F @ w + c @ u - (values * u.square()).sum()))
