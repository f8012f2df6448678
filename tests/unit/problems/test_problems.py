"""Oracles of the quadratic game, of the AUC objective and of problems from functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.cases import Clouds
from torch import Tensor

from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.kinds import kinds_of
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.random import generator
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import Dataset, Imbalance
from fedsys.models import MLP
from fedsys.problems import (
    BinaryClassification,
    Classification,
    CompositionalAUC,
    DeepAUC,
    MinimaxProblem,
    MinimisationProblem,
    QuadraticGame,
    VariationalProblem,
)
from fedsys.problems.networks.score_metrics import auroc

DIM = 4


def site(clients: int = 1, seed: int = 0) -> Site:
    return Site(Placement(clients), seed, torch.float64)


def unmetered(clients: int) -> Sync:
    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(clients), Every(1))
    return communicator.unmetered()


def points(oracle: Oracle, seed: int = 0) -> Tensor:
    """A different point for each client."""
    numbers = np.random.default_rng(seed).standard_normal(tuple(oracle.z0.shape))
    return torch.from_numpy(numbers)


def kinds(problem: Problem[Oracle]) -> set[str]:
    oracle = problem.oracle(site())
    return set(kinds_of(oracle))


# The quadratic game. With one sample per client, F(0) and F(e_k) - F(0) give its matrices.


@dataclass(frozen=True)
class Matrices:
    """A, B, C [M, d, d] and a, c [M, d] of clients with one sample each."""

    A: Tensor
    B: Tensor
    C: Tensor
    a: Tensor
    c: Tensor

    @classmethod
    def of(cls, clients: int, seed: int = 0) -> Matrices:
        oracle = QuadraticGame(dim=DIM, samples=1).oracle(site(clients, seed))
        b = oracle.full_operator(torch.zeros_like(oracle.z0))
        units = torch.eye(2 * DIM, dtype=torch.float64)
        columns = [oracle.full_operator(e.expand_as(b)) - b for e in units]
        M = torch.stack(columns, dim=2)
        A, B, C = M[:, :DIM, :DIM], M[:, :DIM, DIM:], M[:, DIM:, DIM:]
        return cls(A, B, C, b[:, :DIM], b[:, DIM:])

    def f(self, client: int, x1: Tensor, x2: Tensor) -> Tensor:
        """Zhang et al. (ICLR 2024), arXiv:2306.05100, eq. (5), whose misprint of x1 is x2 here."""
        A, B, C, a, c = (M[client] for M in (self.A, self.B, self.C, self.a, self.c))
        return x1 @ A @ x1 / 2 + x1 @ B @ x2 - x2 @ C @ x2 / 2 + a @ x1 - c @ x2


@pytest.mark.parametrize(("name", "low"), [("A", 0.01), ("C", 0.01), ("B", 0.0)])
def test_eigenvalues_of_the_game_lie_in_the_papers_intervals_and_fill_them(
    name: str, low: float
) -> None:
    matrices = getattr(Matrices.of(clients=500), name)
    torch.testing.assert_close(matrices, matrices.mT, rtol=0, atol=1e-12)
    eigenvalues = torch.linalg.eigvalsh(matrices)
    assert low - 1e-12 <= eigenvalues.min() <= low + 0.01
    assert 0.99 <= eigenvalues.max() <= 1 + 1e-12
    assert eigenvalues.mean() == pytest.approx((low + 1) / 2, abs=0.03)


def test_the_linear_terms_of_the_game_are_standard_normal() -> None:
    game = Matrices.of(clients=500)
    for numbers in (game.a, game.c):
        assert numbers.mean() == pytest.approx(0, abs=5 / numbers.numel() ** 0.5)
        assert numbers.std() == pytest.approx(1, abs=0.05)


def test_the_operator_of_the_game_consists_of_the_gradients_of_eq_5() -> None:
    game = Matrices.of(clients=5)
    oracle = QuadraticGame(dim=DIM, samples=1).oracle(site(5))
    z = points(oracle)
    F = oracle.operator(z, oracle.at(0).draw())
    for client in range(5):
        x1, x2 = (part.clone().requires_grad_() for part in z[client].split(DIM))
        g1, g2 = torch.autograd.grad(game.f(client, x1, x2), (x1, x2))
        torch.testing.assert_close(F[client], torch.cat([g1, -g2]), rtol=1e-12, atol=1e-12)


def test_the_game_differs_by_client_and_by_seed() -> None:
    game, again, other = Matrices.of(3), Matrices.of(3), Matrices.of(3, seed=1)
    assert torch.equal(game.A, again.A)
    distinct = {tuple(A.ravel().tolist()) for A in (*game.A, *other.A, *game.C)}
    assert len(distinct) == 9


def test_the_solution_of_the_game_zeroes_the_mean_operator() -> None:
    oracle = QuadraticGame(dim=20, samples=10).oracle(site(5))
    solution = oracle.solution(unmetered(5))
    F = oracle.full_operator(solution.expand_as(oracle.z0))
    assert F.mean(0).norm() < 1e-10
    assert F.norm(dim=1).min() > 0.1  # it solves no client's own game: the game is heterogeneous


def test_the_games_metrics_are_one_at_the_start_and_zero_at_the_solution() -> None:
    oracle = QuadraticGame(dim=DIM, samples=10).oracle(site(3))
    sync = unmetered(3)
    start = oracle.evaluate(oracle.z0, sync)
    assert start["relative_error"] == pytest.approx(1, abs=1e-15)
    norm = oracle.full_operator(oracle.z0).mean(0).norm()
    assert start["operator_norm"] == pytest.approx(float(norm), rel=1e-12)
    end = oracle.evaluate(oracle.solution(sync).expand_as(oracle.z0), sync)
    assert end["relative_error"] == 0
    assert end["operator_norm"] < 1e-10


def test_the_gradients_of_the_game_are_the_parts_of_its_operator() -> None:
    oracle = QuadraticGame(dim=DIM, samples=6, batch_size=2).oracle(site(3))
    z = points(oracle)
    xi = oracle.at(3).draw()
    gx, gy = oracle.grads(z[:, :DIM], z[:, DIM:], xi)
    assert torch.equal(torch.cat([gx, -gy], dim=1), oracle.operator(z, xi))


def test_single_samples_of_the_game_have_the_full_operator_as_their_mean() -> None:
    oracle = QuadraticGame(dim=DIM, samples=7, batch_size=1).oracle(site(2))
    z = points(oracle)
    draws = torch.stack([oracle.operator(z, oracle.at(t).draw()) for t in range(4000)])
    distinct = {tuple(row) for row in draws[:, 0].tolist()}
    assert len(distinct) == 7  # one value for each sample
    sigma = draws.std(0) / 4000**0.5
    assert bool(((draws.mean(0) - oracle.full_operator(z)).abs() < 5 * sigma).all())


def test_without_a_batch_size_every_draw_is_the_full_operator() -> None:
    oracle = QuadraticGame(dim=DIM, samples=7).oracle(site(2))
    z = points(oracle)
    assert torch.equal(oracle.operator(z, oracle.at(3).draw()), oracle.full_operator(z))


@pytest.mark.parametrize("name", ["dim", "samples", "batch_size"])
def test_a_game_without_variables_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1.*, got 0"):
        QuadraticGame(**{name: 0})


# The AUC objective. With one input, weight 1 and bias 0, the score of the input logit(h) is h.

SCORES = np.array([0.8, 0.6, 0.3, 0.1, 0.5])
LABELS = np.array([1, 1, 0, 0, 0])


@dataclass(frozen=True)
class Scored:
    """Samples whose scores are known."""

    scores: tuple[float, ...] = tuple(SCORES)
    labels: tuple[int, ...] = tuple(LABELS)

    def load(self) -> Dataset:
        h = np.array(self.scores)
        inputs = torch.from_numpy(np.log(h / (1 - h)))[:, None]
        labels = torch.tensor(self.labels)
        return Dataset(inputs, labels, inputs, labels, classes=2)


def auc_at(a: float, b: float, alpha: float, scores: np.ndarray = SCORES) -> tuple[float, dict]:
    """F and its gradient by name, for labels LABELS and p = 2/5."""
    problem = DeepAUC(
        Scored(tuple(scores)), model=MLP([]), imbalance=Imbalance(None), batch_size=None
    )
    oracle = problem.oracle(site())
    index = oracle.named(torch.arange(oracle.z0.shape[1]))
    assert len(index) == 5
    z = torch.zeros_like(oracle.z0)
    values = {"weight": 1.0, "bias": 0.0, "a": a, "b": b, "alpha": alpha}
    where = {
        name: int(index[next(n for n in index if n.split(".")[-1] == name)]) for name in values
    }
    for name, value in values.items():
        z[0, where[name]] = value
    xi = oracle.draw()
    gx, gy = oracle.grads(z[:, : oracle.x0.shape[1]], z[:, oracle.x0.shape[1] :], xi)
    gradient = torch.cat([gx, gy], dim=1)[0]
    return float(oracle.losses(z, xi)[0]), {n: float(gradient[i]) for n, i in where.items()}


def test_the_auc_objective_and_its_gradient_by_hand() -> None:
    # p = 0.4, a = 0.5, b = 0.2, alpha = -0.1; sums over the five samples:
    #   (1-p)(h-a)^2 1+     0.6 (0.09 + 0.01)                  =  0.060
    #   p(h-b)^2 1-         0.4 (0.01 + 0.01 + 0.09)           =  0.044
    #   p h 1- - (1-p) h 1+ 0.4 * 0.9 - 0.6 * 1.4              = -0.480, times 2(1 + alpha) = 1.8
    # F = (0.060 + 0.044 - 0.864) / 5 - p(1-p) alpha^2 = -0.152 - 0.0024
    loss, gradient = auc_at(a=0.5, b=0.2, alpha=-0.1)
    assert loss == pytest.approx(-0.1544, abs=1e-12)
    assert gradient["a"] == pytest.approx(-2 * 0.6 * (0.3 + 0.1) / 5, abs=1e-12)
    assert gradient["b"] == pytest.approx(-2 * 0.4 * (0.1 - 0.1 + 0.3) / 5, abs=1e-12)
    assert gradient["alpha"] == pytest.approx(2 * -0.48 / 5 + 2 * 0.24 * 0.1, abs=1e-12)
    # dF/dh: positives 2(1-p)(h-a) - 2(1+alpha)(1-p), negatives 2p(h-b) + 2(1+alpha)p; dh/dbias is
    # h(1-h).
    dh = [1.2 * 0.3 - 1.08, 1.2 * 0.1 - 1.08, 0.8 * 0.1 + 0.72, 0.8 * -0.1 + 0.72, 0.8 * 0.3 + 0.72]
    expected = np.mean(np.array(dh) * SCORES * (1 - SCORES))
    assert gradient["bias"] == pytest.approx(expected, abs=1e-12)


def test_at_fixed_scores_the_optimum_is_the_class_means_and_their_difference() -> None:
    _, gradient = auc_at(a=0.7, b=0.3, alpha=0.3 - 0.7)
    assert [gradient[name] for name in ("a", "b", "alpha")] == pytest.approx([0] * 3, abs=1e-12)


def test_at_its_optimum_the_objective_is_the_pairwise_square_loss_up_to_a_constant() -> None:
    def difference(scores: np.ndarray) -> float:
        positive, negative = scores[LABELS == 1], scores[LABELS == 0]
        a, b = positive.mean(), negative.mean()
        loss, _ = auc_at(a, b, b - a, scores)
        pairs = (1 - positive[:, None] + negative[None, :]) ** 2
        return loss - 0.4 * 0.6 * pairs.mean()

    other = np.array([0.15, 0.9, 0.45, 0.7, 0.2])
    assert difference(SCORES) == pytest.approx(difference(other), abs=1e-12)


def test_the_prior_is_that_of_all_clients_together_at_any_placement() -> None:
    # The ratio of positives of a single client, and hence its objective, would differ.
    problem = DeepAUC(Clouds(), model=MLP([]), batch_size=None)
    alone = problem.oracle(site(6))
    losses = alone.losses(alone.z0, alone.draw())
    for rank in range(6):
        oracle = problem.oracle(Site(Placement(6, rank, 6), dtype=torch.float64))
        assert float(oracle.losses(oracle.z0, oracle.draw())[0]) == pytest.approx(
            float(losses[rank]), abs=1e-14
        )


@dataclass(frozen=True)
class ConsecutiveParts:
    """A partition into consecutive samples, with a given number of samples per client."""

    sizes: tuple[int, ...]

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        ends = np.cumsum(self.sizes)
        return [np.arange(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]


# Client 0 has the scores .8 .6 of positives and .3 of a negative, client 1 two negatives and, in
# some tests, the positive .9. At a = b = alpha = 0, and for w such that h are the scores,
#   F = [(1-p) sum+ h^2 + p sum- h^2 + 2 p sum- h - 2 (1-p) sum+ h] / n.


def ratio_losses(ratio: str, sizes: tuple[int, ...], scores: tuple[float, ...]) -> list[float]:
    labels = np.array([1, 1, 0, 0, 0, 1])[: len(scores)]
    problem = DeepAUC(
        Scored(scores, tuple(labels)),
        ConsecutiveParts(sizes),
        MLP([]),
        None,
        Imbalance(None),
        ratio,
    )
    oracle = problem.oracle(site(len(sizes)))
    z = torch.zeros_like(oracle.z0)
    index = oracle.named(torch.arange(z.shape[1]))
    z[:, int(index["net.0.weight"])] = 1.0
    return oracle.losses(z, oracle.draw()).tolist()


def f_at_zero(p: float, positive: list[float], negative: list[float]) -> float:
    plus = sum(h * h - 2 * h for h in positive)
    minus = sum(h * h + 2 * h for h in negative)
    return ((1 - p) * plus + p * minus) / (len(positive) + len(negative))


def test_the_positive_ratio_is_that_of_all_clients_samples_or_of_each_clients_own() -> None:
    scores = (0.8, 0.6, 0.3, 0.1, 0.5, 0.9)
    parts = ([0.8, 0.6], [0.3]), ([0.9], [0.1, 0.5])
    for ratio, shares in (("global", (1 / 2, 1 / 2)), ("client", (2 / 3, 1 / 3))):
        expected = [f_at_zero(p, *part) for p, part in zip(shares, parts, strict=True)]
        assert ratio_losses(ratio, (3, 3), scores) == pytest.approx(expected, abs=1e-12)


def test_the_global_ratio_counts_only_samples_of_clients() -> None:
    scores = (0.8, 0.6, 0.3, 0.1, 0.5, 0.9)  # no client has the last sample
    expected = [f_at_zero(0.4, [0.8, 0.6], [0.3]), f_at_zero(0.4, [], [0.1, 0.5])]
    assert ratio_losses("global", (3, 2), scores) == pytest.approx(expected, abs=1e-12)


def test_a_client_with_a_single_class_is_refused_for_the_client_ratio() -> None:
    with pytest.raises(InputError, match=r"client 1 has samples of one class only.*global"):
        ratio_losses("client", (3, 2), (0.8, 0.6, 0.3, 0.1, 0.5))


def test_an_unknown_positive_ratio_is_refused() -> None:
    with pytest.raises(InputError, match="positive_ratio must be global or client, got 'mine'"):
        DeepAUC(positive_ratio="mine")


@pytest.mark.parametrize("problem", [DeepAUC, Classification])
def test_an_empty_batch_is_refused(problem: type) -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1, or null for all, got 0"):
        problem(batch_size=0)


def test_test_auc_is_that_of_scikit_learn_on_the_whole_test_set() -> None:
    from sklearn.metrics import roc_auc_score

    problem = DeepAUC(Clouds(), model=MLP([3]), batch_size=4)
    oracle = problem.oracle(site(4))
    z = points(oracle)[:1].expand_as(oracle.z0)
    metrics = oracle.evaluate(z, unmetered(4))
    net = problem.model.build((5,), 1).double()
    weights = {k.removeprefix("net."): v for k, v in oracle.named(z[0]).items() if "net." in k}
    net.load_state_dict(weights)
    data = Clouds().load()
    scores = net(data.test_inputs)[:, 0].sigmoid().detach()
    auc = roc_auc_score(data.test_labels >= 2, scores)
    assert 0.02 < auc < 0.98
    assert metrics["test_auc"] == pytest.approx(auc, abs=1e-6)
    losses = oracle.losses(z, oracle.data.batches.whole)
    assert metrics["train_loss"] == pytest.approx(float(losses.mean()), abs=1e-12)


def test_classification_reports_the_accuracy_on_the_test_set() -> None:
    problem = Classification(Clouds(), model=MLP([]), batch_size=4)
    oracle = problem.oracle(site(4))
    z = points(oracle)[:1].expand_as(oracle.z0)
    net = problem.model.build((5,), 4).double()
    net.load_state_dict(oracle.named(z[0]))
    data = Clouds().load()
    right = (net(data.test_inputs).argmax(1) == data.test_labels).double().mean()
    metrics = oracle.evaluate(z, unmetered(4))
    assert metrics["test_accuracy"] == pytest.approx(float(right), abs=1e-6)


# Problems from functions.


def test_an_operator_function_serves_variational_and_minimax_algorithms() -> None:
    problem = VariationalProblem(lambda z, client, rng: (client + 1) * z, torch.ones(3), split=1)
    assert kinds(problem) == {"variational", "minimax"}
    oracle = problem.oracle(site(3))
    z = points(oracle)
    xi = oracle.at(0).draw()
    factors = torch.tensor([[1.0], [2.0], [3.0]])
    assert torch.equal(oracle.operator(z, xi), factors * z)
    gx, gy = oracle.grads(z[:, :1], z[:, 1:], xi)
    assert torch.equal(gx, factors * z[:, :1])
    assert torch.equal(gy, -factors * z[:, 1:])
    assert oracle.z0.dtype == torch.float64
    assert {name: value.shape for name, value in oracle.named(z[0]).items()} == {"z": (3,)}


def test_an_operator_function_reports_its_norm_and_its_own_metrics() -> None:
    def metrics(z: Tensor) -> dict[str, float]:
        return {"first": float(z[0])}

    problem = VariationalProblem(
        lambda z, client, rng: z - client, torch.tensor([3.0, 5.0]), metrics=metrics
    )
    oracle = problem.oracle(site(3))
    record = oracle.evaluate(oracle.z0, unmetered(3))
    assert record["operator_norm"] == pytest.approx((2**2 + 4**2) ** 0.5)  # z minus the mean, 1
    assert record["first"] == 3


def test_a_minimax_function_is_differentiated_in_both_players() -> None:
    def loss(x: Tensor, y: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (x**3).sum() + client * x[0] * y[0] - y.square().sum()

    problem = MinimaxProblem(loss, torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    assert kinds(problem) == {"variational", "minimax"}
    oracle = problem.oracle(site(2))
    gx, gy = oracle.grads(oracle.x0, oracle.y0, oracle.at(0).draw())
    assert gx.tolist() == [[3, 12], [3 + 3, 12]]
    assert gy.tolist() == [[-6], [1 - 6]]
    F = oracle.operator(oracle.z0, oracle.at(0).draw())
    assert F.tolist() == [[3, 12, 6], [6, 12, 5]]
    assert not gx.requires_grad


def test_a_minimisation_function_is_differentiated_and_reports_its_mean() -> None:
    def loss(x: Tensor, client: int, rng: np.random.Generator) -> Tensor:
        return (x - client).square().sum()

    problem = MinimisationProblem(loss, torch.tensor([3.0, 0.0]))
    assert kinds(problem) == {"variational", "minimisation"}
    oracle = problem.oracle(site(2))
    assert oracle.grad(oracle.x0, oracle.at(0).draw()).tolist() == [[6, 0], [4, -2]]
    assert oracle.evaluate(oracle.z0, unmetered(2)) == {"train_loss": (9 + (4 + 1)) / 2}
    assert oracle.named(oracle.z0[0])["x"].tolist() == [3, 0]


def test_a_function_gets_the_generator_of_its_client_step_and_draw() -> None:
    problem = VariationalProblem(
        lambda z, client, rng: torch.from_numpy(rng.standard_normal(2)), torch.zeros(2)
    )
    oracle = problem.oracle(site(3, seed=5)).at(7)
    first, second = (oracle.operator(oracle.z0, oracle.draw()) for _ in range(2))
    for k, rows in enumerate((first, second)):
        for client in range(3):
            numbers = generator(5, "function", client, 7, k).standard_normal(2)
            assert rows[client].tolist() == numbers.tolist()


def test_the_same_draw_gives_the_same_numbers_at_two_points() -> None:
    # Variance reduction needs F(z; xi) - F(w; xi) with the same xi.
    problem = VariationalProblem(
        lambda z, client, rng: z + torch.from_numpy(rng.standard_normal(2)), torch.zeros(2)
    )
    oracle = problem.oracle(site(2)).at(1)
    xi = oracle.draw()
    z = points(oracle)
    difference = oracle.operator(z, xi) - oracle.operator(oracle.z0, xi)
    torch.testing.assert_close(difference, z, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (QuadraticGame(dim=2, samples=2), {"variational", "minimax"}),
        (DeepAUC(Clouds()), {"variational", "minimax"}),
        (Classification(Clouds()), {"variational", "minimisation"}),
        (BinaryClassification(Clouds()), {"variational", "minimisation"}),
        (CompositionalAUC(Clouds()), {"variational", "minimax", "compositional"}),
    ],
    ids=["game", "auc", "classes", "binary", "compositional"],
)
def test_a_problem_declares_the_kinds_that_its_oracle_has(
    problem: Problem[Oracle], expected: set[str]
) -> None:
    assert kinds(problem) == expected
    assert set(type(problem).kinds) == expected


class TestTheAreaUnderTheCurve:
    def test_uses_the_order_of_logits_whose_scores_are_all_one(self) -> None:
        assert auroc(torch.tensor([100.0, 200.0, 300.0]), torch.tensor([0, 1, 1])) == 1

    def test_counts_a_tie_as_half_at_any_position_in_the_vector(self) -> None:
        # In a vector of 13 the last values are not computed by the vectorised loop.
        logits = torch.full((13,), -0.49470457434654236, dtype=torch.float64)
        assert auroc(logits, torch.arange(13) % 2) == 0.5

    def test_is_the_fraction_of_pairs_in_order(self) -> None:
        # Of the pairs (1, 0), (1, 2), (3, 0), (3, 2) only the second is not in order.
        logits = torch.tensor([0.0, 1.0, 2.0, 3.0])
        assert auroc(logits, torch.tensor([0, 1, 0, 1])) == 0.75
