"""Random numbers and buffers of networks: drawn by (seed, client, step, k), shared, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import CLIENTS, DROPOUT, Clouds, DropoutNet, GroupedClouds
from support.processes import Ranks
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils import parametrizations

import fedsys
from fedsys.algorithms import CDMA, AdaFGDA, FedAvg, FedBiO, LocalSCGDAM, LocalSGDA
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import (
    BilevelProblem,
    BinaryClassification,
    Classification,
    CompositionalAUC,
    DeepAUC,
    GroupFair,
    HyperCleaning,
    RobustNetwork,
)

SITE = Site(Placement(CLIENTS), seed=2, dtype=torch.float64)


@dataclass(frozen=True)
class Made:
    """A model from a function of the input's width and the number of outputs."""

    make: Callable[[int, int], nn.Module]

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return self.make(input_shape[0], outputs)


class Noisy(nn.Module):
    """A linear layer whose output is changed by a function of its own."""

    def __init__(self, width: int, outputs: int, change: Callable[[Noisy, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change, self.calls = nn.Linear(width, outputs), change, 0
        self.register_buffer("ema", torch.zeros(outputs))
        self.own = torch.Generator().manual_seed(1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.change(self, self.layer(inputs))


def noisy(change: Callable[[Noisy, Tensor], Tensor]) -> Made:
    return Made(lambda width, outputs: Noisy(width, outputs, change))


def stochastic_depth(self: Noisy, x: Tensor) -> Tensor:
    """By Python's generator, as some libraries drop layers."""
    return x * 0 if self.training and random.random() < 0.5 else x


def numpy_noise(self: Noisy, x: Tensor) -> Tensor:
    return x + np.random.standard_normal() if self.training else x


RANDOM = {
    "dropout": DropoutNet(),
    "stochastic depth": noisy(stochastic_depth),
    "NumPy": noisy(numpy_noise),
    "GRU": Made(lambda width, outputs: Recurrent(width, outputs)),
}
PROBLEMS: dict[str, tuple[Any, Any]] = {
    "minimisation": (Classification, FedAvg(lr=0.2, local_steps=2)),
    "binary": (BinaryClassification, FedAvg(lr=0.2, local_steps=2)),
    "minimax": (DeepAUC, AdaFGDA(local_steps=2)),
    "robust": (RobustNetwork, LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=2)),
    "compositional": (CompositionalAUC, LocalSCGDAM(local_steps=2)),
}


class Recurrent(nn.Module):
    """Two layers with dropout in between."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.cells = nn.GRU(1, 3, 2, dropout=0.5, batch_first=True)
        self.last = nn.Linear(3, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.cells(inputs[:, :, None])[0][:, -1])
        return outputs


def run(kind: str, net: str, **given: Any) -> dict[str, Tensor]:
    problem, algorithm = PROBLEMS[kind]
    made = problem(Clouds(), model=RANDOM[net], batch_size=4)
    settings = {"steps": 7, "clients": 3, "dtype": "float64", "evaluate_every": 99, **given}
    return fedsys.run(made, algorithm, **settings).variables


def run_all(pairs: list[tuple[str, str]]) -> list[dict[str, Tensor]]:
    return [run(kind, net) for kind, net in pairs]


PAIRS = [*((kind, "dropout") for kind in PROBLEMS), *(("minimisation", net) for net in RANDOM)]


def test_random_networks_end_with_the_same_numbers_twice_and_on_two_ranks(ranks: Ranks) -> None:
    first = run_all(PAIRS)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    for variables, again, (apart, _) in zip(
        first,
        run_all(PAIRS),
        zip(*ranks(2, run_all, PAIRS), strict=True),
        strict=True,
    ):
        for name, value in variables.items():
            assert torch.equal(again[name], value)
            torch.testing.assert_close(apart[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("net", RANDOM)
def test_another_seed_draws_other_numbers(net: str) -> None:
    oracle, other = (
        Classification(Clouds(), model=RANDOM[net], batch_size=4).oracle(replace(SITE, seed=seed))
        for seed in (2, 3)
    )
    xi = oracle.at(0).draw()
    gradients = [o.grad(oracle.z0, xi) for o in (oracle, oracle, other)]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_a_forward_pass_draws_by_client_step_and_draw_and_not_by_the_point() -> None:
    oracle = DROPOUT.oracle(SITE)
    point = (oracle.x0, oracle.y0)
    at = oracle.at(4)
    xi, second, later = at.draw(), at.draw(), oracle.at(5).draw()
    first = oracle.grads(*point, xi)[0]
    oracle.grads(point[0] + 1, point[1], xi)
    assert torch.equal(oracle.grads(*point, xi)[0], first)
    # The same samples for all clients and draws: only the random numbers differ.
    same = xi._replace(inputs=xi.inputs[:1].expand_as(xi.inputs), labels=xi.labels * 0)
    rows = [oracle.grads(*point, same._replace(draw=b.draw))[0] for b in (xi, second, later)]
    assert len({tuple(row.tolist()) for row in torch.cat(rows)}) > 2 * CLIENTS


def test_a_jacobian_is_that_of_the_function_with_the_same_random_numbers() -> None:
    oracle = CompositionalAUC(Clouds(), model=DropoutNet(), batch_size=4, rho=0.3).oracle(SITE)
    xi, x = oracle.at(1).draw(), oracle.x0
    v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, pullback = oracle.inner(x, xi)
    product, step = pullback(v), 1e-6
    ahead, behind = (oracle.inner(x + sign * step * v, xi)[0] for sign in (1, -1))
    # The Jacobian of x - rho grad is symmetric.
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    assert torch.equal(oracle.inner(x, xi)[0], value)


def test_training_leaves_the_users_random_states_alone_and_evaluation_draws_nothing() -> None:
    oracle = Classification(Clouds(), model=DropoutNet(), batch_size=4).oracle(SITE)
    states = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    xi = oracle.at(0).draw()
    oracle.grad(oracle.z0, xi)
    assert torch.equal(
        oracle.losses(oracle.z0, xi), oracle.losses(oracle.z0, xi._replace(draw=None))
    )
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def test_dropout_in_a_loss_function_draws_by_the_seed_too(ranks: Ranks) -> None:
    alone = function_runs()
    torch.manual_seed(7)
    assert function_runs() == alone
    assert ranks(2, function_runs)[0] == pytest.approx(alone, abs=1e-12)


def function_runs() -> list[float]:
    """A function that calls torch's dropout, in one level and in two."""

    def loss(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (dropout(x, 0.5) - client).square().sum()

    def outer(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (dropout(y, 0.5) - 1).square().sum() + x.square().sum()

    def inner(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (y - dropout(x, 0.5) - client).square().sum()

    start, given = torch.ones(4), {"steps": 4, "clients": 3, "dtype": "float64"}
    one = fedsys.MinimisationProblem(loss, start)
    two = BilevelProblem(outer, inner, start, start)
    single = fedsys.run(one, FedAvg(lr=0.1, local_steps=2), **given)
    double = fedsys.run(two, FedBiO(lr=0.1, inner_lr=0.2, local_steps=2), **given)
    return [float(r.variables["x"].sum()) for r in (single, double)]


def test_initial_weights_drawn_from_numpys_generator_depend_on_the_seed_only() -> None:
    def make(width: int, outputs: int) -> nn.Module:
        layer = nn.Linear(width, outputs)
        numbers = np.random.standard_normal((outputs, width))
        layer.weight.data = torch.from_numpy(numbers).float()
        return layer

    problem = Classification(Clouds(), model=Made(make))
    first, again = problem.oracle(SITE).z0, problem.oracle(SITE).z0
    assert torch.equal(first, again)
    assert not torch.equal(first, problem.oracle(replace(SITE, seed=9)).z0)


# Refused, in one line.


def counts_calls(self: Noisy, x: Tensor) -> Tensor:
    self.calls += 1
    return x * self.calls


def moves_its_average(self: Noisy, x: Tensor) -> Tensor:
    self.ema.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return x


def replaces_its_average(self: Noisy, x: Tensor) -> Tensor:
    self.ema = x.detach().mean(0)
    return x


def always_drops(self: Noisy, x: Tensor) -> Tensor:
    return dropout(x, 0.5)


def own_generator(self: Noisy, x: Tensor) -> Tensor:
    return x * torch.randn(1, generator=self.own)


def layers(*between: nn.Module) -> Made:
    return Made(lambda width, outputs: nn.Sequential(*between, nn.Linear(width, outputs)))


REFUSED = {
    r"Linear \((net.)?0\) changes its buffer 'weight_u'": layers(
        nn.utils.spectral_norm(nn.Linear(5, 5))
    ),
    r"_SpectralNorm \((net.)?0.parametrizations.weight.0\) changes its buffer '_u'": layers(
        parametrizations.spectral_norm(nn.Linear(5, 5))
    ),
    "Noisy .*changes its buffer 'ema' in the forward pass;": noisy(moves_its_average),
    "Noisy .*changes its buffer 'ema'": noisy(replaces_its_average),
    "keeps state outside of its buffers, or has a random generator of its own": noisy(
        own_generator
    ),
    "different results for the same parameters, inputs and random seed": noisy(counts_calls),
    "draws random numbers in evaluation mode too": noisy(always_drops),
    r"BatchNorm1d \((net.)?0\) has momentum=None": layers(nn.BatchNorm1d(5, momentum=None)),
    "has track_running_stats=False": layers(nn.BatchNorm1d(5, track_running_stats=False)),
    "SyncBatchNorm .* communicates between ranks by itself": layers(nn.SyncBatchNorm(5)),
}


@pytest.mark.parametrize("line", REFUSED)
def test_other_hidden_state_is_refused_by_name(line: str) -> None:
    for kind in ("minimisation", "minimax"):
        problem = PROBLEMS[kind][0](Clouds(), model=REFUSED[line])
        with pytest.raises(InputError, match=line) as error:
            problem.oracle(SITE)
        assert "\n" not in str(error.value)


def test_random_networks_cannot_be_stacked() -> None:
    problem = replace(DROPOUT, vectorize="vmap")
    with pytest.raises(InputError, match="vectorize=vmap is not possible: the network draws rand"):
        problem.oracle(SITE)


def test_random_numbers_that_are_drawn_only_at_times_are_refused_where_clients_are_stacked() -> (
    None
):
    def at_times(self: Noisy, x: Tensor) -> Tensor:
        self.calls += 1
        return dropout(x, 0.5) if self.calls > 3 else x

    class Later(Noisy):
        def __init__(self, width: int, outputs: int) -> None:
            super().__init__(width, outputs, at_times)
            del self._buffers["ema"]

    problem = Classification(Clouds(), model=Made(Later), vectorize="vmap")
    oracle = problem.oracle(SITE)
    with pytest.raises(InputError, match=r"use problem\.vectorize=loop"):
        [oracle.grad(oracle.z0, oracle.draw()) for _ in range(5)]


def test_exact_gradients_of_random_networks_are_refused() -> None:
    with pytest.raises(InputError, match="its exact gradient on all data"):
        fedsys.run(DROPOUT, CDMA(lr_x=0.1, lr_y=0.1), steps=2, clients=2)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (DropoutNet(), "take no network that draws random numbers"),
        (layers(nn.BatchNorm1d(5)), "do not synchronise the running statistics of BatchNorm"),
    ],
    ids=["dropout", "batchnorm"],
)
def test_bilevel_and_grouped_problems_refuse_random_numbers_and_statistics(
    model: Any, line: str
) -> None:
    bilevel = FedBiO(lr=0.1, inner_lr=0.1)
    for problem, algorithm in (
        (HyperCleaning(Clouds(), model=model), bilevel),
        (GroupFair(GroupedClouds(width=5), model=model), FedAvg()),
    ):
        with pytest.raises(InputError, match=line):
            fedsys.run(problem, algorithm, steps=1, clients=2)


@pytest.mark.parametrize("old", [True, False], ids=["hook", "parametrization"])
def test_a_layer_with_weight_norm_is_trained_by_its_own_parameters(old: bool) -> None:
    norm = nn.utils.weight_norm if old else parametrizations.weight_norm
    problem = Classification(
        Clouds(),
        model=Made(lambda w, o: nn.Sequential(norm(nn.Linear(w, 3)), nn.ReLU(), nn.Linear(3, o))),
        batch_size=4,
    )
    oracle = problem.oracle(SITE)
    xi, z = oracle.draw(), oracle.z0
    net = norm(nn.Linear(5, 3)).double(), nn.Linear(3, 4).double()
    whole = nn.Sequential(net[0], nn.ReLU(), net[1])
    nn.utils.vector_to_parameters(z[0], whole.parameters())
    loss = nn.functional.cross_entropy(whole(xi.inputs[0]), xi.labels[0])
    gradients = torch.autograd.grad(loss, [*whole.parameters()])
    expected = torch.cat([g.reshape(-1) for g in gradients])
    torch.testing.assert_close(oracle.grad(z, xi)[0], expected, rtol=1e-12, atol=1e-12)
