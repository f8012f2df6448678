"""Readers of files: what is damaged is named in one line, and nothing in a file is ever run."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsys.core.errors import InputError
from fedsys.data.storage import MOST_UNPACKED, damaged, refuse_bomb
from fedsys.data.unpickling import PickledArray, load_plain

_IDX_BYTES = 8
"""The code for unsigned bytes in the header of an IDX file."""
_PIXELS_OF_A_BOMB = 100_000_000
"""Pillow's own limit is a warning at 89 million pixels."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever the content of a file makes a reader raise into one line that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # damaged content can raise anything
        raise damaged(path, error) from error


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Unsigned bytes of an IDX file (MNIST), of so many dimensions."""
    with reading(path), path.open("rb") as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions:
            raise ValueError(f"its {len(header)} bytes are no header of an IDX file")
        zeros, kind, found, *shape = struct.unpack(f">HBB{dimensions}I", header)
        if (zeros, kind, found) != (0, _IDX_BYTES, dimensions):
            raise ValueError(f"it is no IDX file of bytes with {dimensions} dimensions")
        content = np.fromfile(file, np.uint8)
        if math.prod(shape) != len(content):
            wanted = " x ".join(map(str, shape))
            raise ValueError(f"its header says {wanted} bytes, and {len(content)} follow")
        return content.reshape(shape)


def read_records(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Unsigned bytes of a file without a header (STL-10): [N, *shape]."""
    with reading(path):
        content, size = np.fromfile(path, np.uint8), math.prod(shape)
        if not len(content) or len(content) % size:
            raise ValueError(f"its {len(content)} bytes are not records of {size}")
        return content.reshape(-1, *shape)


def read_batch(path: Path, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 3, 32, 32] and labels [N] of a CIFAR batch, a pickle of plain data."""
    with reading(path):
        batch = load_plain(path.read_bytes())
        if not isinstance(batch, dict) or not {"data", labels} <= batch.keys():
            raise ValueError(f"it is no dictionary with data and {labels}")
        data, numbers = batch["data"], batch[labels]
        if not isinstance(data, PickledArray) or data.array.dtype != np.uint8:
            raise ValueError("its data is no array of bytes")
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise ValueError(f"its {labels} are no list of integers")
        if data.array.ndim != 2 or data.array.shape[1] != 3072:
            raise ValueError(f"its data has the shape {data.array.shape}, not (N, 3072)")
        return data.array.reshape(-1, 3, 32, 32), np.array(numbers, dtype=np.int64)


def read_npz(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of an .npz archive, none of them of objects."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [_member(path, archive, f"{name}.npy") for name in names]


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    if name not in archive.namelist():
        raise ValueError(f"it has no array {name.removesuffix('.npy')}")
    info = archive.getinfo(name)
    refuse_bomb(path, info.compress_size, info.file_size)
    with archive.open(info) as file:
        shape, fortran, dtype = _npy_header(file, name, info.file_size)
        data = np.frombuffer(bytearray(file.read()), dtype)
    data = data.reshape(shape, order="F" if fortran else "C")
    return data.astype(dtype.newbyteorder("="), copy=False)


def read_npy(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of an .npy file, of this shape."""
    with reading(path), path.open("rb") as file:
        found, fortran, dtype = _npy_header(file, path.name, path.stat().st_size)
        if dtype != np.uint8 or found != shape or fortran:
            raise ValueError(f"it holds {dtype} {found}, not uint8 {shape}")
        return np.fromfile(file, np.uint8).reshape(shape)


def _npy_header(
    file: IO[bytes], name: str, size: int
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type in a file of the .npy format, if they agree with its size."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has the unknown version {version}")
    one = version == (1, 0)
    header = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.hasobject or dtype.kind not in "buif":
        raise ValueError(f"{name} is an array of {dtype}, not of numbers")
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{name} says {dtype} {shape}, and {size - file.tell()} bytes follow")
    return shape, fortran, dtype


def read_picture(path: Path, channels: int, size: int) -> np.ndarray:
    """A JPEG or PNG file as bytes [channels, size, size]; no other format is decoded."""
    from PIL import Image, UnidentifiedImageError

    def open_picture(path: Path) -> Image.Image:
        try:
            return Image.open(path, formats=("JPEG", "PNG"))
        except UnidentifiedImageError as error:
            raise ValueError("it is no JPEG or PNG file") from error

    with reading(path), open_picture(path) as file:
        if file.width * file.height > _PIXELS_OF_A_BOMB:
            raise ValueError(f"it has {file.width} x {file.height} pixels")
        mode = "L" if channels == 1 else "RGB"
        # The draft makes a large JPEG small while it is decoded: several times faster.
        file.draft(mode, (size, size))
        pixels = np.asarray(file.convert(mode).resize((size, size)))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def read_text(path: Path) -> str:
    """A text file of at most the size that data may have."""
    with reading(path):
        if path.stat().st_size > MOST_UNPACKED:
            raise ValueError("it is too large for a table")
        return path.read_text(encoding="utf-8")


def numbers_in(path: Path, column: str, values: Sequence[Any]) -> np.ndarray:
    """A column of a table as finite numbers; the first that is none is named by its row."""
    found = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            found[row] = float(value)
        except (TypeError, ValueError):
            found[row] = np.nan
        if not np.isfinite(found[row]):
            raise InputError(f"{path}: {column} of row {row + 1} must be a number, got {value!r}")
    return found


def labels_in(path: Path, column: str, values: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """A column of labels as their places in `known`; the first other one is named by its row."""
    places = {name: place for place, name in enumerate(known)}
    for row, value in enumerate(values):
        if value not in places:
            raise InputError(
                f"{path}: {column} of row {row + 1} must be {' or '.join(known)}, got {value!r}"
            )
    return np.array([places[value] for value in values], dtype=np.int64)
