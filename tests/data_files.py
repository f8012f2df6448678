"""Tiny files in the formats of the real data sets, with a class that can be seen in the pixels."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image

REAL = os.environ.get("FEDSYS_DATA")
"""The real files, where there are any: the tests then ask the same of them."""

VEHICLES = (0, 1, 8, 9)
"""CIFAR-10's aeroplanes, cars, ships and lorries; the others are animals."""


def write_all(root: Path) -> None:
    """What the folder of real data has: MNIST, FashionMNIST, some of CIFAR-10, PneumoniaMNIST."""
    for seed, name in enumerate(("MNIST", "FashionMNIST")):
        write_mnist(root / name / "raw", seed)
    write_cifar10(root)
    write_pneumonia(root)


def images(labels: np.ndarray, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Noise that is brighter on the upper side for later classes."""
    stream = np.random.default_rng(seed)
    pixels = stream.integers(0, 100, (len(labels), *shape))
    top = pixels[..., : shape[-2] // 2, :]
    top += (labels * 15).reshape(-1, *[1] * len(shape))
    return pixels.clip(0, 255).astype(np.uint8)


def write_mnist(raw: Path, seed: int, samples: int = 200) -> None:
    """Four gzipped IDX files."""
    raw.mkdir(parents=True)
    for part, number in (("train", samples), ("t10k", samples // 2)):
        labels = (np.arange(number) % 10).astype(np.uint8)
        pixels = images(labels, (28, 28), seed)
        header = struct.pack(">IIII", 2051, number, 28, 28)
        pack(raw / f"{part}-images-idx3-ubyte.gz", header + pixels.tobytes())
        header = struct.pack(">II", 2049, number)
        pack(raw / f"{part}-labels-idx1-ubyte.gz", header + labels.tobytes())


def write_cifar10(root: Path, samples: int = 400) -> None:
    """A training batch, the test batch and the names, as pickles."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("data_batch_1", "test_batch")):
        labels = np.arange(samples) % 10
        vehicle = np.isin(labels, VEHICLES)
        data = images(vehicle * 8, (3, 32, 32), seed).reshape(samples, -1)
        pack(folder / f"{name}.gz", pickle.dumps({"data": data, "labels": labels.tolist()}))
    names = {"label_names": [f"class {number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))


def write_cifar100(root: Path) -> None:
    """Two images of each class in both parts, not packed."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    labels = np.arange(200) % 100
    data = images(labels // 10, (3, 32, 32)).reshape(200, -1)
    for name in ("train", "test"):
        content = {"data": data, "fine_labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    names = {"fine_label_names": [f"class {number}" for number in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names))


def write_stl10(root: Path) -> None:
    """Images by columns, and labels from 1."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    labels = np.arange(20) % 10
    for part in ("train", "test"):
        pixels = images(labels, (3, 96, 96))
        (folder / f"{part}_X.bin").write_bytes(pixels.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(map(str, range(10))))
    # torchvision reads the folds of the training part only when it is asked for one.


def write_pneumonia(root: Path, samples: int = 120) -> None:
    """One archive of arrays, three quarters of them positive."""
    folder = root / "medmnist"
    folder.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    for seed, part in enumerate(("train", "val", "test")):
        labels = (np.arange(samples) % 4 > 0).astype(np.uint8)
        arrays[f"{part}_images"] = images(labels * 5, (28, 28), seed)
        arrays[f"{part}_labels"] = labels[:, None]
    np.savez(folder / "pneumoniamnist.npz", **arrays)


def write_picture(path: Path, brightness: int, size: tuple[int, int] = (40, 30)) -> None:
    """A picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (brightness,) * 3).save(path, format="JPEG", quality=95)


def pack(path: Path, content: bytes) -> None:
    """Gzip, without the time: the same content is the same file."""
    path.write_bytes(gzip.compress(content, mtime=0))
