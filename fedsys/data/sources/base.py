"""The common part of data sets: a folder, permission to download, and limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedsys.core.errors import InputError, require
from fedsys.core.fields import Checked
from fedsys.core.random import generator
from fedsys.data.dataset import Dataset
from fedsys.data.storage import data_folder, make_folder, unpacked
from fedsys.system.compat import torchvision


@dataclass(frozen=True, kw_only=True)
class Source(Checked, ABC):
    """A data set, or a random part of it.

    Args:
        root: the folder with data sets; None: FEDSYS_DATA, else ./data.
        limit: at most so many training samples,
        limit_test: and test samples, or None for all,
        seed: of the choice.
    """

    root: str | None = None
    limit: int | None = None
    limit_test: int | None = None
    seed: int = 0

    name: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("limit", "limit_test"):
            value = getattr(self, name)
            valid = value is None or value >= 1
            require(valid, self.name, name, value, "at least 1 or null")

    def load(self) -> Dataset:
        """Read the data."""
        data = self.read()
        train = self.choose(len(data.train_labels), "limit")
        test = self.choose(len(data.test_labels), "limit_test")
        if train is None and test is None:
            return data
        every = (torch.arange(len(data.train_labels)), torch.arange(len(data.test_labels)))
        return data.take(
            every[0] if train is None else torch.from_numpy(train),
            every[1] if test is None else torch.from_numpy(test),
        )

    @abstractmethod
    def read(self) -> Dataset:
        """Read all of the data."""

    def choose(self, samples: int, limit: str) -> np.ndarray | None:
        """The samples within a limit, in order; None for all."""
        most: int | None = getattr(self, limit)
        if most is None or most >= samples:
            return None
        return np.sort(generator(self.seed, limit).permutation(samples)[:most])


@dataclass(frozen=True, kw_only=True)
class DownloadableSource(Source):
    """A data set that can be fetched.

    Args:
        download: whether to do so if it is not in `root`.
    """

    download: bool = False

    top: ClassVar[str]
    """The folder in `root` that holds it."""

    def locate(self) -> Path:
        """The folder from which all files can be read, made if need be and allowed."""
        root = data_folder(self.root)
        found = self.present(root)
        if found is None and self.download:
            make_folder(root / self.top, self._fetch)
            found = self.present(root)
        if found is None:
            raise InputError(self._missing(root))
        return found

    @abstractmethod
    def files(self, root: Path) -> list[str]:
        """The files below `root` that it consists of."""

    @abstractmethod
    def present(self, root: Path) -> Path | None:
        """The folder from which all files can be read; None if one is missing."""

    @abstractmethod
    def download_to(self, folder: Path) -> None:
        """Download `top` into a folder, and compare it with published checksums."""

    def _fetch(self, folder: Path) -> Path:
        try:
            self.download_to(folder)
        except (OSError, RuntimeError, EOFError, HTTPException) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{self.name}: the download failed ({reason}); nothing was kept: try again, or put "
                f"the files into {self.top} of dataset.root"
            ) from error
        return folder / self.top

    def _missing(self, root: Path) -> str:
        wanted = ", ".join(Path(name).name for name in self.files(root))
        where = (root / self.files(root)[0]).parent
        remedy = (
            f"remove {root / self.top}, which is incomplete"
            if self.download
            else "set FEDSYS_DATA or dataset.root, or use dataset.download=true"
        )
        return f"{self.name}: {where} does not hold {wanted} (plain or .gz); {remedy}"


@dataclass(frozen=True, kw_only=True)
class FileSource(DownloadableSource):
    """A data set that is one file, which its publisher has at an address with a checksum."""

    file: ClassVar[str]
    """The file's name in `top`."""
    address: ClassVar[str]
    md5: ClassVar[str]

    def path(self) -> Path:
        """Return the path of the file."""
        return self.locate() / self.top / self.file

    def files(self, root: Path) -> list[str]:
        """The one."""
        return [f"{self.top}/{self.file}"]

    def present(self, root: Path) -> Path | None:
        """`root`, if it is there."""
        return unpacked(root, self.files(root))

    def download_to(self, folder: Path) -> None:
        """From its publisher."""
        fetch = torchvision().datasets.utils.download_url
        fetch(self.address, str(folder / self.top), self.file, self.md5)
