"""A run whose scores no longer differ reports a warning."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import Clouds
from support.processes import command
from torch import Tensor, nn

import fedsys
from fedsys.algorithms import AdaFGDA, FedAvg, LocalSGDA
from fedsys.models import MLP
from fedsys.problems import BinaryClassification, DeepAUC


class Saturated(nn.Module):
    """A network for which a fraction `equal` of the scores are the same."""

    def __init__(self, width: int, equal: float) -> None:
        super().__init__()
        self.layer, self.equal = nn.Linear(width, 1), equal

    def forward(self, inputs: Tensor) -> Tensor:
        alive = torch.arange(len(inputs)) >= self.equal * len(inputs)
        return self.layer(inputs) * alive[:, None].to(inputs.dtype)


@dataclass(frozen=True)
class SaturatedNet:
    equal: float

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return Saturated(input_shape[0], self.equal)


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [(DeepAUC, LocalSGDA(lr_x=0.1, lr_y=0.1)), (BinaryClassification, FedAvg())],
    ids=["auc", "cross-entropy"],
)
@pytest.mark.parametrize(("equal", "count"), [(1.0, 60), (0.7, 42)])
def test_scores_that_no_longer_differ_are_reported_once(
    problem: Any, algorithm: Any, equal: float, count: int
) -> None:
    made = problem(Clouds(), model=SaturatedNet(equal))
    with pytest.warns(RuntimeWarning, match="scores of the 60 test samples hardly differ") as found:
        result = fedsys.run(made, algorithm, rounds=3, clients=2)
    assert len([w for w in found if w.category is RuntimeWarning]) == 1
    (line,) = result.warnings
    assert line.startswith("round 1: ")
    assert f"{count} are equal" in line


def test_a_sweep_reports_it_for_every_run() -> None:
    problem = BinaryClassification(Clouds(), model=SaturatedNet(1.0))
    with pytest.warns(RuntimeWarning, match="hardly differ") as found:
        fedsys.sweep(problem, FedAvg(), lr=[0.1, 0.2], seeds=[3], rounds=2, clients=2)
    texts = [str(w.message) for w in found if w.category is RuntimeWarning]
    begin = (
        "sweep: FedAvg (lr={}), seed 3: round 1: the scores of the 60 test samples hardly differ"
    )
    assert len(texts) == 2
    for text, lr in zip(texts, (0.1, 0.2), strict=True):
        assert text.startswith(begin.format(lr))


def test_a_network_that_learns_gets_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fedsys.run(DeepAUC(Clouds(), model=MLP([4])), AdaFGDA(), rounds=4, clients=2)
    assert result.warnings == []


def test_the_command_line_reports_it_in_one_line_and_in_the_summary(tmp_path: Path) -> None:
    # After a step of size 100 all units of the hidden layer are inactive.
    done = command(
        tmp_path, 1, "algorithm=fedavg", "problem=binary_classification", "algorithm.lr=100",
        "model.hidden=[4]", "rounds=2", "clients=2", "run.dir=run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedsys: warning: round 2: the scores of the")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [f"fedsys: warning: {w}" for w in summary["warnings"]] == [line]
    assert line.removeprefix("fedsys: ") in done.stdout
