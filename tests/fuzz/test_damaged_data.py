"""Damaged data files: one line that names the file, exit code 2, nothing run, nothing written."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.data_files import write_stl10
from support.processes import Done

from fedsys.core.errors import InputError
from fedsys.data import CIFAR10, MNIST, STL10, CatsVsDogs, Dataset, German, PneumoniaMNIST
from fuzz.data_damages import (
    ARRAYS,
    BATCH,
    IMAGES_FILE,
    MARK,
    PICTURE,
    Payload,
    cats,
    cut,
    flipped,
    german,
    on,
    packed_mnist,
    plain_cifar10,
    plain_mnist,
    pneumonia,
)
from fuzz.file_damages import DAMAGED

Command = Callable[..., Done]
Change = Callable[[bytes], bytes]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDSYS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDSYS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def kept_in_cache(folder: Path) -> list[Path]:
    """All but the empty files by which processes wait for each other."""
    return [p for p in (folder / "cache").rglob("*") if not p.name.endswith(".lock")]


def test_there_are_at_least_a_hundred_damaged_files() -> None:
    assert len(DAMAGED) >= 100


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_in_one_line_with_exit_code_2_and_nothing_is_run_or_written(
    name: str, fedsys: Command, tmp_path: Path
) -> None:
    damage = DAMAGED[name]
    path = damage.make(tmp_path / "data")
    before = snapshot(tmp_path / "data")
    done = fedsys(*damage.arguments)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert path.name.removesuffix(".gz") in done.stderr
    assert kept_in_cache(tmp_path) == []
    assert snapshot(tmp_path / "data") == before
    assert not list(tmp_path.rglob(MARK))
    assert not (tmp_path / "runs").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"data", "cache"}
    assert not Path("/tmp/fedsys-outside").exists()


SOURCES: dict[str, tuple[Callable[[Path], None], str, Callable[[], Dataset]]] = {
    "idx": (plain_mnist, IMAGES_FILE, lambda: MNIST().load()),
    "gz": (packed_mnist, f"{IMAGES_FILE}.gz", lambda: MNIST().load()),
    "cifar": (plain_cifar10, BATCH, lambda: CIFAR10().load()),
    "stl10": (write_stl10, "stl10_binary/test_y.bin", lambda: STL10().load()),
    "npz": (pneumonia, ARRAYS, lambda: PneumoniaMNIST().load()),
    "picture": (cats, PICTURE, lambda: CatsVsDogs(size=8).load()),
    "german": (german, "german/german.data", lambda: German().load()),
}


def refusal(load: Callable[[], Dataset]) -> str | None:
    """Why data cannot be read; None if it can."""
    try:
        load()
    except InputError as error:
        return error.message
    return None


@pytest.mark.parametrize("name", SOURCES)
def test_whatever_happens_to_its_bytes_a_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    write, file, load = SOURCES[name]
    write(tmp_path / "data")
    path = tmp_path / "data" / file
    good = path.read_bytes()
    stream = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for trial in range(120):
        # Headers are short: every other damage is near the beginning or the end.
        at = int(stream.integers(len(good)))
        if trial % 2:
            at = int(stream.integers(-200, 200)) % len(good)
        content = cut(good, at) if trial % 3 == 0 else flipped(good, at)
        for _ in range(int(stream.integers(3))):
            content = flipped(content, int(stream.integers(1 << 30))) if content else content
        path.write_bytes(content)
        message = refusal(load)
        outcomes["read" if message is None else "refused"] += 1
        assert message is None or ("\n" not in message and path.stem in message)
        assert not (tmp_path / MARK).exists()
    assert outcomes["refused"] >= 20
    path.write_bytes(good)
    load()


CACHED: dict[str, tuple[Callable[[Path], None], str, str, Change]] = {
    "a truncated picture array": (cats, "cats_vs_dogs", "pictures.npy", lambda c: c[:-9]),
    "an empty picture array": (cats, "cats_vs_dogs", "pictures.npy", lambda c: b""),
    "another shape": (
        cats,
        "cats_vs_dogs",
        "pictures.npy",
        lambda c: c.replace(b"(2, 3, 64, 64)", b"(3, 2, 64, 64)").replace(
            b"(6, 3, 64, 64)", b"(3, 6, 64, 64)"
        ),
    ),
    "a pickle": (
        cats,
        "cats_vs_dogs",
        "pictures.npy",
        lambda c: npy_of_objects(),
    ),
    "a truncated unpacked file": (
        packed_mnist,
        "mnist",
        "train-images-idx3-ubyte",
        lambda c: c[:-9],
    ),
    "a label in an unpacked file": (
        packed_mnist,
        "mnist",
        "train-labels-idx1-ubyte",
        lambda c: c[:-1] + b"\x63",
    ),
}


def npy_of_objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload()], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("name", CACHED)
def test_a_damaged_cache_is_named_with_what_to_remove_and_then_made_again(
    name: str, fedsys: Command, tmp_path: Path
) -> None:
    write, dataset, file, change = CACHED[name]
    write(tmp_path / "data")
    load = MNIST().load if dataset == "mnist" else CatsVsDogs().load
    good = load()
    for path in (tmp_path / "cache").rglob(file):
        path.write_bytes(change(path.read_bytes()))
    done = fedsys(*on(dataset))
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert file in done.stderr
    assert not (tmp_path / MARK).exists()
    assert not (tmp_path / "runs").exists()
    for entry in (tmp_path / "cache").iterdir():
        if entry.is_dir():
            assert entry.name.split("-")[0] in done.stderr
            shutil.rmtree(entry)
    assert torch.equal(load().train_inputs, good.train_inputs)
