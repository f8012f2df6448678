"""Pieces of batches, bfloat16 and weight decay: the same objective, computed in another way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import torch
from support.cases import RARE, Clouds
from torch import Tensor, nn

import fedsys
from fedsys.algorithms import FedAvg, LocalSGDA
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import Digits
from fedsys.models import MLP
from fedsys.problems import BinaryClassification, Classification, CompositionalAUC, DeepAUC
from fedsys.problems import RobustNetwork as Robust

SITE = Site(Placement(3), seed=4, dtype=torch.float64)
PROBLEMS: dict[str, Any] = {
    "classification": Classification(Clouds(), batch_size=7),
    "ratio": BinaryClassification(Clouds(), batch_size=7, imbalance=RARE, loss="ratio"),
    "auc": DeepAUC(Clouds(), batch_size=7, imbalance=RARE),
    "robust": Robust(Clouds(), batch_size=7),
}


def point(oracle: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(oracle.z0.shape, generator=generator, dtype=torch.float64) / 3


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_gradients_of_pieces_add_up_to_that_of_the_batch(problem: Any, size: int) -> None:
    whole, pieces = problem.oracle(SITE), replace(problem, micro_batch=size).oracle(SITE)
    z, batch = point(whole), whole.data.batches.at(0, 0)
    expected = whole.operator(z, batch)
    torch.testing.assert_close(pieces.operator(z, batch), expected, rtol=1e-10, atol=1e-10)
    exact = whole.full_operator(z)
    torch.testing.assert_close(pieces.full_operator(z), exact, rtol=1e-10, atol=1e-10)


def test_a_backward_pass_has_no_more_samples_than_a_piece() -> None:
    seen: list[int] = []

    class Counting(MLP):
        def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
            net = super().build(input_shape, outputs)
            forward = net.forward

            def counted(inputs: Tensor) -> Tensor:
                seen.append(len(inputs))
                found: Tensor = forward(inputs)
                return found

            net.forward = counted
            return net

    problem = Classification(Clouds(), model=Counting([3]), batch_size=7, micro_batch=3)
    oracle = problem.oracle(SITE)
    seen.clear()
    oracle.operator(oracle.z0, oracle.data.batches.at(0, 0))
    assert seen == [3, 3, 1] * 3


@dataclass(frozen=True)
class Norms:
    """A network with BatchNorm."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        size = prod(input_shape)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, outputs))


def test_pieces_of_a_batch_are_refused_with_batch_norm() -> None:
    problem = Classification(Clouds(), model=Norms(), batch_size=8, micro_batch=4)
    with pytest.raises(InputError, match="micro_batch is not possible with BatchNorm"):
        problem.oracle(SITE)


# Weight decay.


def flat(oracle: Any, numbers: dict[str, float]) -> Tensor:
    """Return a row with a value for the parameters whose names begin so, 0 elsewhere."""
    rows = [
        torch.full((size,), next((v for p, v in numbers.items() if name.startswith(p)), 0.0))
        for player in oracle._players
        for name, size in zip(player.names, player.sizes, strict=True)
    ]
    return torch.cat(rows).double().expand(len(oracle.z0), -1)


@pytest.mark.parametrize("vectorize", ["auto", "loop"])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_weight_decay_adds_its_factor_times_the_network_to_the_gradient(
    problem: Any, vectorize: str
) -> None:
    plain = problem.oracle(SITE)
    decayed = replace(problem, weight_decay=0.3, vectorize=vectorize).oracle(SITE)
    z, batch = point(plain), plain.data.batches.at(0, 0)
    is_binary = any(name.startswith("net.") for name in plain._players[0].names)
    # The class means a and b of the AUC loss and the max player are no weights of the network.
    weights = flat(plain, {"net." if is_binary else "": 1.0}).clone()
    weights[:, plain._dims[0] :] = 0
    expected = plain.operator(z, batch) + 0.3 * weights * z
    torch.testing.assert_close(decayed.operator(z, batch), expected, rtol=1e-12, atol=1e-12)
    exact = plain.full_operator(z) + 0.3 * weights * z
    torch.testing.assert_close(decayed.full_operator(z), exact, rtol=1e-12, atol=1e-12)
    by = 0.15 * (weights * z.square()).sum(1)
    found = decayed.losses(z, batch) - plain.losses(z, batch)
    torch.testing.assert_close(found, by, rtol=1e-10, atol=1e-12)


def test_train_loss_includes_the_weight_decay() -> None:
    settings: dict[str, Any] = {"rounds": 1, "clients": 2, "dtype": "float64"}
    problem, algorithm = Classification(Clouds(), model=MLP([3])), FedAvg(lr=0.1)
    plain = fedsys.run(problem, algorithm, **settings).records[0]
    decayed = fedsys.run(replace(problem, weight_decay=2.0), algorithm, **settings).records[0]
    start = problem.oracle(Site(Placement(2), dtype=torch.float64, kind="minimisation")).z0[0]
    expected = plain["train_loss"] + float(start.square().sum())
    assert decayed["train_loss"] == pytest.approx(expected, rel=1e-10)


def test_weight_decay_shrinks_the_network_under_any_algorithm() -> None:
    settings: dict[str, Any] = {"rounds": 40, "clients": 2, "seed": 1}
    problem = DeepAUC(Clouds(), imbalance=RARE, model=MLP([]))
    norms = []
    for decay in (0.0, 1.0):
        algorithm = LocalSGDA(lr_x=0.2, lr_y=0.2, local_steps=3)
        result = fedsys.run(replace(problem, weight_decay=decay), algorithm, **settings)
        (weight,) = [v for n, v in result.variables.items() if n.endswith("weight")]
        norms.append(float(weight.norm()))
    assert norms[1] < 0.3 * norms[0]


# bfloat16.


@dataclass(frozen=True)
class SmallCNN:
    """A convolution and a dense layer, for the 8x8 pixels of the digits."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, outputs),
        )


CNN = DeepAUC(Digits(), model=SmallCNN(), batch_size=16)


def test_bfloat16_ends_within_five_thousandths_of_the_auc_of_float32() -> None:
    settings: dict[str, Any] = {"rounds": 60, "clients": 2, "evaluate_every": 60, "seed": 1}
    algorithm = LocalSGDA(lr_x=0.3, lr_y=0.3, local_steps=4)
    plain = fedsys.run(CNN, algorithm, **settings)
    cast = fedsys.run(replace(CNN, autocast="bf16"), algorithm, **settings)
    first, last = plain.records[0]["test_auc"], plain.records[-1]["test_auc"]
    assert last > max(0.9, first + 0.1)
    assert abs(cast.records[-1]["test_auc"] - last) < 0.005
    different = [not torch.equal(cast.variables[n], v) for n, v in plain.variables.items()]
    assert any(different)
    assert {value.dtype for value in cast.variables.values()} == {torch.float32}


def test_training_passes_are_in_bfloat16_and_evaluation_is_not() -> None:
    site = Site(Placement(1), dtype=torch.float32)
    oracle = replace(CNN, autocast="bf16").oracle(site)
    seen: list[tuple[bool, torch.dtype]] = []
    dense = next(part for part in oracle.min_player.modules() if isinstance(part, nn.Linear))
    dense.register_forward_hook(
        lambda part, inputs, outputs: seen.append((part.training, outputs.dtype))
    )
    oracle.operator(oracle.z0, oracle.data.batches.at(0, 0))
    assert {*seen} == {(True, torch.bfloat16)}
    seen.clear()
    with oracle._evaluating():
        oracle._train_losses((oracle.x0, oracle.y0))
    assert {*seen} == {(False, torch.float32)}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"micro_batch": 0}, "micro_batch must be at least 1, or null for the whole batch, got 0"),
        ({"autocast": "fp16"}, "autocast must be bf16 or null, got 'fp16'"),
        ({"weight_decay": -0.1}, "weight_decay must be not negative, got -0.1"),
        (
            {"micro_batch": 4, "vectorize": "vmap"},
            "vectorize must be auto or loop with",
        ),
        ({"autocast": "bf16"}, "autocast=bf16 needs dtype=float32, got float64"),
    ],
)
def test_options_out_of_range_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        replace(PROBLEMS["auc"], **given).oracle(SITE)


@pytest.mark.parametrize("given", [{"micro_batch": 4}, {"weight_decay": 0.1}])
def test_second_derivatives_refuse_what_does_not_cover_them(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be left out: it has second derivatives"):
        CompositionalAUC(Clouds(), **given)
