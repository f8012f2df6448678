"""The site-by-site matrix: the common model and every client's, on every client's test samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.hospitals import Hospitals, hospital_problem, hospital_run
from support.processes import Ranks

import fedsys
from fedsys.core.errors import InputError
from fedsys.core.optional_oracles import CrossSite
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.problems import DeepAUC
from fedsys.training.cross_site import ClientModels, cross_site

LR, STEPS = 0.1, 2


def matrix(local_steps: int = STEPS, single: int | None = None, **options: Any) -> dict[str, Any]:
    problem = hospital_problem(Hospitals(single=single), cross_site=True, **options)
    return hospital_run(problem, local_steps=local_steps).report["cross_site"]  # type: ignore[index]


def test_the_model_of_a_client_is_the_common_one_after_a_round_of_its_local_steps() -> None:
    problem = hospital_problem(cross_site=True)
    result = hospital_run(problem)
    assert result.report is not None
    found = result.report["cross_site"]
    assert found["models"] == ["common", "client 0", "client 1", "client 2"]
    assert (found["metric"], found["local_steps"]) == ("test_auc", STEPS)
    assert found["values"][0] == pytest.approx(result.records[-1]["test_auc_clients"], abs=1e-6)

    # Two steps of gradient descent and ascent by hand, and the scores of a plain network.
    site = Site(Placement(3), dtype=torch.float64)
    oracle = problem.oracle(site)
    x, y = result.state.x, result.state.y  # type: ignore[attr-defined]
    for step in (6, 7):
        at = oracle.at(step)
        gx, gy = at.grads(x, y, at.draw())
        x, y = x - LR * gx, y + LR * gy
    data = Hospitals().load_owned(site)
    assert data.test_owners is not None
    for model in range(3):
        row = torch.cat([x[model], y[model]])
        net = fedsys.models.MLP([3]).build((4,), 1).double()
        named = oracle.named(row)
        net.load_state_dict({k[4:]: v for k, v in named.items() if k.startswith("net.")})
        scores = net(data.test_inputs)[:, 0].detach()
        for client in range(3):
            mine = data.test_owners == client
            expected = roc_auc_score(data.test_labels[mine], scores[mine])
            assert found["values"][1 + model][client] == pytest.approx(expected, abs=1e-6)


def test_without_local_steps_only_the_common_model_is_judged() -> None:
    found = matrix(local_steps=1)
    assert (found["models"], found["local_steps"]) == (["common"], 0)
    assert len(found["values"]) == 1


def test_a_client_with_one_class_has_an_empty_column() -> None:
    assert [row[1] for row in matrix(single=1)["values"]] == [None] * 4


def test_the_matrix_needs_test_samples_of_the_clients() -> None:
    with pytest.raises(InputError, match="cross_site=true judges models on the test samples of"):
        DeepAUC(cross_site=True).oracle(Site())
    assert hospital_run(hospital_problem()).report is None


def test_running_statistics_are_as_before() -> None:
    from fedsys.communication import AllReduce, LocalTransport
    from fedsys.core.rounds import Every
    from fedsys.core.sync import Sync

    class Judged:
        judges_all_models = True

        def __init__(self) -> None:
            self.synchronised_buffers: torch.Tensor | None = torch.tensor([[1.0], [3.0]])

        def at(self, step: int) -> Judged:
            return self

        def client_aucs(self, z: torch.Tensor, sync: Sync) -> torch.Tensor:
            assert self.synchronised_buffers is not None
            return z[:, 0] + 10 * self.synchronised_buffers[:, 0]

    class Adding:
        schedule = Every(2)

        def step(self, state: Any, oracle: Judged, sync: Sync) -> Any:
            assert not sync
            assert oracle.synchronised_buffers is not None
            oracle.synchronised_buffers += 1
            return state + torch.tensor([[1.0], [2.0]])

        def solution(self, state: Any) -> Any:
            return state

    oracle, communicator = Judged(), AllReduce()
    assert isinstance(oracle, CrossSite)
    communicator.open(LocalTransport(), Placement(2), Every(2))
    models = ClientModels(Adding(), torch.zeros(2, 1), 8, communicator)  # type: ignore[arg-type]
    found = cross_site(oracle, models, torch.zeros(2, 1), communicator.unmetered())
    # Model m ends at 2 or 4, with statistics 3 or 5.
    assert found["values"] == [[10, 30], [32, 32], [54, 54]]
    assert oracle.synchronised_buffers is not None
    assert oracle.synchronised_buffers.flatten().tolist() == [1, 3]


@pytest.mark.timeout(120)
def test_the_matrix_does_not_depend_on_the_placement(ranks: Ranks) -> None:
    alone = matrix()
    for count in (2, 3):
        first = ranks(count, matrix)[0]
        assert first["models"] == alone["models"]
        for one, other in zip(alone["values"], first["values"], strict=True):
            assert other == pytest.approx(one, abs=1e-12)


def test_a_run_writes_the_matrix_and_the_metrics_of_each_client(
    fedsys: Any, tmp_path: Path
) -> None:
    for client in range(3):
        rows = [f"{(5 * i + client) % 7},{i % 3},{int(i % 2 == 0)}" for i in range(30)]
        (tmp_path / f"h{client}.csv").write_text("\n".join(["age,dose,ill", *rows]) + "\n")
    done = fedsys(
        "dataset=table", "dataset.path=h{client}.csv", "dataset.label=ill", "partition=none",
        "algorithm=local_sgda", "algorithm.local_steps=2", "model.hidden=[3]", "clients=3",
        "problem.cross_site=true", "problem.imbalance.positive_ratio=null", "rounds=2",
        "run.dir=run", "evaluate_every=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run/cross_site.json").read_text())
    assert [len(row) for row in found["values"]] == [3, 3, 3, 3]
    assert not (tmp_path / "run/report.json").exists()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)["test_auc_clients"]) == 3 for line in lines)
    assert "(client " in done.stdout
    # A finished run is shown again, and a longer one continues from its checkpoint.
    arguments = (
        "dataset=table", "dataset.path=h{client}.csv", "dataset.label=ill", "partition=none",
        "algorithm=local_sgda", "algorithm.local_steps=2", "model.hidden=[3]", "clients=3",
        "problem.imbalance.positive_ratio=null", "run.dir=run", "evaluate_every=1",
    )  # fmt: skip
    again = fedsys(*arguments, "rounds=2")
    assert (again.returncode, "this run is finished" in again.stdout) == (0, True), again.stderr
    longer = fedsys(*arguments, "rounds=3")
    assert longer.returncode == 0, longer.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3]
    refused = fedsys(*arguments, "rounds=4", "objective=test_auc_clients")
    assert refused.returncode == 2
    assert "objective must be one of" in refused.stderr
