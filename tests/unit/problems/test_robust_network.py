"""Robust network training: Huang et al. (AISTATS 2024), arXiv:2211.07303, eq. (14)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.cases import ROBUST, Case, Clouds, Drive
from torch import Tensor

import fedsys
from fedsys.algorithms import LSGD, CoDA, LocalSGDA, LocalSGDAM
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.models import MLP
from fedsys.problems import RobustNetwork
from fedsys.problems.networks.robust_network import RobustNetworkOracle

PROBLEM = RobustNetwork(Clouds(), model=MLP([3]), batch_size=None)
CLIENTS, WIDTH = 4, 5


def oracle_of(problem: RobustNetwork = PROBLEM) -> RobustNetworkOracle:
    return problem.oracle(Site(Placement(CLIENTS), seed=1, dtype=torch.float64))


def unmetered() -> Sync:
    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(CLIENTS), Every(1))
    return communicator.unmetered()


def points(oracle: RobustNetworkOracle, seed: int = 0) -> Tensor:
    """A different point for each client."""
    numbers = np.random.default_rng(seed).standard_normal(tuple(oracle.z0.shape))
    return torch.from_numpy(numbers)


def forward(weights: dict[str, Tensor], inputs: np.ndarray) -> np.ndarray:
    """The logits of a network with one hidden layer, in NumPy."""
    w = {name: value.numpy() for name, value in weights.items()}
    hidden = np.maximum(inputs @ w["0.weight"].T + w["0.bias"], 0)
    return hidden @ w["2.weight"].T + w["2.bias"]


def test_the_loss_is_the_mean_cross_entropy_of_the_perturbed_samples() -> None:
    oracle = oracle_of()
    z, whole = points(oracle), oracle.draw()
    for client, loss in enumerate(oracle.losses(z, whole).tolist()):
        weights = oracle.named(z[client])
        perturbed = whole.inputs[client].numpy() + weights["nu"].numpy()
        logits, labels = forward(weights, perturbed), whole.labels[client].numpy()
        right = logits[np.arange(len(labels)), labels]
        assert loss == pytest.approx((np.log(np.exp(logits).sum(1)) - right).mean(), rel=1e-12)


def test_the_gradients_of_both_players_are_the_slopes_of_the_loss() -> None:
    oracle = oracle_of()
    z, whole, h = points(oracle), oracle.draw(), 1e-6
    gx, gy = oracle.grads(z[:, :-WIDTH], z[:, -WIDTH:], whole)
    assert gy.shape == (CLIENTS, WIDTH)
    gradient = torch.cat([gx, gy], dim=1)
    for k, e in enumerate(h * torch.eye(z.shape[1], dtype=z.dtype)):
        slope = (oracle.losses(z + e, whole) - oracle.losses(z - e, whole)) / (2 * h)
        torch.testing.assert_close(gradient[:, k], slope, rtol=1e-6, atol=1e-8)
    assert torch.equal(oracle.operator(z, whole), torch.cat([gx, -gy], dim=1))


@pytest.mark.parametrize("radius", [1.0, 0.25])
def test_the_perturbation_is_projected_and_the_network_is_not(radius: float) -> None:
    oracle = oracle_of(RobustNetwork(Clouds(), model=MLP([3]), radius=radius))
    z = points(oracle)
    x, nu = z[:, :-WIDTH], z[:, -WIDTH:]
    assert nu.norm(dim=1).min() > radius
    expected = radius * nu / nu.norm(dim=1, keepdim=True)
    torch.testing.assert_close(oracle.prox_y(nu, 0.1), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(oracle.prox_y(expected / 2, 0.1), expected / 2, rtol=0, atol=0)
    assert oracle.prox_x(x, 0.1) is x
    both = torch.cat([x, oracle.prox_y(nu, 0.1)], dim=1)
    assert torch.equal(oracle.prox(z, 0.1), both)
    assert torch.equal(oracle.mirror(z, 0.1), both)


@pytest.mark.parametrize(
    "algorithm",
    [
        LocalSGDA(lr_x=0.5, lr_y=2.0, local_steps=4),
        LSGD(lr=2.0, local_steps=4),
        CoDA(lr=2.0, local_steps=4, decay_at=()),
        LocalSGDAM(eta=0.3, gamma_x=1.0, gamma_y=7.0, local_steps=4, decay_at=()),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_an_algorithm_keeps_every_client_in_the_ball_and_reaches_its_surface(
    algorithm: Algorithm[Any, Any],
) -> None:
    drive = Drive(Case(algorithm, ROBUST), LocalTransport())
    states = torch.stack([algorithm.solution(state) for state in drive.states(20)])
    norms = states[:, :, -WIDTH:].norm(dim=2)
    assert norms[0].max() == 0
    assert norms.max() <= 1 + 1e-12
    assert (norms > 1 - 1e-12).sum() >= 20  # after local steps; a mean of such points is inside


def test_both_accuracies_are_computed_on_the_whole_test_set() -> None:
    oracle = oracle_of()
    z = points(oracle)[:1].expand_as(oracle.z0)
    weights, data = oracle.named(z[0]), Clouds().load()
    inputs, labels = data.test_inputs.numpy(), data.test_labels.numpy()
    clean, perturbed = (
        (forward(weights, inputs + nu).argmax(1) == labels).mean()
        for nu in (0.0, weights["nu"].numpy())
    )
    assert clean != perturbed
    metrics = oracle.evaluate(z, unmetered())
    assert metrics["test_accuracy"] == pytest.approx(clean, abs=1e-6)
    assert metrics["test_accuracy_perturbed"] == pytest.approx(perturbed, abs=1e-6)
    assert metrics["train_loss"] == pytest.approx(float(oracle.losses(z, oracle.draw()).mean()))


def test_a_network_learns_the_digits_against_the_worst_perturbation() -> None:
    algorithm = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=10)
    result = fedsys.run(RobustNetwork(model=MLP([32, 32])), algorithm, rounds=30, clients=4)
    first, last = result.records[0], result.records[-1]
    for name in ("test_accuracy", "test_accuracy_perturbed"):
        assert first[name] < 0.3
        assert last[name] > 0.85
    assert 0.9 < result.variables["nu"].norm() <= 1 + 1e-6


def test_a_ball_of_radius_zero_is_refused() -> None:
    with pytest.raises(InputError, match="radius must be positive, got 0"):
        RobustNetwork(radius=0)
