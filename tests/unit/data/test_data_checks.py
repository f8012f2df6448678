"""One check for every data set: what is wrong is named with its sample, and nothing is run."""

from __future__ import annotations

import ast
import os
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.data_files import write_cifar10, write_pneumonia

import fedsys
from fedsys.algorithms import FedAvg
from fedsys.core.errors import InputError
from fedsys.data import CIFAR10, Adult, Dataset, German, GroupedDataset, PneumoniaMNIST
from fedsys.data.unpickling import PickledArray, load_plain
from fedsys.problems import Classification

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSYS_CACHE", str(tmp_path / "cache"))


# Tensors from Python.


def tensors(**changes: Any) -> Dataset:
    inputs = torch.linspace(0, 1, 60).reshape(20, 3)
    labels = torch.arange(20) % 3
    parts = {
        "train_inputs": inputs,
        "train_labels": labels,
        "test_inputs": inputs[:6],
        "test_labels": labels[:6],
    }
    return Dataset(**{**parts, "classes": 3, **changes})


def with_value(index: tuple[int, ...], value: float, shape: tuple[int, ...] = (20, 3)) -> Any:
    found = torch.ones(shape)
    found[index] = value
    return found


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nan": (
        {"train_inputs": with_value((7, 1), torch.nan)},
        "dataset: the training part: feature 1 of sample 7 is nan; every feature must be finite",
    ),
    "infinity": (
        {"test_inputs": with_value((4, 2), -torch.inf, (6, 3))},
        "the test part: feature 2 of sample 4 is -inf",
    ),
    "half a label": (
        {"train_labels": with_value((5,), 2.5, (20,))},
        "the training part: sample 5 has label 2.5; labels must be integers from 0 to 2",
    ),
    "a label that is no number": (
        {"train_labels": with_value((5,), torch.nan, (20,))},
        "sample 5 has label nan",
    ),
    "labels in floats": ({"train_labels": torch.ones(20)}, "got torch.float32; use .long()"),
    "labels in truth values": ({"test_labels": torch.ones(6).bool()}, "got torch.bool"),
    "a label too large": (
        {"test_labels": torch.tensor([0, 1, 2, 3, 0, 1])},
        "the test part: sample 3 has label 3; labels must be integers from 0 to 2",
    ),
    "a negative label": ({"test_labels": torch.tensor([0, 1, -1, 1, 0, 1])}, "has label -1"),
    "fewer labels": ({"train_labels": torch.arange(19) % 3}, "there are 20 inputs and 19 labels"),
    "labels in columns": ({"train_labels": torch.zeros(20, 1).long()}, "must be [samples]"),
    "inputs in one row": ({"train_inputs": torch.zeros(20)}, "must be [samples, ...], got [20]"),
    "no samples": (
        {"test_inputs": torch.zeros(0, 3), "test_labels": torch.zeros(0).long()},
        "the test part: there are no samples",
    ),
    "two shapes": ({"test_inputs": torch.zeros(6, 4)}, "[3] in the training and [4] in the test"),
    "arrays": ({"train_inputs": np.zeros((20, 3))}, "inputs must be a tensor, got ndarray"),
    "complex": ({"train_inputs": torch.zeros(20, 3) + 1j}, "must be real numbers"),
    "classes of others": ({"train_classes": torch.arange(9)}, "one class for each of 20 samples"),
    "groups in floats": ({"train_groups": torch.rand(20)}, "the group of a sample must be an int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_in_given_tensors_is_named_in_one_line(name: str) -> None:
    changes, message = WRONG[name]
    with pytest.raises(InputError, match=re.escape(message)) as refusal:
        tensors(**changes)
    assert "\n" not in str(refusal.value)


def test_large_finite_features_are_not_taken_for_infinite_ones() -> None:
    huge = torch.full((20, 3), 1e308, dtype=torch.float64)
    data = tensors(train_inputs=huge)
    with pytest.raises(InputError, match=r"sample 0 has a feature above 3.4e\+38.*dtype=float64"):
        data.require_fits(torch.float32)
    data.require_fits(torch.float64)


def test_the_check_of_a_data_set_takes_no_memory() -> None:
    inputs, labels = torch.ones(16_000, 1_000), torch.zeros(16_000, dtype=torch.int64)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at the memory in use
    before = peak_memory()
    Dataset(inputs, labels, inputs[:1], labels[:1], classes=2)
    assert peak_memory() - before < inputs.nbytes / 4


def peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Given:
    """A data set of one's own."""

    def __init__(self, data: Callable[[], Dataset]) -> None:
        self.load = data


def test_nan_in_features_is_not_blamed_on_the_step_size() -> None:
    source = Given(lambda: tensors(train_inputs=with_value((7, 1), torch.nan)))
    with pytest.raises(InputError, match="feature 1 of sample 7 is nan"):
        fedsys.run(Classification(source), FedAvg(), rounds=1, clients=2)
    far = Given(lambda: tensors(train_inputs=torch.full((20, 3), 1e300, dtype=torch.float64)))
    with pytest.raises(InputError, match="use dtype=float64, or scale the features"):
        fedsys.run(Classification(far), FedAvg(), rounds=1, clients=2)


def test_integer_labels_of_any_size_are_kept_as_int64() -> None:
    data = tensors(train_labels=(torch.arange(20) % 3).to(torch.uint8))
    assert data.train_labels.dtype == torch.int64


def test_groups_must_be_among_the_named_ones() -> None:
    plain = tensors(classes=3)
    fields = {name: getattr(plain, name) for name in ("train_inputs", "train_labels")}
    fields |= {name: getattr(plain, name) for name in ("test_inputs", "test_labels")}
    groups = {"train_groups": torch.arange(20) % 2, "test_groups": torch.arange(6) % 2}
    data = GroupedDataset(**fields, **groups, classes=3, group_names=("a", "b"), description={})
    assert len(data.take(torch.arange(4), torch.arange(2)).test_groups) == 2
    with pytest.raises(InputError, match="test part: sample 1 has group 5; groups must be integ"):
        replace(data, test_groups=torch.tensor([0, 5, 0, 0, 0, 0]))
    with pytest.raises(InputError, match="one group for each of 6 samples"):
        replace(data, test_groups=torch.arange(3))


def test_images_in_bytes_are_not_copied_or_read_by_the_check() -> None:
    # 64 GB of one byte each, if it were touched.
    images = torch.zeros(1, dtype=torch.uint8).expand(2**20, 1, 256, 256)
    labels = torch.zeros(2**20, dtype=torch.int64)
    Dataset(images, labels, images, labels, classes=2)


# Files.


def test_the_label_of_an_npz_is_named_with_its_file(tmp_path: Path) -> None:
    write_pneumonia(tmp_path)
    path = tmp_path / "medmnist" / "pneumoniamnist.npz"
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    labels = arrays["train_labels"].astype(np.float64)
    labels[3] = 2.5
    np.savez(path, **{**arrays, "train_labels": labels})
    with pytest.raises(InputError, match=r"pneumoniamnist\.npz.*: sample 3 has label 2\.5"):
        PneumoniaMNIST(root=str(tmp_path)).load()
    np.savez(path, **{**arrays, "test_labels": arrays["test_labels"][:-2]})
    with pytest.raises(InputError, match=r"pneumoniamnist\.npz.* 120 inputs and 118 labels"):
        PneumoniaMNIST(root=str(tmp_path)).load()


def german(root: Path, row: int, column: int, value: str) -> str:
    lines = [[*"1111111111", *"1111111111", str(1 + n % 2)] for n in range(8)]
    lines[row][column] = value
    (root / "german").mkdir()
    text = "\n".join(" ".join(line) for line in lines)
    (root / "german" / "german.data").write_text(text)
    return str(root)


@pytest.mark.parametrize("label", ["3", "nan", "1.0", "A1"])
def test_a_german_label_is_1_or_2(label: str, tmp_path: Path) -> None:
    message = f"german.data: risk of row 4 must be 1 or 2, got {label!r}"
    with pytest.raises(InputError, match=re.escape(message)):
        German(root=german(tmp_path, 3, 20, label)).load()


@pytest.mark.parametrize("value", ["many", "nan", "inf", "-", "Ax"])
def test_a_german_feature_is_a_finite_number(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"german\.data: duration of row 6 must be a number, got"):
        German(root=german(tmp_path, 5, 1, value)).load()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (14, "50K", "income of row 2 must be <=50K or >50K, got '50K'"),
        (0, "old", "age of row 2 must be a number, got 'old'"),
        (10, "nan", "capital-gain of row 2 must be a number, got 'nan'"),
    ],
)
def test_a_field_of_adult_is_named_by_column_and_row(
    column: int, value: str, message: str, tmp_path: Path
) -> None:
    rows = []
    for outcome in ("<=50K", ">50K"):
        row = [str(1) for _ in range(14)]
        rows.append([*row, outcome])
    rows[1][column] = value
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text("\n".join(", ".join(row) for row in rows))
    with pytest.raises(InputError, match=re.escape(message)):
        Adult(root=str(tmp_path)).load()


# Pickles.


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_cifar_batch_runs_no_code(protocol: int, tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / "data_batch_1.gz").unlink()
    content = pickle.dumps({"data": Payload(tmp_path / "opened")}, protocol=protocol)
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_1 is damaged: not a pickle of plain data"):
        CIFAR10(root=str(tmp_path)).load()
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["u1", "<i4", ">i8", "f8", "?"])
def test_arrays_in_pickles_are_what_numpy_reads(protocol: int, order: Any, kind: str) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=kind, order=order)
    found = load_plain(pickle.dumps({"array": array, "names": ["a", b"b", 3]}, protocol=protocol))
    assert isinstance(found["array"], PickledArray)
    np.testing.assert_array_equal(found["array"].array, array)
    assert found["names"] == ["a", b"b", 3]


HOSTILE = {
    "an import": b"\x80\x02cos\nsystem\nU\x04trueq\x01\x85R.",
    "eval": b"\x80\x02c__builtin__\neval\nU\x031+1\x85R.",
    "getattr of numpy": b"\x80\x02cnumpy\n__builtins__\n.",
    "a class of numpy": b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
    "dotted names": b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
    "another class than arrays": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\n)U\x01b\x87R."
    ),
    "state for a function": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}b.",
    "a persistent id": b"\x80\x02U\x01xQ.",
    "an extension": b"\x80\x02\x82\x01.",
    "a huge memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a huge string": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\x00\x00abc.",
    "a huge array of bytes": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00abc.",
    "a nested key": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
    "an empty stack": b"\x80\x02.",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name: str) -> None:
    if name == "a huge memo":  # Python's memo is a dictionary: the index costs nothing
        assert load_plain(HOSTILE[name]) is None
        return
    with pytest.raises(ValueError, match="not a pickle of plain data"):
        load_plain(HOSTILE[name])


def test_an_array_must_have_as_many_bytes_as_its_shape_says() -> None:
    content = pickle.dumps(np.zeros((3, 4), np.uint8), protocol=2)
    assert content.count(b"K\x03K\x04\x86") == 1
    for shape in (b"K\x03K\x05\x86", b"K\x03J\xff\xff\xff\xff\x86", b"K\x03J\xff\xff\xff\x7f\x86"):
        with pytest.raises(ValueError, match="an array of"):
            load_plain(content.replace(b"K\x03K\x04\x86", shape))


# The whole package.


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def door(name: str, call: ast.Call) -> bool:
    """Whether a call runs code from a file, or lets a file write or allocate what it likes."""
    last = name.split(".")[-1]
    if name in ("eval", "exec") or name.startswith(("marshal.", "shelve.", "joblib.", "dill.")):
        return True
    if name.startswith(("pickle.", "cloudpickle.")):
        return last in ("load", "loads", "Unpickler")
    if name == "torch.load":
        return keyword(call, "weights_only") != "True"
    if name == "np.load":
        return keyword(call, "allow_pickle") != "False"
    if name == "yaml.load":
        return keyword(call, "Loader") not in ("yaml.SafeLoader", "SafeLoader")
    if last in ("extractall", "unpack_archive") or name in ("tar.extract", "tarfile.extract"):
        return keyword(call, "filter") != "'data'"
    return name.endswith("Image.open") and keyword(call, "formats") is None


def test_nothing_in_the_package_runs_code_from_a_file() -> None:
    found = []
    for folder in ("fedsys", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            found += [f"{path.name}: {name}" for name, call in calls(tree) if door(name, call)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["pickle.load(f)", "torch.load(p)", "np.load(p)", "np.load(p, allow_pickle=True)",
     "tar.extractall(p)", "eval(x)", "yaml.load(f)", "Image.open(p)"],
)  # fmt: skip
def test_the_search_for_unsafe_calls_finds_examples(line: str) -> None:
    assert any(door(name, call) for name, call in calls(ast.parse(line)))
