"""PneumoniaMNIST: chest X-rays of MedMNIST v2."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedsys.compat import torchvision
from fedsys.data.dataset import Dataset, Scaling
from fedsys.data.source import DownloadableSource
from fedsys.data.storage import unpacked
from fedsys.errors import InputError

_FILE = "pneumoniamnist.npz"


@dataclass(frozen=True, kw_only=True)
class PneumoniaMNIST(DownloadableSource):
    """5,332 X-rays of 28x28 pixels to train and test (Yang et al. 2023): medmnist in `root`.

    Class 1, pneumonia, is the larger. The validation part is not used.
    """

    name: ClassVar[str] = "pneumonia_mnist"
    top: ClassVar[str] = "medmnist"
    url: ClassVar[str] = f"https://zenodo.org/records/10519652/files/{_FILE}?download=1"
    md5: ClassVar[str] = "28209eda62fecd6e6a2d98b1501bb15f"

    def read(self) -> Dataset:
        """Read the training and the test part."""
        path = self.locate() / self.top / _FILE
        try:
            with np.load(path) as arrays:
                train, train_labels, test, test_labels = (
                    torch.from_numpy(arrays[f"{part}_{what}"])
                    for part in ("train", "test")
                    for what in ("images", "labels")
                )
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.name}: cannot read {path}: {error}") from error
        return Dataset(
            train[:, None],
            train_labels[:, 0].long(),
            test[:, None],
            test_labels[:, 0].long(),
            classes=2,
            scaling=Scaling((0.5,), (0.5,)),
        )

    def files(self, root: Path) -> list[str]:
        """One archive of arrays."""
        return [f"{self.top}/{_FILE}"]

    def present(self, root: Path) -> Path | None:
        """`root`, if it is there."""
        return unpacked(root, self.files(root))

    def download_to(self, folder: Path) -> None:
        """From the archive of its authors."""
        fetch = torchvision().datasets.utils.download_url
        fetch(self.url, str(folder / self.top), _FILE, self.md5)
