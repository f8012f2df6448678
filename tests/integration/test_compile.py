"""problem.compile: the network through torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

import fedsys
from fedsys.core.errors import InputError
from fedsys.data import Dataset
from fedsys.models import CNNTable3
from fedsys.problems import CompositionalAUC, DeepAUC


class Pictures:
    """Noise of ten classes, as images."""

    def load(self) -> Dataset:
        images, labels = torch.randn(200, 1, 12, 12), torch.arange(200) % 10
        return Dataset(images, labels, images[:20], labels[:20], classes=10)


def final(compile: str | None) -> dict[str, torch.Tensor]:
    torch.compiler.reset()
    torch.manual_seed(0)
    problem = DeepAUC(Pictures(), model=CNNTable3(), batch_size=8, compile=compile)
    algorithm = fedsys.LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=2)
    return fedsys.run(problem, algorithm, steps=4, clients=2, dtype="float64").variables


def test_a_compiled_network_computes_the_same() -> None:
    # aot_eager takes the whole way of a compiled step but for the generated code.
    compiled = final("aot_eager")
    assert counters["stats"]["unique_graphs"] >= 1
    plain = final(None)
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-10, atol=1e-12)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"compile must be one of .*inductor.*, got 'gcc'"):
        DeepAUC(Pictures(), compile="gcc")


def test_a_problem_with_second_derivatives_cannot_be_compiled() -> None:
    with pytest.raises(InputError, match="no second derivatives"):
        CompositionalAUC(Pictures(), compile="inductor")
