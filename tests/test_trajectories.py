"""The paper is the test: each algorithm against its pseudocode, and against numbers by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import CLIENTS, SEED, Case, Drive
from processes import Ranks, connected
from torch import Tensor
from transcriptions.fedavg import fedavg
from transcriptions.local_sgda import local_sgda

from fedsys import algorithms
from fedsys.algorithms import Algorithm, FedAvg, LocalSGDA
from fedsys.communication import LocalTransport
from fedsys.problems import MinimaxProblem, MinimisationProblem, Oracle, Problem, QuadraticGame
from fedsys.random import generator

STEPS = 200
Fields = dict[str, np.ndarray]


def matrices(seed: int, rows: int, columns: int) -> np.ndarray:
    """A different matrix for each client."""
    return np.random.default_rng(seed).standard_normal((CLIENTS, rows, columns)) / 2


# min over x of the mean of x'A_i x / 2 + sum log cosh x + (b_i + noise)'x, A_i positive definite.

A = matrices(1, 3, 3) @ matrices(1, 3, 3).swapaxes(1, 2) + 0.2 * np.eye(3)
B, C = matrices(2, 3, 2), matrices(3, 2, 2) @ matrices(3, 2, 2).swapaxes(1, 2) + 0.3 * np.eye(2)
b, c = matrices(4, 3, 1)[:, :, 0], matrices(5, 2, 1)[:, :, 0]
X0, Y0 = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.5])


def loss(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    linear = torch.from_numpy(b[client] + 0.1 * rng.standard_normal(3))
    return x @ torch.from_numpy(A[client]) @ x / 2 + x.cosh().log().sum() + linear @ x


def gradient(client: int, x: np.ndarray, t: int) -> np.ndarray:
    noise = generator(SEED, "function", client, t, 0).standard_normal(3)
    return A[client] @ x + np.tanh(x) + b[client] + 0.1 * noise


# min over x, max over y of the mean of x'A_i x / 2 + x'B_i y - y'C_i y / 2 + b_i'x - c_i'y + noise.


def game(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
    A_, B_, C_ = (torch.from_numpy(M[client]) for M in (A, B, C))
    noise = torch.from_numpy(rng.standard_normal(5))
    bilinear = x @ A_ @ x / 2 + x @ B_ @ y - y @ C_ @ y / 2
    linear = torch.from_numpy(b[client]) @ x - torch.from_numpy(c[client]) @ y
    return bilinear + linear + 0.1 * (noise @ torch.cat([x, y]))


def gradients(client: int, x: np.ndarray, y: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    noise = 0.1 * generator(SEED, "function", client, t, 0).standard_normal(5)
    gx = A[client] @ x + B[client] @ y + b[client] + noise[:3]
    gy = B[client].T @ x - C[client] @ y - c[client] + noise[3:]
    return gx, gy


MINIMISATION = MinimisationProblem(loss, torch.from_numpy(X0))
MINIMAX = MinimaxProblem(game, torch.from_numpy(X0), torch.from_numpy(Y0))


@dataclass(frozen=True)
class Trajectory:
    """An algorithm on a problem, and the transcription that must agree with it."""

    algorithm: Algorithm[Any, Any]
    problem: Problem[Oracle]
    transcription: Callable[[], Iterator[Fields]]


TRAJECTORIES = {
    "fedavg": Trajectory(
        FedAvg(lr=0.1, local_steps=7),
        MINIMISATION,
        lambda: fedavg(gradient, X0, CLIENTS, STEPS, lr=0.1, local_steps=7),
    ),
    "local_sgda": Trajectory(
        LocalSGDA(lr_x=0.1, lr_y=0.2, local_steps=7),
        MINIMAX,
        lambda: local_sgda(gradients, X0, Y0, CLIENTS, STEPS, lr_x=0.1, lr_y=0.2, local_steps=7),
    ),
}


def trajectory(name: str) -> list[Fields]:
    """The states of the hosted clients after each step."""
    chosen = TRAJECTORIES[name]
    with connected() as world:
        drive = Drive(Case(chosen.algorithm, chosen.problem), world.transport)
        states = [state.tensors() for state in drive.states(STEPS)][1:]
    return [{field: rows.numpy().copy() for field, rows in state.items()} for state in states]


def trajectories() -> dict[str, list[Fields]]:
    return {name: trajectory(name) for name in TRAJECTORIES}


@pytest.fixture(scope="module", params=[1, 4], ids=["1 process", "4 processes"])
def walked(request: pytest.FixtureRequest, ranks: Ranks) -> list[dict[str, list[Fields]]]:
    """All trajectories, by rank."""
    return ranks(request.param, trajectories)


def test_every_algorithm_has_a_transcription() -> None:
    exported = [value for value in vars(algorithms).values() if inspect.isclass(value)]
    concrete = {v for v in exported if issubclass(v, Algorithm) and not inspect.isabstract(v)}
    assert concrete <= {type(entry.algorithm) for entry in TRAJECTORIES.values()}


@pytest.mark.parametrize("name", list(TRAJECTORIES))
def test_every_step_of_every_client_is_the_pseudocodes_to_1e_10(
    walked: list[dict[str, list[Fields]]], name: str
) -> None:
    expected = list(TRAJECTORIES[name].transcription())
    assert len(expected) == STEPS
    for t, fields in enumerate(expected):
        for field, rows in fields.items():
            mine = np.concatenate([answer[name][t][field] for answer in walked])
            np.testing.assert_allclose(mine, rows, rtol=1e-10, atol=1e-10, err_msg=f"{field}, {t}")


# By hand: three variables, two clients, two steps of which the second averages.


def by_hand(algorithm: Algorithm[Any, Any], problem: Problem[Oracle], steps: int) -> list[Any]:
    drive = Drive(Case(algorithm, problem), LocalTransport(), clients=2)
    return [torch.cat(list(s.tensors().values()), dim=1).tolist() for s in drive.states(steps)]


def test_two_steps_of_fedavg_by_hand() -> None:
    targets = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, -1.0]], dtype=torch.float64)
    problem = MinimisationProblem(
        lambda x, client, rng: (x - targets[client]).square().sum() / 2, torch.zeros(3)
    )
    start, first, second = by_hand(FedAvg(lr=0.5, local_steps=2), problem, steps=2)
    assert start == [[0, 0, 0], [0, 0, 0]]
    # Half way to the target: [1, 2, 3] / 2 and [3, 0, -1] / 2.
    assert first == [[0.5, 1.0, 1.5], [1.5, 0.0, -0.5]]
    # Three quarters: [0.75, 1.5, 2.25] and [2.25, 0, -0.75]; their mean is
    assert second == [[1.5, 0.75, 0.75], [1.5, 0.75, 0.75]]


def test_two_steps_of_local_sgda_by_hand() -> None:
    def saddle(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        common = x.square().sum() / 2 - y.square().sum() / 2
        return common + (x[0] * y[0] if client == 0 else 2 * x[0] - x[1] * y[0])

    problem = MinimaxProblem(saddle, torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    algorithm = LocalSGDA(lr_x=0.1, lr_y=0.2, local_steps=2)
    start, first, second = by_hand(algorithm, problem, steps=2)
    assert start == [[1, 2, 3], [1, 2, 3]]
    # Client 0: gx = (x1 + y, x2) = (4, 2), gy = x1 - y = -2.
    # Client 1: gx = (x1 + 2, x2 - y) = (3, -1), gy = -x2 - y = -5.
    assert first[0] == pytest.approx([0.6, 1.8, 2.6], abs=1e-15)
    assert first[1] == pytest.approx([0.7, 2.1, 2.0], abs=1e-15)
    # Client 0: gx = (3.2, 1.8), gy = -2    -> (0.28, 1.62, 2.20).
    # Client 1: gx = (2.7, 0.1), gy = -4.1  -> (0.43, 2.09, 1.18).
    for row in second:
        assert row == pytest.approx([0.355, 1.855, 1.69], abs=1e-15)


# Reductions and fixed points.


def test_fedavg_with_one_local_step_is_gradient_descent_on_the_mean() -> None:
    drive = Drive(Case(FedAvg(lr=0.2, local_steps=1), MINIMISATION), LocalTransport())
    x = X0
    for t, state in enumerate(list(drive.states(20))[1:]):
        x = x - 0.2 * np.mean([gradient(i, x, t) for i in range(CLIENTS)], axis=0)
        np.testing.assert_allclose(state.tensors()["x"][3], x, atol=1e-13)


def error_after(steps: int, local_steps: int) -> float:
    """The squared distance of Local SGDA's mean to the solution of a game without noise."""
    algorithm = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=local_steps)
    drive = Drive(Case(algorithm, QuadraticGame(dim=2, samples=4)), LocalTransport())
    *_, last = drive.states(steps)
    aside = drive.communicator.aside()
    return drive.oracle.evaluate(aside(algorithm.solution(last)), aside)["relative_error"]


def test_local_sgda_solves_the_game_with_one_local_step_and_stalls_beside_it_with_many() -> None:
    assert error_after(2000, local_steps=1) < 1e-20
    assert error_after(2000, local_steps=10) > 1e-5
