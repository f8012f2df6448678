"""Python objects as plain data, for config.yaml."""

from __future__ import annotations

import enum
import functools
from collections import UserList
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

from fedsys.algorithms import LSGD
from fedsys.communication import SkipCoin
from fedsys.core.schedules import Cosine
from fedsys.training.described import described

HERE = __name__


class Colour(enum.Enum):
    RED = "red"


class Plain:
    def __init__(self) -> None:
        self.width, self._cache, self.lock = 3, 4, object()
        self.itself = self

    def method(self) -> None: ...


def function() -> None: ...


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (0.1, 0.1),
        ("text", "text"),
        ("${seed}", "$ {seed}"),
        ((1, [2, "x"]), [1, [2, "x"]]),
        ({1: {"a": 2}}, {"1": {"a": 2}}),
        (frozenset({2, 1}), [1, 2]),
        (range(3), [0, 1, 2]),
        (Path("a/b"), "a/b"),
        (torch.float64, "torch.float64"),
        (torch.device("cpu"), "cpu"),
        (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (np.float64(2.5), 2.5),
        (np.array([True]), [True]),
        (np.array(["a"]), ["a"]),
        (Colour.RED, "red"),
        (function, f"{HERE}.function"),
        (Plain().method, f"{HERE}.Plain.method"),
        (lambda: None, f"{HERE}.<lambda>"),
        (LSGD, "fedsys.algorithms.LSGD"),
        (Plain(), {"_target_": f"{HERE}.Plain", "width": 3}),
        (
            LSGD(lr=0.5, local_steps=2),
            {"_target_": "fedsys.algorithms.LSGD", "local_steps": 2, "lr": 0.5},
        ),
        (
            functools.partial(function, 1, b=2),
            {"_target_": f"{HERE}.function", "args": [1], "b": 2},
        ),
    ],
)
def test_an_object_is_described_by_plain_data(value: Any, plain: Any) -> None:
    assert described(value) == plain
    assert yaml.safe_load(yaml.safe_dump(described(value))) == plain


def test_a_communicator_is_described_by_its_arguments() -> None:
    found = described(SkipCoin(timeout=9.0, participation=0.5))
    assert found["_target_"] == "fedsys.communication.SkipCoin"
    assert (found["timeout"], found["participation"], found["compression"]) == (9.0, 0.5, "none")


def test_schedules_are_described_inside_of_algorithms() -> None:
    found = described(LSGD(lr=Cosine(0.5, 10)))
    assert found["lr"]["_target_"].endswith("Cosine")
    assert 0.5 in found["lr"].values()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_many_numbers_are_described_by_a_checksum(dtype: torch.dtype) -> None:
    one = torch.zeros(5, 20).to(dtype)
    other = one.clone()
    other[4, 19] = 1
    found = described(one)
    assert (found["shape"], found["dtype"]) == ([5, 20], str(dtype))
    assert described(one.clone()) == found != described(other)
    assert described(one.t().contiguous().t()) == found


def test_long_lists_and_weights_are_described_by_a_checksum() -> None:
    assert described(list(range(100))) == described(range(100)) != described([*range(99), 0])
    torch.manual_seed(0)
    module = nn.Linear(3, 4)
    found = described(module)
    assert found["_target_"] == "torch.nn.modules.linear.Linear"
    with torch.no_grad():
        module.bias[0] += 1
    assert described(module) != found


def test_arrays_without_plain_numbers_are_described_by_their_shape() -> None:
    for value in (np.array([object()]), torch.zeros(3, dtype=torch.complex64)):
        assert set(described(value)) == {"_target_", "shape", "dtype"}


def test_data_sets_are_described_by_their_tensors_and_lengths() -> None:
    inputs, labels = torch.zeros(40, 2), torch.zeros(40)
    found = described(TensorDataset(inputs, labels))
    assert found["length"] == 40
    assert found == described(TensorDataset(inputs.clone(), labels))
    assert found != described(TensorDataset(inputs + 1, labels))


class Lazy(UserList[int]):
    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("the data of a client that is not hosted here")


def test_a_sequence_that_loads_its_elements_is_not_read() -> None:
    assert described(Lazy([1, 2])) == {"_target_": f"{HERE}.Lazy", "length": 2, "data": [1, 2]}


def test_a_checksum_of_a_large_array_is_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsys.training.described._MOST_BYTES", 100)
    one = torch.arange(100.0)
    assert described(one) != described(one + 1)
    assert described(one.numpy())["sha256"] == described(one)["sha256"]


def test_deep_and_circular_objects_end() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert str(described(deep)).count("[") < 20
    circle: dict[str, Any] = {}
    circle["again"] = circle
    assert "again" in described(circle)
