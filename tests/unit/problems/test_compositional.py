"""Compositional deep AUC: the inner step and its Jacobian, LocalSCGDAM, and the baselines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.cases import (
    AUC,
    CLASSES,
    COMPOSITIONAL,
    RATIO,
    STATISTICS,
    BatchNormNet,
    Case,
    Clouds,
    Drive,
)
from support.compositional_network import cross_entropy
from support.counting import CountingTransport
from torch import Tensor

import fedsys
from fedsys.algorithms import (
    CoDA,
    FedAvg,
    FedProx,
    LocalSCGDAM,
    LocalSGDA,
    LocalSGDAM,
    LocalSGDM,
    Scaffold,
)
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.errors import InputError
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Imbalance
from fedsys.models import MLP
from fedsys.problems import (
    BinaryClassification,
    CompositionalAUC,
    CompositionalProblem,
    MinimisationProblem,
    QuadraticGame,
)

STEPS = 12


def site(clients: int = 3) -> Site:
    return Site(Placement(clients), seed=3, dtype=torch.float64)


def states(algorithm: Algorithm[Any, Any], problem: Problem[Oracle]) -> list[State]:
    return list(Drive(Case(algorithm, problem), LocalTransport(), clients=3).states(STEPS))


def assert_same_points(one: list[State], other: list[State], *names: str) -> None:
    for t, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for name in names:
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), (t, name)
    assert not torch.equal(getattr(one[0], names[0]), getattr(one[-1], names[0]))


# The inner function.


def moved(point: Tensor) -> Tensor:
    noise = torch.randn(point.shape, generator=torch.Generator().manual_seed(1))
    return point + 0.3 * noise.double()


def test_the_inner_function_is_a_step_on_the_cross_entropy_that_leaves_a_and_b() -> None:
    oracle = COMPOSITIONAL.oracle(site())
    x, xi = moved(oracle.x0), oracle.at(2).draw()
    g, _ = oracle.inner(x, xi)
    assert torch.equal(g[:, :2], x[:, :2])
    for c in range(3):
        point = x[c].clone().requires_grad_()
        loss = cross_entropy(point, xi.inputs[c], xi.labels[c].double())
        (gradient,) = torch.autograd.grad(loss, point)
        torch.testing.assert_close(g[c], x[c] - 0.3 * gradient, rtol=1e-12, atol=1e-12)


def test_the_hessian_vector_product_is_that_of_the_explicit_hessian_to_1e_8() -> None:
    oracle = COMPOSITIONAL.oracle(site())
    x, xi = moved(oracle.x0), oracle.at(2).draw()
    _, transposed_jacobian = oracle.inner(x, xi)
    v = moved(torch.zeros_like(x))
    oracle.outer_grads(moved(x), oracle.y0, oracle.draw())  # an evaluation at another point
    product = transposed_jacobian(v)
    for c in range(3):
        batch = xi.inputs[c], xi.labels[c].double()
        H = torch.autograd.functional.hessian(lambda w, b=batch: cross_entropy(w, *b), x[c])
        assert float(H.abs().max()) > 1e-3
        torch.testing.assert_close(product[c], v[c] - 0.3 * H @ v[c], rtol=1e-8, atol=1e-8)


def test_the_hessian_vector_product_includes_batchnorm() -> None:
    problem = replace(COMPOSITIONAL, model=BatchNormNet(), batch_size=8)
    oracle = problem.oracle(site(1))
    x, xi, eps = moved(oracle.x0), oracle.at(2).draw(), 1e-5
    v = moved(torch.zeros_like(x))
    product = oracle.inner(x, xi)[1](v)
    ahead, behind = (oracle.inner(x + sign * eps * v, xi)[0] for sign in (1, -1))
    torch.testing.assert_close(product, (ahead - behind) / (2 * eps), rtol=1e-6, atol=1e-6)


def test_the_first_order_variant_replaces_the_jacobian_by_the_identity() -> None:
    exact, first = COMPOSITIONAL.oracle(site()), replace(COMPOSITIONAL, jacobian="identity")
    oracle = first.oracle(site())
    x, xi = moved(oracle.x0), oracle.draw()
    g, transposed_jacobian = oracle.inner(x, xi)
    assert torch.equal(g, exact.inner(x, xi)[0])
    assert torch.equal(transposed_jacobian(x), x)


@pytest.mark.parametrize(("name", "value"), [("rho", -0.1), ("jacobian", "none")])
def test_an_invalid_inner_step_is_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"compositional_auc: {name} must be .*, got {value!r}"):
        replace(COMPOSITIONAL, **{name: value})


# LocalSCGDAM.


def test_localscgdam_without_inner_step_and_moving_average_is_localsgdam_bit_for_bit() -> None:
    numbers: dict[str, Any] = {"eta": 0.5, "beta_x": 1.5, "beta_y": 1.5, "local_steps": 4}
    numbers["decay_at"] = ()
    compositional = states(LocalSCGDAM(alpha=2.0, **numbers), replace(COMPOSITIONAL, rho=0.0))
    plain = states(LocalSGDAM(**numbers), AUC)
    assert_same_points(compositional, plain, "x", "y", "u", "v")
    assert torch.equal(compositional[-1].tensors()["h"], plain[-1].tensors()["x"])


def test_a_round_sends_three_dx_and_two_dy_numbers_in_one_all_reduce() -> None:
    transport = CountingTransport()
    d = Drive(Case(LocalSCGDAM(local_steps=4, decay_at=()), COMPOSITIONAL), transport, clients=1)
    dx, dy = 24, 1  # x is the 22 weights of 5-3-1, a and b; y is alpha
    transport.calls.clear()
    for _ in d.states(8):
        pass
    assert transport.calls == [("all_reduce", 8 * (3 * dx + 2 * dy))] * 2
    assert d.communicator.traffic.bytes_up == 2 * 8 * (3 * dx + 2 * dy)


def test_localscgdam_converges_to_the_fixed_point_of_its_clients_inner_estimates() -> None:
    # g_m(x) = (1 + m) x for m = 0, 1, 2, and f(h, y) = h^2/2 - h + h y - y^2/2. With averages in
    # every step and alpha eta = 0.9, client m has h_m = 0.1 * 2x + 0.9 (1 + m) x. In the limit
    # mean h_m = y, so y = 2x, and mean (1 + m)(h_m - 1 + y) = 4.6 x + 2 (2x - 1) = 0.
    problem = CompositionalProblem(
        lambda x, client, rng: (1 + client) * x,
        lambda h, y, client, rng: (h.square() / 2 - h + h * y - y.square() / 2).sum(),
        torch.zeros(1),
        torch.zeros(1),
    )
    rates = {"eta": 0.3, "gamma_x": 0.3, "gamma_y": 0.3, "alpha": 3.0}
    algorithm = LocalSCGDAM(**rates, local_steps=1, decay_at=())
    result = fedsys.run(problem, algorithm, steps=300, clients=3, dtype="float64")
    x = 2 / 8.6
    assert float(result.variables["x"]) == pytest.approx(x, abs=1e-8)
    assert float(result.variables["y"]) == pytest.approx(2 * x, abs=1e-8)
    assert result.records[-1]["train_loss"] == pytest.approx(4 * x**2 - 2 * x, abs=1e-8)


@pytest.mark.parametrize(("name", "value"), [("alpha", 4.0), ("beta_x", 3.4), ("beta_y", 0.0)])
def test_a_weight_of_a_moving_average_above_one_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"{name} must be in \(0, 1/eta\], eta = 0.3, got"):
        LocalSCGDAM(**{name: value})


# Stages.


def test_the_step_size_drops_at_half_and_three_quarters_of_the_run() -> None:
    problem = MinimisationProblem(lambda x, client, rng: x.sum(), torch.zeros(1))
    algorithm = LocalSGDM(lr=1.0, momentum=0.0, local_steps=2, decay_at=(0.5, 0.75))
    for length in ({"steps": 8}, {"rounds": 4}):
        result = fedsys.run(problem, algorithm, clients=2, dtype="float64", **length)
        assert result.algorithm.total_steps == 8
        assert float(result.variables["x"]) == pytest.approx(-(4 + 2 * 0.1 + 2 * 0.01))


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.0,), (0.5, 1.0)])
def test_stages_in_the_wrong_order_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="decay_at must be increasing shares"):
        LocalSGDM(decay_at=shares)


# Special cases of the baselines.

GAME = QuadraticGame(dim=3, samples=5)


def test_localsgdm_without_momentum_is_fedavg() -> None:
    for policy in ("average", "keep", "reset"):
        numbers = {"lr": 0.3, "momentum": 0.0, "local_steps": 3, "decay_at": ()}
        algorithm = LocalSGDM(momentum_sync=policy, **numbers)
        plain = states(FedAvg(lr=0.3, local_steps=3), CLASSES)
        assert_same_points(states(algorithm, CLASSES), plain, "x")


def test_fedprox_without_its_term_is_fedavg() -> None:
    plain = states(FedAvg(lr=0.3, local_steps=3), CLASSES)
    proximal = FedProx(lr=0.3, mu=0.0, local_steps=3, decay_at=())
    assert_same_points(states(proximal, CLASSES), plain, "x")


def test_coda_of_one_stage_without_its_term_is_local_sgda() -> None:
    one = states(CoDA(lr=0.3, prox_weight=0.0, local_steps=3, decay_at=()), AUC)
    assert_same_points(one, states(LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=3), AUC), "x", "y")


def test_localsgdam_without_momentum_is_local_sgda_with_step_sizes_gamma_eta() -> None:
    # The game has no noise, and the steps end before the first round, which averages u and v.
    numbers: dict[str, Any] = {"eta": 0.5, "beta_x": 2.0, "beta_y": 2.0, "local_steps": 100}
    numbers["decay_at"] = ()
    one = states(LocalSGDAM(gamma_x=0.2, gamma_y=0.4, **numbers), GAME)
    assert_same_points(one, states(LocalSGDA(lr_x=0.1, lr_y=0.2, local_steps=100), GAME), "x", "y")


def test_scaffold_in_its_first_round_is_fedavg() -> None:
    one = states(Scaffold(lr=0.3, local_steps=STEPS, decay_at=()), CLASSES)
    other = states(FedAvg(lr=0.3, local_steps=STEPS), CLASSES)
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine.tensors()["y"], theirs.tensors()["x"])


def test_the_server_control_variate_of_scaffold_is_the_mean_of_the_clients() -> None:
    for option in (1, 2):
        *_, state = states(Scaffold(lr=0.3, option=option, local_steps=3, decay_at=()), CLASSES)
        fields = state.tensors()
        assert fields["c"].norm() > 0.01
        mean = fields["c_i"].mean(0).expand_as(fields["c"])
        torch.testing.assert_close(fields["c"], mean, rtol=1e-10, atol=1e-12)


def test_a_client_control_variate_of_scaffold_is_the_mean_of_its_gradients_in_the_round() -> None:
    d = Drive(
        Case(Scaffold(lr=0.3, local_steps=3, decay_at=()), CLASSES), LocalTransport(), clients=3
    )
    walked = list(d.states(6))
    gradients = [
        d.oracle.grad(walked[t].tensors()["y"], d.oracle.at(t).draw()) for t in range(3, 6)
    ]
    torch.testing.assert_close(walked[6].tensors()["c_i"], sum(gradients) / 3)


@pytest.mark.parametrize(
    "algorithm",
    [LocalSGDM, Scaffold, CoDA, LocalSGDAM, LocalSCGDAM],
    ids=lambda algorithm: algorithm.__name__,
)
def test_averaging_over_identical_clients_changes_nothing(
    algorithm: type[Algorithm[Any, Any]],
) -> None:
    problems: dict[str, Problem[Oracle]] = {
        "minimisation": MinimisationProblem(lambda x, i, rng: x.cosh().sum(), torch.ones(2)),
        "minimax": fedsys.MinimaxProblem(_alike, torch.ones(2), torch.ones(2)),
        "compositional": CompositionalProblem(_inner_alike, _alike, torch.ones(2), torch.ones(2)),
    }
    problem = problems[algorithm.kind]
    often, never = (states(algorithm(local_steps=K, decay_at=()), problem)[-1] for K in (3, 1000))
    point = algorithm().solution
    torch.testing.assert_close(point(often), point(never), rtol=1e-12, atol=1e-12)


def _inner_alike(x: Tensor, client: int, rng: object) -> Tensor:
    return x.sin()


def _alike(x: Tensor, y: Tensor, client: int, rng: object) -> Tensor:
    return (x.cosh() + x * y - y.square()).sum()


# The ratio loss.


def test_the_ratio_loss_weights_a_class_by_its_rarity() -> None:
    # One positive in four: weights 1 + 0.1 * 3 and 1 + 0.1 / 3.
    data = Imbalance(0.25)
    plain = BinaryClassification(Clouds(), model=MLP([3]), imbalance=data, batch_size=None)
    oracle, ratio = plain.oracle(site()), replace(plain, loss="ratio").oracle(site())
    x, xi = moved(oracle.x0), oracle.draw()
    for c in range(3):
        z = torch.cat([torch.zeros(2).double(), x[c]])  # the zeros take the places of a and b
        per_sample = torch.stack(
            [
                cross_entropy(z, inputs[None], label[None].double())
                for inputs, label in zip(xi.inputs[c], xi.labels[c], strict=True)
            ]
        )
        weights = torch.where(xi.labels[c] == 1, 1.3, 1 + 0.1 / 3).double()
        torch.testing.assert_close(oracle.losses(x, xi)[c], per_sample.mean())
        torch.testing.assert_close(ratio.losses(x, xi)[c], (weights * per_sample).mean())


def test_the_ratio_loss_of_equal_classes_is_cross_entropy_up_to_a_factor() -> None:
    plain = BinaryClassification(Clouds(), model=MLP([3]), imbalance=Imbalance(None))
    oracle, ratio = plain.oracle(site()), replace(plain, loss="ratio").oracle(site())
    xi = oracle.draw()
    torch.testing.assert_close(ratio.grad(ratio.x0, xi), 1.1 * oracle.grad(oracle.x0, xi))


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(InputError, match="loss must be cross_entropy or ratio, got 'hinge'"):
        replace(RATIO, loss="hinge")


# BatchNorm.


def test_local_batchnorm_keeps_each_clients_statistics_and_sends_none() -> None:
    problem = CompositionalAUC(Clouds(), model=BatchNormNet(), batch_size=8)
    sent = {}
    for policy in ("average", "local"):
        algorithm = LocalSCGDAM(local_steps=2, decay_at=())
        communicator = AllReduce(batchnorm=policy)
        d = Drive(Case(algorithm, problem), LocalTransport(), clients=3, communicator=communicator)
        *_, last = d.states(2)
        assert d.oracle.synchronised_buffers is not None
        distinct = {tuple(row) for row in d.oracle.synchronised_buffers.tolist()}
        assert len(distinct) == (1 if policy == "average" else 3)
        sent[policy] = d.communicator.traffic.bytes_up
    assert sent["average"] - sent["local"] == 8 * d.oracle.synchronised_buffers.shape[1]
    assert sent["local"] == 8 * (3 * last.tensors()["x"].shape[1] + 2)


def test_metrics_use_the_averaged_statistics_although_clients_keep_their_own() -> None:
    algorithm, communicator = FedAvg(lr=0.1, local_steps=2), AllReduce(batchnorm="local")
    case = Case(algorithm, STATISTICS)
    d = Drive(case, LocalTransport(), clients=3, communicator=communicator)
    *_, state = d.states(4)
    unmetered, own = d.communicator.unmetered(), d.oracle.synchronised_buffers.clone()
    metrics = d.oracle.evaluate(unmetered(state.tensors()["x"]), unmetered)
    assert torch.equal(d.oracle.synchronised_buffers, own)
    net = STATISTICS.model.build((5,), 4).double()
    torch.nn.utils.vector_to_parameters(state.tensors()["x"][0], net.parameters())
    net[1].running_mean.copy_(own.mean(0)[:4])
    net[1].running_var.copy_(own.mean(0)[4:])
    data = STATISTICS.dataset.load()
    outputs = net.eval()(data.train_inputs).detach()
    loss = torch.nn.functional.cross_entropy(outputs, data.train_labels)
    assert metrics["train_loss"] == pytest.approx(float(loss), abs=1e-12)


def test_an_unknown_policy_for_batchnorm_is_refused() -> None:
    with pytest.raises(InputError, match="batchnorm must be average or local, got 'both'"):
        AllReduce(batchnorm="both")
