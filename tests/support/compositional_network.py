"""Compositional AUC of a 5-3-1 network, once more by hand: flat vectors and an explicit Hessian."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transcriptions.localscgdam import localscgdam

from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.models import MLP
from fedsys.problems import CompositionalAUC
from support.cases import CLIENTS, RARE, SEED, Clouds

STEPS, RHO = 25, 0.3
PROBLEM = CompositionalAUC(Clouds(), model=MLP(hidden=[3]), batch_size=4, imbalance=RARE, rho=RHO)
INIT = 2**20  # the first draw of `init`


def logits(x: Tensor, inputs: Tensor) -> Tensor:
    """Of the network in the flat vector x = (a, b, W1, b1, W2, b2)."""
    W1, b1, W2, b2 = x[2:17].view(3, 5), x[17:20], x[20:23], x[23]
    return torch.relu(inputs @ W1.T + b1) @ W2 + b2


def cross_entropy(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    z = logits(x, inputs)
    return -(labels * z.sigmoid().log() + (1 - labels) * (1 - z.sigmoid()).log()).mean()


def auc_loss(x: Tensor, y: Tensor, inputs: Tensor, labels: Tensor, p: float) -> Tensor:
    """Zhang et al. (NeurIPS 2023), arXiv:2304.10101, eq. (1)."""
    s, a, b, dual = logits(x, inputs).sigmoid(), x[0], x[1], y[0]
    positive, negative = labels, 1 - labels
    per_sample = (
        (1 - p) * (s - a) ** 2 * positive
        + p * (s - b) ** 2 * negative
        + 2 * (1 + dual) * (p * s * negative - (1 - p) * s * positive)
    )
    return per_sample.mean() - p * (1 - p) * dual**2


def localscgdam_steps() -> Iterator[dict[str, np.ndarray]]:
    """The transcription with the default numbers, Table 2 of the paper, and rounds of 4."""
    torch.set_num_threads(1)
    oracle = PROBLEM.oracle(Site(Placement(CLIENTS), seed=SEED, dtype=torch.float64))
    batches = oracle.data.batches
    p = float(torch.cat(batches.whole.labels).double().mean())

    def sample(k: int, t: int, draw: int) -> tuple[Tensor, Tensor]:
        batch = batches.at(max(t, 0), draw + INIT * (t < 0))
        return batch.inputs[k], batch.labels[k].double()

    def inner(k: int, x: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = sample(k, t, 1)
        point = torch.from_numpy(x).requires_grad_()
        (g,) = torch.autograd.grad(cross_entropy(point, inputs, labels), point)
        H = torch.autograd.functional.hessian(
            lambda w: cross_entropy(w, inputs, labels), point.detach()
        )
        return x - RHO * g.numpy(), np.eye(len(x)) - RHO * H.numpy()

    def outer(k: int, h: np.ndarray, y: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        inputs, labels = sample(k, t, 0)
        points = torch.from_numpy(h).requires_grad_(), torch.from_numpy(y).requires_grad_()
        gh, gy = torch.autograd.grad(auc_loss(*points, inputs, labels, p), points)
        return gh.numpy(), gy.numpy()

    numbers = {"alpha": 3.0, "beta_x": 3.3, "beta_y": 3.3}
    rates = {"eta": lambda t: 0.3, "gamma_x": lambda t: 0.33, "gamma_y": lambda t: 0.33}
    start = oracle.x0[0].numpy(), oracle.y0[0].numpy()
    with torch.enable_grad():
        yield from localscgdam(inner, outer, *start, CLIENTS, STEPS, 4, **numbers, **rates)
