"""Hosted clients at once or one by one: the same numbers, for every kind of network problem."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import RARE, Clouds
from torch import Tensor, nn

from fedsys.clients.batches import Batch
from fedsys.clients.dense import DenseStack
from fedsys.clients.flat_module import FlatModule
from fedsys.clients.stacked_modules import StackedModules
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.data import PowerLaw
from fedsys.models import MLP, CifarResNet, LeNet5
from fedsys.problems import (
    BinaryClassification,
    Classification,
    CompositionalAUC,
    DeepAUC,
    HyperCleaning,
    RobustNetwork,
)
from fedsys.problems.networks.network_oracle import NetworkOracle

CPU = torch.device("cpu")
CLIENTS = 5
SITE = Site(Placement(CLIENTS), seed=2, dtype=torch.float64)
# Of 240 samples 5 clients have 48 each; of the unbalanced ones of two classes 27 or 26.
NETS = {"logistic": MLP([]), "one layer": MLP([3]), "two layers": MLP([4, 3])}
PROBLEMS: dict[str, Any] = {
    "minimisation": Classification,
    "binary": partial(BinaryClassification, imbalance=RARE),
    "ratio": partial(BinaryClassification, imbalance=RARE, loss="ratio"),
    "minimax AUC": partial(DeepAUC, imbalance=RARE),
    "robust network": RobustNetwork,
    "compositional": partial(CompositionalAUC, imbalance=RARE),
}


def oracles(make: Any, **given: Any) -> tuple[NetworkOracle, NetworkOracle]:
    """The same problem both ways."""
    ways = [make(Clouds(), vectorize=way, **given).oracle(SITE) for way in ("vmap", "loop")]
    assert [way._at_once is None for way in ways] == [False, True]
    return ways[0], ways[1]


def points(oracle: NetworkOracle) -> Tensor:
    """A different point for each client."""
    numbers = np.random.default_rng(1).standard_normal(tuple(oracle.z0.shape))
    return torch.from_numpy(numbers)


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_size", [4, None], ids=["batches", "whole"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_both_ways_have_the_same_losses_and_gradients(
    kind: str, net: str, batch_size: int | None
) -> None:
    at_once, one_by_one = oracles(PROBLEMS[kind], model=NETS[net], batch_size=batch_size)
    z = points(at_once)
    for step in (0, 7):
        xi, again = at_once.at(step).draw(), one_by_one.at(step).draw()
        one_size = batch_size is not None or len({*at_once.sizes}) == 1
        assert isinstance(xi.inputs, Tensor) == one_size
        assert all(torch.equal(a, b) for a, b in zip(xi.inputs, again.inputs, strict=True))
        assert_close(at_once.losses(z, xi), one_by_one.losses(z, again))
        assert_close(at_once.operator(z, xi), one_by_one.operator(z, again))
    assert_close(at_once.full_operator(z), one_by_one.full_operator(z))


@pytest.mark.parametrize("jacobian", ["exact", "identity"])
def test_both_ways_have_the_same_inner_function_and_products_with_its_jacobian(
    jacobian: str,
) -> None:
    at_once, one_by_one = oracles(CompositionalAUC, model=MLP([4]), jacobian=jacobian, rho=0.7)
    x, xi = points(at_once)[:, :-1], at_once.draw()
    v = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    (value, pull), (expected, other) = (o.inner(x, xi) for o in (at_once, one_by_one))  # type: ignore[attr-defined]
    assert_close(value, expected)
    assert_close(pull(v), other(v))
    assert torch.equal(pull(v), v) == (jacobian == "identity")


@pytest.mark.parametrize("kind", PROBLEMS)
def test_both_ways_have_the_same_metrics_also_of_clients_with_different_sizes(kind: str) -> None:
    sync = AllReduce()
    sync.open(LocalTransport(), SITE.placement, Every(1))
    given = {"model": MLP([3]), "partition": PowerLaw(1.0), "batch_size": 3}
    at_once, one_by_one = oracles(PROBLEMS[kind], **given)
    assert len({*at_once.sizes}) > 1
    z = points(at_once)[:1].expand_as(at_once.z0)
    found, expected = (o.evaluate(z, sync.unmetered()) for o in (at_once, one_by_one))
    assert found == pytest.approx(expected, rel=1e-12)
    assert_close(at_once.full_operator(z), one_by_one.full_operator(z))


def test_a_network_of_a_bilevel_problem_has_the_same_scores_and_slopes_both_ways() -> None:
    problem = HyperCleaning(Clouds(), model=MLP([3]), batch_size=4)
    stacked, looped = (replace(problem, vectorize=way).oracle(SITE) for way in ("vmap", "loop"))
    x, y = (
        rows.clone().normal_(generator=torch.Generator().manual_seed(3))
        for rows in (stacked.x0, stacked.y0)
    )
    xi = stacked.draw()
    assert_close(stacked.inner_grad(x, y, xi), looped.inner_grad(x, y, xi))
    ours, theirs = (o.curvature(x, y, xi).hessian_product(y) for o in (stacked, looped))
    assert_close(ours, theirs)


def test_convolutions_can_be_stacked_too() -> None:
    player = FlatModule(LeNet5().build((1, 28, 28), 2), torch.float64, CPU)
    rows = player.vector + 0.01 * torch.randn(3, len(player.vector), dtype=torch.float64)
    inputs, labels = (
        torch.randn(3, 4, 1, 28, 28, dtype=torch.float64),
        torch.tensor([[0, 1, 1, 0]] * 3),
    )

    def loss(net: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(inputs), labels)

    found = StackedModules([player]).gradients(loss, [rows], inputs, labels)
    for row, gradient, batch, classes in zip(rows, found, inputs, labels, strict=True):
        player.load(row)
        expected = torch.autograd.grad(loss(player.module, batch, classes), player.parameters)
        for found_part, part in zip(player.named(gradient).values(), expected, strict=True):
            assert_close(found_part, part)


def test_a_layer_that_is_called_twice_has_the_sum_of_its_gradients() -> None:
    player = FlatModule(nn.Sequential(nn.Linear(3, 3)), torch.float64, CPU)

    def loss(net: nn.Module, inputs: Tensor) -> Tensor:
        value: Tensor = net(net(inputs)).square().mean()
        return value

    rows = torch.randn(2, len(player.vector), dtype=torch.float64)
    inputs = torch.randn(2, 4, 3, dtype=torch.float64)
    found = StackedModules([player]).gradients(loss, [rows], inputs)
    for row, gradient, batch in zip(rows, found, inputs, strict=True):
        player.load(row)
        expected = torch.autograd.grad(loss(player.module, batch), player.parameters)
        assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]))


def test_layers_by_hand_are_those_that_are_called_in_order() -> None:
    dense = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)]
    assert DenseStack.fits(nn.Sequential(*dense))
    assert DenseStack.fits(nn.Sequential(nn.Flatten(), *dense))
    for other in (
        [*dense, nn.ReLU()],
        [nn.ReLU(), nn.Linear(2, 2)],
        [nn.Linear(2, 2), nn.Linear(2, 2)],
        [nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)],
        [nn.Linear(2, 2, bias=False)],
        [nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Linear(2, 2)],
        [],
    ):
        assert not DenseStack.fits(nn.Sequential(*other))


class TestTheChoice:
    def way(self, **given: Any) -> object:
        clients = given.pop("clients", 3)
        make = given.pop("problem", Classification)
        site = replace(SITE, placement=Placement(clients))
        oracle: NetworkOracle = make(Clouds(), **given).oracle(site)
        return oracle._at_once

    def test_auto_is_at_once_for_dense_networks(self) -> None:
        assert self.way(model=MLP([3])) is not None
        assert self.way(model=MLP([3]), clients=1) is not None
        assert self.way(model=MLP([3]), vectorize="loop") is None

    def test_autograd_serves_a_single_client_by_itself(self) -> None:
        assert self.way(problem=RobustNetwork, model=MLP([3])) is not None
        assert self.way(problem=RobustNetwork, model=MLP([3]), clients=1) is None
        single = self.way(problem=RobustNetwork, model=MLP([3]), clients=1, vectorize="vmap")
        assert single is not None

    def test_auto_is_one_by_one_where_losses_differ(self) -> None:
        assert self.way(problem=DeepAUC, positive_ratio="global") is not None
        assert self.way(problem=DeepAUC, positive_ratio="client") is None
        with pytest.raises(InputError, match="the clients have losses of their own; use auto"):
            self.way(problem=DeepAUC, positive_ratio="client", vectorize="vmap")

    def test_batchnorm_is_refused_and_an_unknown_way_too(self) -> None:
        images = Clouds(width=3 * 8 * 8)

        class Images:
            def load(self) -> Any:
                data = images.load()
                shaped = {
                    name: getattr(data, name).view(-1, 3, 8, 8)
                    for name in ("train_inputs", "test_inputs")
                }
                return replace(data, **shaped)

        problem = Classification(Images(), model=CifarResNet(8))
        assert problem.oracle(SITE)._at_once is None
        with pytest.raises(InputError, match="vmap is not possible: BatchNorm2d changes buffers"):
            replace(problem, vectorize="vmap").oracle(SITE)
        with pytest.raises(InputError, match="vectorize must be one of auto, vmap, loop, got 'no'"):
            Classification(vectorize="no")

    def test_a_batch_that_is_no_tensor_is_computed_one_by_one(self) -> None:
        oracle = Classification(Clouds(), model=MLP([3])).oracle(SITE)
        xi = oracle.draw()
        apart = Batch(tuple(xi.inputs), tuple(xi.labels))
        z = points(oracle)
        assert_close(oracle.operator(z, apart), oracle.operator(z, xi))
