"""The ratio loss of a logistic model with its monitor, in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from transcriptions.localsgdm_rl import localsgdm_rl

from fedsys.algorithms import LocalSGDMRL
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Imbalance
from fedsys.models import MLP
from support.cases import CLIENTS, MONITORED, SEED

STEPS = 40
LOGISTIC = replace(MONITORED, model=MLP([]), imbalance=Imbalance(0.3), ratio_weight=0.2)
ALGORITHM = LocalSGDMRL(
    lr=0.3, momentum=0.6, local_steps=4, decay_at=(0.5, 0.75), total_steps=STEPS
)


def transcribed() -> Iterator[dict[str, np.ndarray]]:
    """Run the transcription on a logistic model x = (w, b)."""
    oracle = LOGISTIC.oracle(Site(Placement(CLIENTS), SEED, torch.float64, kind="monitored"))

    def slope(x: np.ndarray, inputs: np.ndarray, labels: np.ndarray, w: np.ndarray) -> np.ndarray:
        error = w * (1 / (1 + np.exp(-inputs @ x[:5] - x[5])) - labels)
        return np.append(error @ inputs, error.sum()) / len(labels)

    def gradient(i: int, x: np.ndarray, alpha: np.ndarray, t: int) -> np.ndarray:
        batch = oracle.data.batches.at(t, 0)
        labels = batch.labels[i].numpy()
        return slope(x, batch.inputs[i].numpy(), labels, alpha[labels])

    def class_gradient(q: int, x: np.ndarray) -> np.ndarray:
        inputs = oracle._auxiliary[q].numpy()
        return slope(x, inputs, np.full(len(inputs), q), np.ones(len(inputs)))

    return localsgdm_rl(
        gradient, class_gradient, slice(0, 5), oracle.x0[0].numpy(), CLIENTS, STEPS,
        lambda t: 0.3 / 10 ** ((t >= 20) + (t >= 32)), 0.6, 4, 0.2,
    )  # fmt: skip
