"""What a run leaves of a network is what was evaluated, and loads into the user's module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.cases import BatchNormNet, Clouds
from support.data_files import write_pneumonia
from support.processes import Ranks, command
from torch import Tensor, nn

import fedsys
from fedsys.algorithms import FedAvg, FedBiO, LocalSCGDAM, LocalSGDA
from fedsys.clients.flat_module import FlatModule
from fedsys.communication import AllReduce
from fedsys.core.errors import InputError
from fedsys.data import Dataset, PneumoniaMNIST, Scaling
from fedsys.models import CNNTable3, load_network
from fedsys.problems import (
    BinaryClassification,
    Classification,
    CompositionalAUC,
    DeepAUC,
    HyperCleaning,
    RobustNetwork,
)
from fedsys.problems.networks.score_metrics import auroc

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pictures:
    """Two classes of images in bytes, one brighter than the other, with three channels."""

    def load(self) -> Dataset:
        stream = np.random.default_rng(0)
        labels = np.arange(96) % 2
        bytes_ = stream.integers(0, 200, (96, 3, 12, 12)) + 40 * labels[:, None, None, None]
        inputs, targets = torch.from_numpy(bytes_.astype(np.uint8)), torch.from_numpy(labels)
        scaling = Scaling((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
        parts = (inputs[:64], targets[:64], inputs[64:], targets[64:])
        return Dataset(*parts, classes=2, scaling=scaling)


def outputs(net: nn.Module, data: Dataset, dtype: torch.dtype) -> Tensor:
    with torch.no_grad():
        result: Tensor = net.to(dtype).eval()(data.numbers(data.test_inputs, dtype, CPU))
    return result


PROBLEMS: dict[str, tuple[Any, Any]] = {
    "minimisation": (Classification, FedAvg(lr=0.1, local_steps=4)),
    "binary": (BinaryClassification, FedAvg(lr=0.1, local_steps=4)),
    "minimax": (DeepAUC, LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=4)),
    "compositional": (CompositionalAUC, LocalSCGDAM(local_steps=4)),
    "robust": (RobustNetwork, LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=4)),
}


@pytest.mark.parametrize("batchnorm", ["average", "local"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_reloaded_network_has_the_reported_test_metric(kind: str, batchnorm: str) -> None:
    problem, algorithm = PROBLEMS[kind]
    made = problem(Pictures(), model=CNNTable3(), batch_size=8)
    # 6 steps end within a round: the clients' statistics differ when they are saved.
    result = fedsys.run(
        made, algorithm, steps=6, clients=2, communicator=AllReduce(batchnorm=batchnorm)
    )
    data, scored = Pictures().load(), kind in ("binary", "minimax", "compositional")
    net = CNNTable3().build((3, 12, 12), 1 if scored else 2)
    load_network(net, result.variables)
    found, reported = outputs(net, data, torch.float32), result.records[-1]
    if scored:
        assert auroc(found[:, 0], data.test_labels) == reported["test_auc"]
    else:
        right = (found.argmax(1) == data.test_labels).double().mean()
        assert float(right) == pytest.approx(reported["test_accuracy"], abs=1e-7)
    assert net.state_dict()["1.running_mean"].abs().sum() > 0


def test_the_variables_of_a_network_are_its_state_dict_by_name_shape_and_type() -> None:
    problem = Classification(Clouds(), model=BatchNormNet(), batch_size=8)
    result = fedsys.run(problem, FedAvg(), steps=3, clients=2, dtype="float64")
    net = BatchNormNet().build((5,), 4).double()
    expected = {name: (value.shape, value.dtype) for name, value in net.state_dict().items()}
    found = {name: (value.shape, value.dtype) for name, value in result.variables.items()}
    assert found == expected
    net.load_state_dict(result.variables, strict=True)


def statistics() -> dict[str, Tensor]:
    problem = Classification(Clouds(), model=BatchNormNet(), batch_size=8)
    given = {"steps": 5, "clients": 3, "dtype": "float64", "evaluate_every": 99}
    return fedsys.run(problem, FedAvg(local_steps=2), **given).variables


def test_the_saved_statistics_are_the_same_on_every_rank_of_any_placement(ranks: Ranks) -> None:
    alone = statistics()
    for variables in ranks(2, statistics):
        for name, value in alone.items():
            torch.testing.assert_close(variables[name], value, rtol=1e-12, atol=1e-12)


def test_final_safetensors_has_the_statistics_that_the_summary_was_made_with(
    tmp_path: Path,
) -> None:
    write_pneumonia(tmp_path)
    done = command(
        tmp_path, 1, "experiment=localscgdam/pneumoniamnist", "hydra.mode=RUN", "steps=6",
        "algorithm=localsgdm", "clients=2", f"dataset.root={tmp_path}", "run.dir=run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = PneumoniaMNIST(root=str(tmp_path)).load()
    net = CNNTable3().build(data.input_shape, 1)
    load_network(net, load_file(tmp_path / "run" / "final.safetensors"))
    found = auroc(outputs(net, data, torch.float32)[:, 0], data.test_labels)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found == summary["final"]["test_auc"]


class Tied(nn.Module):
    """Two layers with one weight, a constant buffer, and one that is not part of the state."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.last = nn.Linear(width, outputs)
        self.register_buffer("scale", torch.tensor(1 / 3))
        self.register_buffer("rows", torch.arange(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs * self.scale))
        outputs: Tensor = self.last(torch.relu(self.second(hidden)))
        return outputs


@dataclass(frozen=True)
class TiedNet:
    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return Tied(*input_shape, outputs)


@pytest.mark.parametrize("kind", ["minimisation", "bilevel"])
def test_shared_weights_and_constant_buffers_are_saved_and_stay_what_they_are(kind: str) -> None:
    problem: Any = Classification(Clouds(), model=TiedNet(), batch_size=8)
    algorithm: Any = FedAvg(lr=0.1, local_steps=1)
    if kind == "bilevel":
        problem = HyperCleaning(Clouds(), model=TiedNet())
        algorithm = FedBiO(lr=0.1, inner_lr=0.1, local_steps=1)
    result = fedsys.run(problem, algorithm, steps=5, clients=3)
    net = Tied(5, 4)
    load_network(net, result.variables, client=2 if kind == "bilevel" else None)
    assert net.first.weight is net.second.weight
    assert result.variables["scale"] == torch.tensor(1 / 3)  # not a mean of three thirds
    assert result.variables["rows"].dtype == torch.int64
    assert "scratch" not in result.variables
    with torch.no_grad():
        data = Clouds().load()
        found = net(data.test_inputs.float()).argmax(1) == data.test_labels
    reported = result.records[-1]["test_accuracy"]
    if kind == "minimisation":
        assert float(found.double().mean()) == pytest.approx(reported, abs=1e-7)


def test_a_state_that_is_not_made_of_tensors_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    with pytest.raises(InputError, match="the network's state has '_extra_state' of type dict"):
        FlatModule(Extra(2, 2), torch.float32, CPU)


def test_a_network_that_lacks_an_entry_is_not_loaded() -> None:
    net = BatchNormNet().build((5,), 4)
    state = dict(net.state_dict())
    del state["1.running_var"]
    with pytest.raises(RuntimeError, match="Missing key"):
        load_network(net, state)
