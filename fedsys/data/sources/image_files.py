"""Data sets of pictures in files, which are decoded once and kept as bytes in the cache."""

from __future__ import annotations

import csv
import os
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from fedsys.core.errors import InputError, require
from fedsys.data.dataset import Dataset, Scaling
from fedsys.data.formats import read_npy, read_picture, read_text, reading
from fedsys.data.sources.base import Source
from fedsys.data.sources.scikit_learn import stratified_split
from fedsys.data.storage import cache_folder, data_folder, fingerprint, make_folder


class Listing(NamedTuple):
    """Image files, their labels 0 and 1, and the classes that the labels derive from."""

    paths: list[Path]
    labels: np.ndarray
    classes: np.ndarray

    def take(self, rows: np.ndarray | None) -> Listing:
        """Return the selected images."""
        if rows is None:
            return self
        paths = [self.paths[row] for row in rows]
        return Listing(paths, self.labels[rows], self.classes[rows])


@dataclass(frozen=True, kw_only=True)
class PictureSource(Source):
    """Pictures in files.

    Args:
        size: pixels per side; the papers use 224.
    """

    size: int = 64

    top: ClassVar[str]
    """The folder in `root` that holds it,"""
    layout: ClassVar[str]
    """what must be in there,"""
    page: ClassVar[str]
    """and where it comes from."""
    channels: ClassVar[int] = 3
    scaling: ClassVar[Scaling] = Scaling((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 8, self.name, "size", self.size, "at least 8")

    def load(self) -> Dataset:
        """The limits are kept while reading."""
        return self.read()

    def read(self) -> Dataset:
        """Read the pictures within the limits: no other is decoded."""
        train, test = self.listings(data_folder(self.root) / self.top)
        train = train.take(self.choose(len(train.paths), "limit"))
        test = test.take(self.choose(len(test.paths), "limit_test"))
        return Dataset(
            torch.from_numpy(self._decoded(train.paths)),
            torch.from_numpy(train.labels),
            torch.from_numpy(self._decoded(test.paths)),
            torch.from_numpy(test.labels),
            classes=2,
            scaling=self.scaling,
            train_classes=torch.from_numpy(train.classes),
            name=self.name,
        )

    @abstractmethod
    def listings(self, folder: Path) -> tuple[Listing, Listing]:
        """Return the training and the test part."""

    def missing(self, what: Path) -> InputError:
        """Return the error about a missing file."""
        return InputError(
            f"{self.name}: {what} is missing; get the data from {self.page} and unpack it so that "
            f"dataset.root (or FEDSYS_DATA) holds {self.top}/{self.layout}"
        )

    def table(self, path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
        """The rows of a CSV file that has at least these columns."""
        if not path.is_file():
            raise self.missing(path)
        text = read_text(path)
        with reading(path):
            rows = list(csv.DictReader(text.splitlines(), strict=True))
        if not rows:
            raise InputError(f"{self.name}: {path} has no rows")
        absent = next((name for name in columns if name not in rows[0]), None)
        if absent is not None:
            raise InputError(f"{self.name}: {path} has no column {absent!r}; is it the original?")
        for number, row in enumerate(rows, start=1):
            if None in row or any(row[name] is None for name in row):
                raise InputError(f"{self.name}: row {number} of {path} has too few or many fields")
        return rows

    def _decoded(self, paths: list[Path]) -> np.ndarray:
        """The pictures [N, channels, size, size]; decoded by one process of a host."""

        def fill(folder: Path) -> Path:
            shape = (len(paths), self.channels, self.size, self.size)
            pictures = np.empty(shape, dtype=np.uint8)
            with ThreadPoolExecutor() as pool:  # the decoder leaves Python alone
                for row, picture in enumerate(pool.map(self._decode, paths)):
                    pictures[row] = picture
            np.save(folder / "pictures.npy", pictures)
            return folder

        absent = next((path for path in paths if not path.is_file()), None)
        if absent is not None:
            raise self.missing(absent)
        key = fingerprint(paths, self.size, self.channels)
        target = cache_folder() / f"{self.name}-{key}"
        make_folder(target, fill)
        shape = (len(paths), self.channels, self.size, self.size)
        return read_npy(target / "pictures.npy", shape)

    def _decode(self, path: Path) -> np.ndarray:
        return read_picture(path, self.channels, self.size)

    def inside(self, folder: Path, path: str, table: Path) -> Path:
        """A picture that a table names, which must not be outside of `folder`."""
        found = Path(os.path.normpath(folder / path))
        if not found.is_relative_to(os.path.normpath(folder)):
            raise InputError(f"{self.name}: {table} names {path!r}, which is not in {folder}")
        return found


@dataclass(frozen=True, kw_only=True)
class SplitPictureSource(PictureSource):
    """Pictures of which a fixed part is kept for testing: the published test labels are secret.

    Args:
        test_share: the part of every class that is kept.
    """

    test_share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.test_share < 1, self.name, "test_share", self.test_share, "in (0, 1)")

    def listings(self, folder: Path) -> tuple[Listing, Listing]:
        """Split so that both parts have the same share of each class."""
        whole = self.listing(folder)
        train, test = stratified_split(whole.classes, self.test_share)
        return whole.take(train), whole.take(test)

    @abstractmethod
    def listing(self, folder: Path) -> Listing:
        """Return all files with a label."""
