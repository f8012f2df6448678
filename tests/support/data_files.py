"""Write tiny files in the formats of the real data sets; the class is visible in the pixels."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
from PIL import Image

REAL = os.environ.get("FEDSYS_DATA")
"""Folder of the real files if it is set; the tests then check them as well."""

VEHICLES = (0, 1, 8, 9)
"""Classes of CIFAR-10: airplane, automobile, ship and truck; the others are animals."""


def write_all(root: Path) -> None:
    """Write the data sets of the real folder: MNIST, FashionMNIST, CIFAR-10, PneumoniaMNIST."""
    for seed, name in enumerate(("MNIST", "FashionMNIST")):
        write_mnist(root / name / "raw", seed)
    write_cifar10(root)
    write_pneumonia(root)


def images(labels: np.ndarray, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return random images whose upper half is brighter for higher classes."""
    stream = np.random.default_rng(seed)
    pixels = stream.integers(0, 100, (len(labels), *shape))
    top = pixels[..., : shape[-2] // 2, :]
    top += (labels * 15).reshape(-1, *[1] * len(shape))
    return pixels.clip(0, 255).astype(np.uint8)


def write_mnist(raw: Path, seed: int, samples: int = 200) -> None:
    """Write four gzipped IDX files."""
    raw.mkdir(parents=True)
    for part, number in (("train", samples), ("t10k", samples // 2)):
        labels = (np.arange(number) % 10).astype(np.uint8)
        pixels = images(labels, (28, 28), seed)
        header = struct.pack(">IIII", 2051, number, 28, 28)
        pack(raw / f"{part}-images-idx3-ubyte.gz", header + pixels.tobytes())
        header = struct.pack(">II", 2049, number)
        pack(raw / f"{part}-labels-idx1-ubyte.gz", header + labels.tobytes())


def write_cifar10(root: Path, samples: int = 400) -> None:
    """Write a training batch, the test batch and the class names as pickles."""
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
    """Write two images of each class to the training and the test file, uncompressed."""
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
    """Write images in column-major order, and labels that start at 1."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    labels = np.arange(20) % 10
    for part in ("train", "test"):
        pixels = images(labels, (3, 96, 96))
        (folder / f"{part}_X.bin").write_bytes(pixels.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(map(str, range(10))))
    # There is no file of folds: torchvision reads it only if a fold is requested.


def write_pneumonia(root: Path, samples: int = 120) -> None:
    """Write one archive of arrays; three quarters of the samples are positive."""
    folder = root / "medmnist"
    folder.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    for seed, part in enumerate(("train", "val", "test")):
        labels = (np.arange(samples) % 4 > 0).astype(np.uint8)
        arrays[f"{part}_images"] = images(labels * 5, (28, 28), seed)
        arrays[f"{part}_labels"] = labels[:, None]
    np.savez(folder / "pneumoniamnist.npz", **arrays)


def write_picture(path: Path, brightness: int, size: tuple[int, int] = (40, 30)) -> None:
    """Write an image of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (brightness,) * 3).save(path, format="JPEG", quality=95)


def pack(path: Path, content: bytes) -> None:
    """Write a gzip file without a time stamp, so that equal content gives equal files."""
    path.write_bytes(gzip.compress(content, mtime=0))
