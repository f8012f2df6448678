"""Data sets in files: the real ones where FEDSYS_DATA names them, else tiny ones of their format.

Both have to answer the same questions.
"""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import Case, Drive
from support.data_files import (
    REAL,
    VEHICLES,
    images,
    write_all,
    write_cifar100,
    write_mnist,
    write_picture,
    write_stl10,
)
from support.processes import Ranks

import fedsys
from fedsys.algorithms import FedAvg, LocalSGDA
from fedsys.communication import LocalTransport
from fedsys.core.errors import InputError
from fedsys.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    STL10,
    BreastCancer,
    CatsVsDogs,
    CheXpert,
    DatasetSource,
    Digits,
    Disjoint,
    FashionMNIST,
    German,
    ImageNet,
    Imbalance,
    Melanoma,
    PneumoniaMNIST,
)
from fedsys.data.storage import make_folder
from fedsys.models import CifarResNet, DenseNet121
from fedsys.problems import Classification, DeepAUC
from fedsys.system.compat import torchvision

SOURCES = [MNIST, FashionMNIST, CIFAR10, PneumoniaMNIST]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder with data sets."""
    if REAL:
        return REAL
    folder = tmp_path_factory.mktemp("data")
    write_all(folder)
    return str(folder)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYS_CACHE", str(cache))


def snapshot(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}


# What all have in common.


@pytest.mark.parametrize("source", SOURCES)
def test_images_are_bytes_with_labels_of_every_class_and_the_folder_is_left_alone(
    source: Callable[..., DatasetSource], root: str
) -> None:
    before = snapshot(Path(root))
    data = source(root=root).load()
    assert snapshot(Path(root)) == before
    for inputs, labels in (
        (data.train_inputs, data.train_labels),
        (data.test_inputs, data.test_labels),
    ):
        assert inputs.dtype == torch.uint8
        assert len(inputs) == len(labels) >= 100
        assert labels.unique().tolist() == list(range(data.classes))
        assert inputs.shape[1:] == ((3, 32, 32) if source is CIFAR10 else (1, 28, 28))
    scaled = data.scaling.on(torch.float32, torch.device("cpu"))(data.train_inputs[:500])
    assert abs(float(scaled.mean())) < 1.5
    assert 0.2 < float(scaled.std()) < 1.5


@pytest.mark.parametrize("source", SOURCES)
def test_limits_take_a_seeded_part_in_order(
    source: Callable[..., DatasetSource], root: str
) -> None:
    whole = source(root=root).load()
    part, again, other = (
        source(root=root, limit=50, limit_test=20, seed=seed).load() for seed in (0, 0, 1)
    )
    assert (len(part.train_labels), len(part.test_labels)) == (50, 20)
    assert torch.equal(part.train_inputs, again.train_inputs)
    assert not torch.equal(part.train_inputs, other.train_inputs)
    known = [image.numpy().tobytes() for image in whole.train_inputs]
    places = [known.index(image.numpy().tobytes()) for image in part.train_inputs]
    assert [int(whole.train_labels[place]) for place in places] == part.train_labels.tolist()


def test_the_unpacked_files_are_those_of_the_archives_and_are_unpacked_once(
    root: str, cache: Path
) -> None:
    MNIST(root=root).load()
    before = snapshot(cache)
    MNIST(root=root).load()
    assert snapshot(cache) == before
    packed = Path(root) / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    contents = [path.read_bytes() for path in cache.glob(f"MNIST-*/MNIST/raw/{packed.stem}")]
    assert gzip.decompress(packed.read_bytes()) in contents


def test_the_pixels_and_labels_of_cifar10_are_those_of_its_file(root: str) -> None:
    packed = Path(root) / "cifar-10-batches-py" / "test_batch.gz"
    theirs = pickle.loads(gzip.decompress(packed.read_bytes()), encoding="latin1")
    data = CIFAR10(root=root).load()
    np.testing.assert_array_equal(data.test_inputs.flatten(1).numpy(), theirs["data"])
    assert data.test_labels.tolist() == theirs["labels"]


def test_a_part_of_cifar10_is_said_to_be_one(root: str) -> None:
    assert CIFAR10(root=root).load().note == "cifar10: 1 of 5 training batches are there"


def test_the_first_half_against_the_second_at_ten_percent_on_mnist(root: str) -> None:
    data = MNIST(root=root).load()
    task = Imbalance(0.1)(data, seed=0)
    negatives = int((data.train_labels < 5).sum())
    assert task.train_labels.bincount().tolist() == [negatives, int(0.1 / 0.9 * negatives)]
    assert task.original_classes.unique().tolist() == list(range(10))


# Formats that are not among the real files here.


def test_cifar100_has_its_classes_or_animals_against_machines(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    data = CIFAR100(root=str(tmp_path)).load()
    assert data.classes == 100
    assert data.train_labels.bincount().tolist() == [2] * 100
    binary = CIFAR100(root=str(tmp_path), task="animal_machine").load()
    assert binary.train_labels.bincount().tolist() == [90, 20]
    assert {8, 13, 90} <= set(binary.original_classes[binary.train_labels == 1].tolist())
    with pytest.raises(InputError, match="task must be classes or animal_machine, got 'cats'"):
        CIFAR100(task="cats")


def test_stl10_is_read_without_its_unlabelled_images(tmp_path: Path) -> None:
    write_stl10(tmp_path)
    data = STL10(root=str(tmp_path)).load()
    assert data.train_labels.tolist() == list(range(10)) * 2
    expected = images(np.arange(20) % 10, (3, 96, 96))
    np.testing.assert_array_equal(data.train_inputs.numpy(), expected)


def test_an_archive_is_unpacked_into_the_cache(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "unpacked")
    archive = tmp_path / "root" / "cifar-100-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "unpacked" / "cifar-100-python", "cifar-100-python")
    data = CIFAR100(root=str(archive.parent)).load()
    assert torch.equal(
        data.train_inputs, CIFAR100(root=str(tmp_path / "unpacked")).load().train_inputs
    )
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    archive.write_bytes(archive.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"cifar-100-python\.tar\.gz is damaged"):
        CIFAR100(root=str(archive.parent)).load()


def brightness(inputs: torch.Tensor) -> list[int]:
    return [round(float(image.float().mean()), -1) for image in inputs]  # type: ignore[misc]


def test_cats_and_dogs_are_labelled_by_their_file_names(tmp_path: Path) -> None:
    for number in range(10):
        for kind, value in (("cat", 50), ("dog", 200)):
            write_picture(tmp_path / "dogs-vs-cats" / "train" / f"{kind}.{number}.jpg", value)
    data = CatsVsDogs(root=str(tmp_path), size=8).load()
    assert data.train_inputs.shape == (16, 3, 8, 8)
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    assert brightness(data.test_inputs) == [50, 50, 200, 200]


def test_melanoma_goes_by_its_table(tmp_path: Path) -> None:
    folder = tmp_path / "siim-isic-melanoma-classification"
    rows = ["image_name,patient_id,sex,age_approx,benign_malignant,target"]
    for number in range(10):
        target = int(number % 5 == 0)
        write_picture(folder / "jpeg" / "train" / f"ISIC_{number}.jpg", 40 + 160 * target)
        rows.append(f"ISIC_{number},IP_1,male,45.0,{'malignant' if target else 'benign'},{target}")
    (folder / "train.csv").write_text("\n".join(rows))
    data = Melanoma(root=str(tmp_path), size=8, test_share=0.5).load()
    assert data.train_labels.bincount().tolist() == data.test_labels.bincount().tolist() == [4, 1]
    assert brightness(data.train_inputs) == [40 + 160 * int(y) for y in data.train_labels]


def test_chexpert_is_normal_against_abnormal_or_one_finding(tmp_path: Path) -> None:
    folder = tmp_path / "CheXpert-v1.0-small"
    head = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Cardiomegaly"
    marks = [("Frontal", "1.0", ""), ("Frontal", "", "1.0"), ("Frontal", "", "-1.0"),
             ("Lateral", "", "1.0"), ("Frontal", "", "0.0")]  # fmt: skip
    for part in ("train", "valid"):
        rows = [head]
        for number, (view, normal, heart) in enumerate(marks):
            path = f"{part}/patient{number}/study1/view1.jpg"
            write_picture(folder / path, 50 * number)
            rows.append(f"CheXpert-v1.0-small/{path},Male,60,{view},AP,{normal},{heart}")
        (folder / f"{part}.csv").write_text("\n".join(rows))

    def labels(**settings: Any) -> list[int]:
        source = CheXpert(root=str(tmp_path), size=8, **settings)
        data = source.load()
        assert data.input_shape == (1, 8, 8)
        return data.train_labels.tolist()

    assert labels() == [0, 1, 1, 1]
    assert labels(frontal=False) == [0, 1, 1, 1, 1]
    assert labels(target="Cardiomegaly") == [0, 1, 1, 0]
    assert labels(target="Cardiomegaly", uncertain="negative") == [0, 1, 0, 0]
    assert labels(target="Cardiomegaly", uncertain="left_out") == [0, 1, 0]
    with pytest.raises(InputError, match="target must be abnormal or one of Cardiomegaly"):
        labels(target="Headache")


def test_imagenet_is_animals_against_machines_and_keeps_its_classes(tmp_path: Path) -> None:
    folders = {"n01440764": 30, "n02123045": 60, "n03594945": 220, "n07747607": 120}
    for part in ("train", "val"):
        for name, value in folders.items():
            for number in range(2):
                picture = tmp_path / "imagenet" / part / name / f"{number}.JPEG"
                write_picture(picture, value)
    data = ImageNet(root=str(tmp_path), size=8).load()
    assert data.train_labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert data.original_classes.tolist() == [0, 0, 1, 1, 2, 2]
    assert brightness(data.train_inputs) == [30, 30, 60, 60, 220, 220]
    own = ImageNet(root=str(tmp_path), size=8, positive=["n07747607"], negative=["n01440764"])
    assert brightness(own.load().train_inputs) == [30, 30, 120, 120]


def test_only_images_within_the_limit_are_decoded(tmp_path: Path) -> None:
    for number in range(10):
        for kind in ("cat", "dog"):
            path = tmp_path / "dogs-vs-cats" / "train" / f"{kind}.{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"cat\.\d\.jpg is damaged: it is no JPEG or PNG file"):
        CatsVsDogs(root=str(tmp_path)).load()
    source = CatsVsDogs(root=str(tmp_path), limit=1, limit_test=1)
    train, test = source.listings(tmp_path / "dogs-vs-cats")
    for listing, limit in ((train, "limit"), (test, "limit_test")):
        chosen = source.choose(len(listing.paths), limit)
        assert chosen is not None
        write_picture(listing.paths[chosen[0]], 100)
    assert len(source.load().train_labels) == 1


def test_breast_cancer_is_scikit_learns_and_standardised() -> None:
    data = BreastCancer().load()
    labels = torch.cat([data.train_labels, data.test_labels])
    assert labels.bincount().tolist() == [212, 357]
    torch.testing.assert_close(data.train_inputs.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train_inputs.std(0, correction=0), torch.ones(30))


# What is missing, damaged or wrong.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (MNIST, r"mnist: .*MNIST/raw does not hold train-images-idx3-ubyte, .*download=true"),
        (CIFAR10, r"cifar10: .*cifar-10-batches-py does not hold data_batch_1, .*download=true"),
        (STL10, r"stl10: .*stl10_binary does not hold train_X.bin"),
        (PneumoniaMNIST, r"medmnist does not hold pneumoniamnist.npz"),
        (CheXpert, r"train.csv is missing; get the data from the Stanford AIMI page"),
        (Melanoma, r"train.csv is missing; get the data from Kaggle's competition siim-isic"),
        (CatsVsDogs, r"cat\.\*\.jpg is missing; get the data from Kaggle's competition dogs-vs"),
        (ImageNet, r"is missing; get the data from the ImageNet page .*\{train,val\}/n\*/\*.JPEG"),
    ],
)
def test_a_missing_file_is_named_with_advice(
    source: Callable[..., DatasetSource], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        source(root=str(tmp_path)).load()


def test_the_folder_is_fedsys_data_or_else_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSYS_DATA", raising=False)
    with pytest.raises(InputError, match=r"mnist: data/MNIST/raw does not hold"):
        MNIST().load()
    write_mnist(tmp_path / "elsewhere" / "MNIST" / "raw", seed=0)
    monkeypatch.setenv("FEDSYS_DATA", str(tmp_path / "elsewhere"))
    assert len(MNIST().load().train_labels) == 200


@pytest.mark.parametrize("length", [40, 400])
def test_a_damaged_archive_is_named_and_leaves_nothing_in_the_cache(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSYS_CACHE", str(tmp_path / "cache"))
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw, seed=0)
    damaged = raw / "t10k-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:length])
    for _ in range(2):
        with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte\.gz is damaged"):
            MNIST(root=str(tmp_path)).load()
        assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    damaged.unlink()
    write_mnist(tmp_path / "again", seed=0)
    (tmp_path / "again" / damaged.name).rename(damaged)
    assert len(MNIST(root=str(tmp_path)).load().test_labels) == 100


def test_a_cache_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", seed=0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSYS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"cannot make .*file/cache/MNIST-.* let FEDSYS_CACHE"):
        MNIST(root=str(tmp_path)).load()


@pytest.mark.parametrize("name", ["limit", "limit_test"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"digits: {name} must be at least 1 or null, got 0"):
        Digits(**{name: 0})


# Downloads, from a server on this machine.


class Server:
    """Serves a folder, and can cut what it sends short."""

    def __init__(self, folder: Path) -> None:
        self.cut: str | None = None
        self.requests: list[str] = []
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                name = Path(self.path).name
                server.requests.append(name)
                content = (folder / name).read_bytes()
                if name == server.cut:
                    content = content[: len(content) // 2]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler))
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The place that torchvision downloads MNIST from, with the checksums of what is there."""
    published = tmp_path / "published"
    write_mnist(published, seed=0)
    kind = torchvision().datasets.MNIST
    files = sorted(published.iterdir())
    sums = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in files]
    found = Server(published)
    monkeypatch.setattr(kind, "resources", sums)
    monkeypatch.setattr(kind, "mirrors", [found.url])
    yield found
    found.close()


def test_nothing_is_downloaded_by_default(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"use dataset\.download=true"):
        MNIST(root=str(tmp_path / "root")).load()
    assert server.requests == []
    data = MNIST(root=str(tmp_path / "root"), download=True).load()
    assert len(data.train_labels) == 200
    assert len(MNIST(root=str(tmp_path / "root")).load().train_labels) == 200


def test_a_download_that_is_cut_short_leaves_nothing_and_can_be_repeated(
    server: Server, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    server.cut = "train-images-idx3-ubyte.gz"
    for _ in range(2):
        with pytest.raises(InputError, match=r"mnist: the download failed .* nothing was kept"):
            MNIST(root=str(root), download=True).load()
        assert [path for path in root.iterdir() if path.is_dir()] == []
    with pytest.raises(InputError, match="does not hold"):
        MNIST(root=str(root)).load()
    server.cut = None
    assert len(MNIST(root=str(root), download=True).load().train_labels) == 200


def test_a_file_that_is_not_the_published_one_is_refused(server: Server, tmp_path: Path) -> None:
    write_mnist(tmp_path / "other", seed=5)
    name = "t10k-images-idx3-ubyte.gz"
    (tmp_path / "other" / name).rename(tmp_path / "published" / name)
    with pytest.raises(InputError, match="the download failed"):
        MNIST(root=str(tmp_path / "root"), download=True).load()
    assert [path for path in (tmp_path / "root").iterdir() if path.is_dir()] == []


def test_a_data_set_of_one_file_is_fetched_whole_or_not_at_all(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = " ".join(["1"] * 20) + " 2\n" + " ".join(["2"] * 20) + " 1\n"
    (tmp_path / "published" / "german.data").write_text(good * 4)
    content = (tmp_path / "published" / "german.data").read_bytes()
    monkeypatch.setattr(German, "address", f"{server.url}german.data")
    monkeypatch.setattr(German, "md5", hashlib.md5(content).hexdigest())
    root = tmp_path / "root"
    server.cut = "german.data"
    with pytest.raises(InputError, match=r"german: the download failed .* nothing was kept"):
        German(root=str(root), download=True).load()
    assert [path for path in root.iterdir() if path.is_dir()] == []
    server.cut = None
    assert len(German(root=str(root), download=True).load().train_labels) == 6


def test_an_incomplete_folder_is_named_and_left_unchanged(server: Server, tmp_path: Path) -> None:
    raw = tmp_path / "root" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    with pytest.raises(InputError, match=r"remove .*root/MNIST, which is incomplete"):
        MNIST(root=str(tmp_path / "root"), download=True).load()
    assert (raw / "train-images-idx3-ubyte.gz").read_bytes() == b"half"
    assert server.requests == []


def fill_and_die(target: Path) -> None:
    def fill(folder: Path) -> Path:
        (folder / "half").write_text("")
        os._exit(9)

    make_folder(target, fill)


def test_files_of_a_killed_process_are_not_used_and_are_removed(tmp_path: Path) -> None:
    target = tmp_path / "data"
    process = multiprocessing.get_context("fork").Process(target=fill_and_die, args=(target,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert not target.exists()
    assert len(list(tmp_path.glob(".data.partial-*"))) == 1

    def fill(folder: Path) -> Path:
        (folder / "whole").write_text("")
        return folder

    make_folder(target, fill)
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert list(tmp_path.glob(".data.partial-*")) == []


def test_one_process_of_a_host_fills_a_folder_while_the_others_wait(tmp_path: Path) -> None:
    fillings = []

    def fill(folder: Path) -> Path:
        fillings.append(folder)
        threading.Event().wait(0.2)
        (folder / "file").write_text("content")
        return folder

    def load() -> None:
        make_folder(tmp_path / "data", fill)
        seen.append((tmp_path / "data" / "file").read_text())

    seen: list[str] = []
    others = [threading.Thread(target=load) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(fillings) == 1
    assert seen == ["content"] * 4


# Training on them.


def test_densenet121_takes_a_step_down_on_pneumonia(root: str) -> None:
    data = PneumoniaMNIST(root=root, limit=4, limit_test=1)
    problem = Classification(data, model=DenseNet121("group"), batch_size=None)
    drive = Drive(Case(FedAvg(lr=1e-3, local_steps=1), problem), LocalTransport(), clients=1)
    before, after = drive.states(1)
    batch = drive.oracle.draw()
    assert batch.inputs[0].shape == (4, 1, 28, 28)
    first, second = (float(drive.oracle.losses(s.x, batch)[0]) for s in (before, after))
    assert second < first


def train_resnet20(root: str, cache: str) -> list[dict[str, float]]:
    os.environ["FEDSYS_CACHE"] = cache
    data = CIFAR10(root=root, limit=400, limit_test=120)
    task = Imbalance(None, positive=VEHICLES)
    problem = DeepAUC(data, Disjoint(), CifarResNet(20), batch_size=8, imbalance=task)
    algorithm = LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=4)
    return fedsys.run(problem, algorithm, rounds=3, clients=4, evaluate_every=3, seed=1).records


def test_the_auc_of_resnet20_on_cifar10_improves_on_four_processes(
    ranks: Ranks, root: str, cache: Path
) -> None:
    first, last = ranks(4, train_resnet20, root, str(cache))[0]
    assert last["test_auc"] > max(0.65, first["test_auc"] + 0.1)
