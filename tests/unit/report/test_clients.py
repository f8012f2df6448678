"""Metrics of each client in a report: thin curves, the worst and the best client, the matrix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import write_run

from fedsys.report.clients import client_lines, extremes, matrices, read_cross_site
from fedsys.report.configurations import Configuration, configurations, metrics
from fedsys.report.main import main
from fedsys.report.runs import read_run, read_runs
from fedsys.report.table import main as table
from fedsys.training.run_files import UnreadableError

CURVES: Any = {
    "test_auc": [0.5, 0.8],
    "test_auc_clients": [[0.5, 0.4, None], [0.9, 0.7, None]],
    "train_loss": [1.0, 0.5],
    "train_loss_clients": [[1.0, 2.0, 3.0], [0.5, 0.25, 0.75]],
}
MATRIX = {
    "metric": "test_auc",
    "local_steps": 2,
    "models": ["common", "client 0", "client 1"],
    "values": [[0.75, 0.5], [1.0, None], [0.25, 0.125]],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with metrics of three clients and a matrix of two."""
    folder = write_run(tmp_path / "run", "A", 4, CURVES)
    (folder / "cross_site.json").write_text(json.dumps(MATRIX))
    return folder


@pytest.fixture
def configured(run: Path) -> list[Configuration]:
    return configurations(read_runs([run])[0])


def test_lists_are_read_and_are_no_metrics_of_their_own(configured: list[Configuration]) -> None:
    assert configured[0].runs[0].records[1]["test_auc_clients"] == [0.9, 0.7, None]
    assert metrics(configured) == ["test_auc", "train_loss"]


def test_each_client_has_a_curve_on_every_axis(configured: list[Configuration]) -> None:
    lines = client_lines(configured[0], "test_auc", ["round", "step"])
    assert lines == [[[0, 0, 0.5], [5, 50, 0.9]], [[0, 0, 0.4], [5, 50, 0.7]], []]
    assert client_lines(configured[0], "drift", ["round"]) == []


def test_the_worst_and_the_best_client_are_named_by_the_direction_of_the_metric(
    configured: list[Configuration],
) -> None:
    assert extremes(configured, ["test_auc", "train_loss"]) == [
        ["a, seed 4", "test_auc", "0.8", "0.7 (client 1)", "0.9 (client 0)"],
        ["a, seed 4", "train_loss", "0.5", "0.75 (client 2)", "0.25 (client 1)"],
    ]


def test_the_page_has_thin_curves_the_table_and_the_matrix(run: Path) -> None:
    assert main([str(run)]) == 0
    found = re.search(r'id="data">(.*?)</script>', (run / "report/report.html").read_text(), re.S)
    assert found is not None
    data = json.loads(found.group(1))
    ofone = data["configurations"][0]["clients"]["test_auc"]
    assert [len(line) for line in ofone] == [2, 2, 0]
    assert ofone[0][1][-1] == 0.9
    assert data["clients"]["rows"][0]["cells"][3:] == ["0.7 (client 1)", "0.9 (client 0)"]
    (matrix,) = data["matrices"]
    assert matrix["head"] == ["model", "client 0", "client 1"]
    assert matrix["rows"][1] == ["client 0", "1", "-"]
    assert not [path for path in (run / "report").iterdir() if "clients" in path.name]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps({**MATRIX, "values": [[1.0, "a"]]}),
        json.dumps({**MATRIX, "models": ["common"]}),
        json.dumps({**MATRIX, "values": [[1.0], [1.0, 2.0], [1.0]]}),
    ],
)
def test_a_damaged_matrix_is_named_and_ignored(run: Path, content: str) -> None:
    (run / "cross_site.json").write_text(content)
    with pytest.raises(UnreadableError):
        read_cross_site(run / "cross_site.json")
    found, warnings = matrices(configurations(read_runs([run])[0]))
    assert found == []
    assert len(warnings) == 1
    assert "cross_site.json" in warnings[0]


def test_a_run_without_a_matrix_shows_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "plain", "A", 0, {"test_auc": [0.5, 0.6]})
    assert matrices(configurations(read_runs([folder])[0])) == ([], [])


def test_a_table_refuses_to_rank_by_a_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table([str(run), "--metric", "test_auc_clients"]) == 2
    assert "reports no metric named 'test_auc_clients'" in capsys.readouterr().err
    assert table([str(run), "--metric", "test_auc"]) == 0


def test_lists_of_anything_but_numbers_are_unreadable(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "bad", "A", 0, {"test_auc": [0.5, 0.6]})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 100, "round": 10, "test_auc_clients": [0.5, "a"]}\n')
        file.write('{"step": 100, "round": [10]}\n')
        file.write('{"step": 100, "round": 10, "seconds": [1]}\n')
    run, warnings = read_run(folder)
    assert run is not None
    assert len(run.records) == 2
    assert "lines 3, 4, 5 cannot be read" in warnings[0]
