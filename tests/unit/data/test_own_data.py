"""Data that clients own: who reads what, what they agree on, and the numbers of a run."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.processes import Done, Ranks
from torch.utils.data import Dataset as TorchDataset

import fedsys
from fedsys.algorithms import AdaFGDA, FedAvg, FedBiO, LocalSCGDAM
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import ClientDatasets, Dataset, ImageFolders, NoPartition, Table, TensorFiles
from fedsys.models import MLP
from fedsys.problems import BinaryClassification, CompositionalAUC, DeepAUC, GroupFair

SIZES = (40, 28, 60, 22)
CLIENTS = len(SIZES)


def write_tables(folder: Path) -> Table:
    """Four tables of different sizes and rates of positives."""
    stream = np.random.default_rng(3)
    for client, size in enumerate(SIZES):
        with (folder / f"{client}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "sex", "dose", "site", "outcome"])
            for row in range(size):
                sick = row % (3 + client) == 0
                sex, site = stream.choice(["f", "m"]), "ab"[row % 2]
                age, dose = stream.normal(50 + 9 * sick, 10), stream.normal(client + sick)
                rows.writerow([age, sex, dose, site, "sick" if sick else "well"])
    return Table(
        path=str(folder / "{client}.csv"),
        label="outcome",
        classes=["well", "sick"],
        categories={"sex": ["f", "m"], "site": ["a", "b"]},
    )


@dataclass(frozen=True)
class Pooled:
    """The same samples as one data set, which every rank reads."""

    table: Table

    def load(self) -> Dataset:
        data = self.table.load_owned(Site(Placement(CLIENTS)))
        return replace(data, train_owners=None, test_owners=None)


@dataclass(frozen=True)
class ByRows:
    """An explicit partition."""

    owners: tuple[int, ...]

    def split(self, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
        return [np.flatnonzero(np.array(self.owners) == client) for client in range(clients)]


POOLED = {"evaluation": "pooled"}  # the default of clients that own their data sums counts
METHODS: dict[str, tuple[type[Any], Any, dict[str, Any]]] = {
    "adafgda": (DeepAUC, AdaFGDA(local_steps=3), POOLED),
    "localscgdam": (CompositionalAUC, LocalSCGDAM(local_steps=3), POOLED),
    "fedavg": (BinaryClassification, FedAvg(local_steps=3), {"loss": "ratio", **POOLED}),
    "fedbio": (GroupFair, FedBiO(local_steps=3), {"validation_per_group": 4}),
}


def run_method(name: str, source: Any, partition: Any) -> tuple[list[dict[str, float]], Any]:
    kind, algorithm, options = METHODS[name]
    problem = kind(source, partition, MLP(hidden=[4]), batch_size=8, **options)
    result = fedsys.run(problem, algorithm, rounds=4, clients=CLIENTS, dtype="float64")
    return result.records, result.variables


def opened_and_run(name: str, table: Table) -> tuple[list[str], Any]:
    """The files with data that this rank opens, and the results."""
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".csv"):
            opened.append(Path(str(arguments[0])).name)

    sys.addaudithook(watch)
    return opened, run_method(name, table, NoPartition())


@pytest.mark.parametrize("name", list(METHODS))
def test_clients_that_own_their_data_give_the_numbers_of_the_same_data_when_partitioned(
    ranks: Ranks, tmp_path: Path, name: str
) -> None:
    table = write_tables(tmp_path)
    if name == "fedbio":
        table = replace(table, group="site")
    whole = table.load_owned(Site(Placement(CLIENTS)))
    assert whole.train_owners is not None
    split = ByRows(tuple(whole.train_owners.tolist()))
    records, variables = run_method(name, Pooled(table), split)
    for rank, (opened, (own_records, own_variables)) in enumerate(
        ranks(CLIENTS, opened_and_run, name, table)
    ):
        assert set(opened) == {f"{rank}.csv"}
        torch.testing.assert_close(own_variables, variables, rtol=1e-12, atol=1e-12)
        shared = own_records[-1].keys() & records[-1].keys() - {"seconds", "seconds_waited"}
        if name == "fedbio":  # its test metrics pool the clients' own test samples
            shared = {key for key in shared if not key.startswith("test_")}
        assert {"train_loss", "outer_loss"} & shared
        for mine, theirs in zip(own_records, records, strict=True):
            for key in shared:
                assert mine[key] == pytest.approx(theirs[key], rel=1e-12, abs=1e-12), key


def test_features_have_mean_0_and_deviation_1_over_the_rows_of_all_clients(tmp_path: Path) -> None:
    data = write_tables(tmp_path).load_owned(Site(Placement(CLIENTS)))
    assert data.preparation is not None
    assert list(data.preparation["columns"]) == ["age", "sex", "dose", "site"]
    age, dose = data.train_inputs[:, 0], data.train_inputs[:, 3]
    for column in (age, dose):
        assert float(column.mean()) == pytest.approx(0, abs=1e-10)
        assert float(column.std(correction=0)) == pytest.approx(1, abs=1e-10)
    assert data.train_inputs[:, 1:3].sum(1).tolist() == [1.0] * len(data.train_labels)


def test_a_table_without_a_place_for_the_client_is_partitioned(tmp_path: Path) -> None:
    table = replace(write_tables(tmp_path), path=str(tmp_path / "0.csv"))
    data = table.load()
    assert data.train_owners is None
    assert len(data.train_labels) + len(data.test_labels) == SIZES[0]
    result = fedsys.run(DeepAUC(table), AdaFGDA(), rounds=1, clients=2)
    assert 0 <= result.records[-1]["test_auc"] <= 1


def test_images_and_tensors_are_read_for_hosted_clients_only(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    for client in range(2):
        for label in ("normal", "sick"):
            folder = tmp_path / f"images-{client}" / label
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = stream.integers(0, 256, (12, 12), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
        inputs, labels = stream.normal(size=(20, 3)), np.arange(20) % 2
        np.savez(tmp_path / f"{client}.npz", inputs=inputs, labels=labels)
    images = ImageFolders(path=str(tmp_path / "images-{client}"), size=8, channels=1)
    tensors = TensorFiles(path=str(tmp_path / "{client}.npz"))
    for source in (images, tensors):
        data = source.load_owned(Site(Placement(2, rank=0, ranks=1)))
        assert data.train_owners is not None
        assert data.train_owners.bincount().tolist() == [16, 16]
        second = source.load_owned(Site(Placement(2, rank=1, ranks=2)))
        assert second.train_owners is not None
        assert second.train_owners.unique().tolist() == [1]
    pixels = images.load_owned(Site(Placement(2)))
    numbers = pixels.numbers(pixels.train_inputs, torch.float64, torch.device("cpu"))
    assert float(numbers.mean()) == pytest.approx(0, abs=1e-10)
    assert float(numbers.std(correction=0)) == pytest.approx(1, abs=1e-10)


class Pairs(TorchDataset[tuple[torch.Tensor, int]]):
    """A torch data set of single samples."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(row)), row % 2


def test_python_objects_are_asked_for_hosted_clients_only() -> None:
    asked = []

    def of(client: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(client)
        return np.ones((10, 3)), np.arange(10) % 2

    ClientDatasets(of).load_owned(Site(Placement(4, rank=1, ranks=2)))
    assert asked == [2, 3]
    data = ClientDatasets([Pairs(), Pairs()]).load_owned(Site(Placement(2)))
    assert data.train_inputs.shape == (32, 3)
    given = {"train": (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])), "test": Pairs()}
    assert len(ClientDatasets([given]).load_owned(Site()).test_labels) == 20
    with pytest.raises(InputError, match="the list has 1 data sets, and there is a client 1"):
        ClientDatasets([Pairs()]).load_owned(Site(Placement(2)))
    with pytest.raises(InputError, match="client 0: data: a client's data must be a pair"):
        ClientDatasets([3]).load_owned(Site())


Damage = Callable[[Path], None]


def rewritten(change: Callable[[str], str], client: int = 2) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / f"{client}.csv"
        path.write_text(change(path.read_text()))

    return damage


def one_class(text: str) -> str:
    return text.replace("sick", "well")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (lambda folder: (folder / "2.csv").unlink(), "client 2: table: .*2.csv is missing"),
    "no rows": (rewritten(lambda t: t.splitlines()[0]), "client 2: .*2.csv has no rows"),
    "an unknown label": (rewritten(lambda t: t.replace("sick", "ill")), "client 2: 'outcome' of "),
    "a missing value": (
        rewritten(lambda t: t.replace(",f,", ",,", 1)),
        "client 2: .*2.csv: 'sex' of row .* is missing",
    ),
    "a nan": (
        rewritten(lambda t: t[: t.index("\n") + 1] + "nan,f,1,a,well\n" + t[t.index("\n") + 1 :]),
        "client 2: .*2.csv: 'age' of row 1 is missing",
    ),
    "an infinity": (
        rewritten(lambda t: t[: t.index("\n") + 1] + "inf,f,1,a,well\n" + t[t.index("\n") + 1 :]),
        "client 2: .*2.csv: 'age' of row 1 is inf; every number must be finite",
    ),
    "another column": (
        rewritten(lambda t: t.replace("age", "years", 1)),
        "table: client 2: column 'age' is missing",
    ),
    "text for numbers": (
        rewritten(lambda t: t[: t.index("\n") + 1] + "old,f,1,a,well\n" + t[t.index("\n") + 1 :]),
        "table: client 2: column 'age' is text, and a number at client 0",
    ),
    "a short row": (rewritten(lambda t: t + "1,f\n"), "client 2: .*2.csv: row 61 has 2 fields"),
    "an unknown category": (rewritten(lambda t: t.replace(",f,", ",x,")), "client 2: 'sex' of row"),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_a_wrong_table_is_named_with_its_client_in_one_line(
    fedsys: Callable[..., Done], tmp_path: Path, name: str
) -> None:
    write_tables(tmp_path)
    damage, message = DAMAGES[name]
    damage(tmp_path)
    done = fedsys(
        "dataset=table",
        "dataset.path={client}.csv",
        "dataset.label=outcome",
        "dataset.classes=[well,sick]",
        "+dataset.categories.sex=[f,m]",
        "+dataset.categories.site=[a,b]",
        "partition=none",
        "clients=4",
        "rounds=1",
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.stderr)
    assert not (tmp_path / "runs").exists()


def missing_on_one_rank(table: Table) -> str:
    try:
        fedsys.run(DeepAUC(table, NoPartition()), AdaFGDA(), rounds=1, clients=CLIENTS)
    except InputError as error:
        return error.message
    return ""


def test_a_file_that_is_missing_on_one_rank_is_named_on_all(ranks: Ranks, tmp_path: Path) -> None:
    table = write_tables(tmp_path)
    (tmp_path / "1.csv").unlink()
    messages = ranks(2, missing_on_one_rank, table)
    assert len(set(messages)) == 1
    assert "client 1 (host " in messages[0]
    assert "1.csv is missing" in messages[0]


def test_nothing_of_own_data_is_dropped_unless_it_is_asked_for(
    fedsys: Callable[..., Done], tmp_path: Path
) -> None:
    write_tables(tmp_path)
    own = ["dataset=table", "dataset.path={client}.csv", "partition=none", "dataset.label=outcome"]
    own += ["dataset.share_categories=true", "dataset.classes=[well,sick]", "clients=4", "rounds=1"]
    assert "imbalance" not in fedsys(*own).stdout
    assert "positive_ratio=0.1" in fedsys(*own, "problem.imbalance.positive_ratio=0.1").stdout
    assert not list(tmp_path.glob("runs/*/partition.npz"))


def test_all_clients_with_one_class_are_refused(tmp_path: Path) -> None:
    table = write_tables(tmp_path)
    for client in range(CLIENTS):
        rewritten(one_class, client)(tmp_path)
    shared = replace(table, classes=None, share_categories=True)
    with pytest.raises(InputError, match="has one class only"):
        shared.load_owned(Site(Placement(CLIENTS)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["partition=none"], "partition=none is for data that clients own"),
        (["dataset=table", "dataset.path={client}.csv"], "use partition=none"),
        (["dataset=table"], "table: path must be the path of the data"),
        (
            [
                *("dataset=table", "dataset.path={client}.csv", "partition=none"),
                *("dataset.label=outcome", "dataset.classes=[well,sick]"),
            ],
            "column 'sex' needs the list of its values, +dataset.categories.sex=[...]; or let",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_answered_in_one_line(
    fedsys: Callable[..., Done], tmp_path: Path, overrides: list[str], message: str
) -> None:
    write_tables(tmp_path)
    done = fedsys(*overrides, "clients=4", "rounds=1")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
