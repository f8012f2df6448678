"""Data files of every format that fedsys reads, and ways to damage them."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support.data_files import write_cifar10, write_mnist, write_picture, write_pneumonia

MARK = "opened"
"""What a payload makes in the current folder when it is run."""

IMAGES = ("algorithm=fedavg", "problem=classification", "clients=2", "rounds=1")


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARK,)


class Damage(NamedTuple):
    """A damaged file: how it is made below a root, and the arguments of a run that reads it."""

    make: Callable[[Path], Path]
    arguments: tuple[str, ...]


# Changes of a file's content.


def cut(content: bytes, length: int) -> bytes:
    return content[:length]


def patched(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


def flipped(content: bytes, at: int) -> bytes:
    return patched(content, at % len(content), bytes([content[at % len(content)] ^ 0x55]))


def changed(
    write: Callable[[Path], None], name: str, change: Callable[[bytes], bytes], root: Path
) -> Path:
    """Write good files, and change one."""
    write(root)
    path = root / name
    path.write_bytes(change(path.read_bytes()))
    return path


def instead(write: Callable[[Path], None], name: str, content: bytes, root: Path) -> Path:
    return changed(write, name, lambda _: content, root)


# Good files.


def plain_mnist(root: Path) -> None:
    raw = root / "MNIST" / "raw"
    write_mnist(raw, seed=0, samples=40)
    for path in list(raw.glob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def packed_mnist(root: Path) -> None:
    write_mnist(root / "MNIST" / "raw", seed=0, samples=40)


def plain_cifar10(root: Path) -> None:
    write_cifar10(root, samples=20)
    for path in list((root / "cifar-10-batches-py").glob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def pneumonia(root: Path) -> None:
    write_pneumonia(root, samples=20)


def cats(root: Path) -> None:
    for number in range(4):
        for kind in ("cat", "dog"):
            write_picture(root / "dogs-vs-cats" / "train" / f"{kind}.{number}.jpg", 90)


def melanoma(root: Path) -> None:
    folder = root / "siim-isic-melanoma-classification"
    rows = ["image_name,target"]
    for number in range(8):
        write_picture(folder / "jpeg" / "train" / f"I{number}.jpg", 90)
        rows.append(f"I{number},{number % 2}")
    (folder / "train.csv").write_text("\n".join(rows))


def chexpert(root: Path) -> None:
    folder = root / "CheXpert-v1.0-small"
    for part in ("train", "valid"):
        rows = ["Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding"]
        for number in range(4):
            write_picture(folder / part / f"{number}.jpg", 90)
            mark = "1.0" if number % 2 else ""
            rows.append(f"CheXpert-v1.0-small/{part}/{number}.jpg,Male,60,Frontal,AP,{mark}")
        (folder / f"{part}.csv").write_text("\n".join(rows))


def german(root: Path) -> None:
    (root / "german").mkdir(parents=True)
    rows = [" ".join([*"11111111", f"A9{n % 2}", *"11111111111", str(1 + n // 2 % 2)])
            for n in range(40)]  # fmt: skip
    (root / "german" / "german.data").write_text("\n".join(rows))


def adult(root: Path) -> None:
    (root / "adult").mkdir(parents=True)
    rows = [", ".join([*["1"] * 8, "AB"[n % 2], *["1"] * 5, ("<=50K", ">50K")[n // 2 % 2]])
            for n in range(40)]  # fmt: skip
    (root / "adult" / "adult.data").write_text("\n".join(rows))


def houses(root: Path) -> None:
    (root / "cal_housing").mkdir(parents=True)
    rows = [f"-122.{n},37,{n},880,129,322,126,8.{n},{n}00000" for n in range(1, 9)]
    (root / "cal_housing" / "cal_housing.data").write_text("\n".join(rows))


# Damaged content that takes more than a change.


def batch(**changes: Any) -> bytes:
    data = np.zeros((20, 3072), np.uint8)
    content = {"data": data, "labels": [n % 10 for n in range(20)], **changes}
    return pickle.dumps({key: value for key, value in content.items() if value is not None})


def npz(**changes: Any) -> bytes:
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = np.zeros((20, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(20) % 2).astype(np.uint8)[:, None]
    file = io.BytesIO()
    kept = {name: a for name, a in {**arrays, **changes}.items() if a is not None}
    np.savez_compressed(file, **kept)
    return file.getvalue()


def npz_with_member(member: bytes) -> bytes:
    """An archive whose train_images are these bytes."""
    file = io.BytesIO(npz(train_images=None))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", member)
    return file.getvalue()


def npy(shape: str, content: bytes, kind: str = "|u1") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def archive_with(member: tarfile.TarInfo, root: Path) -> Path:
    """CIFAR-10 as one archive, with one member more."""
    plain_cifar10(root / "inside")
    path = root / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member.size = 3 if member.isreg() else 0
        tar.addfile(member, io.BytesIO(b"bad"))
        tar.add(root / "inside" / "cifar-10-batches-py", "cifar-10-batches-py")
    for file in (root / "inside" / "cifar-10-batches-py").iterdir():
        file.unlink()
    (root / "inside" / "cifar-10-batches-py").rmdir()
    (root / "inside").rmdir()
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def cut_archive(root: Path) -> Path:
    path = archive_with(tarfile.TarInfo("harmless"), root)
    path.write_bytes(path.read_bytes()[:-700])
    return path


def png(width: int, height: int) -> bytes:
    """A picture that claims a size, and has no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\x00" * 64)
    pieces = [(b"IHDR", head), (b"IDAT", body), (b"IEND", b"")]
    joined = b"".join(
        struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in pieces
    )
    return b"\x89PNG\r\n\x1a\n" + joined


def bomb(megabytes: int) -> bytes:
    return gzip.compress(bytes(megabytes << 20))


IMAGES_FILE, LABELS_FILE = (
    f"MNIST/raw/t10k-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")
)
BATCH = "cifar-10-batches-py/data_batch_1"
ARRAYS = "medmnist/pneumoniamnist.npz"
PICTURE = "dogs-vs-cats/train/dog.2.jpg"
LESIONS = "siim-isic-melanoma-classification/train.csv"
XRAYS = "CheXpert-v1.0-small/train.csv"


def on(dataset: str) -> tuple[str, ...]:
    return (*IMAGES, f"dataset={dataset}")


def fair(name: str) -> tuple[str, ...]:
    return (f"problem=fair_{name}", "algorithm=fair/fedbio", "model=logistic", "clients=2")


def group(
    name: str, write: Callable[[Path], None], file: str, arguments: tuple[str, ...], **ways: Any
) -> dict[str, Damage]:
    """Ways to damage one file: other content, or a change of it."""
    return {
        f"{name}: {way.replace('_', ' ')}": Damage(
            partial(instead if isinstance(what, bytes) else changed, write, file, what), arguments
        )
        for way, what in ways.items()
    }
