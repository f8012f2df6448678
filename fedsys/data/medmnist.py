"""PneumoniaMNIST: chest X-rays of MedMNIST v2."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedsys.data.dataset import Dataset, Scaling
from fedsys.data.source import FileSource
from fedsys.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PneumoniaMNIST(FileSource):
    """5,332 X-rays of 28x28 pixels to train and test (Yang et al. 2023): medmnist in `root`.

    Class 1, pneumonia, is the larger. The validation part is not used.
    """

    name: ClassVar[str] = "pneumonia_mnist"
    top: ClassVar[str] = "medmnist"
    file: ClassVar[str] = "pneumoniamnist.npz"
    address: ClassVar[str] = f"https://zenodo.org/records/10519652/files/{file}?download=1"
    md5: ClassVar[str] = "28209eda62fecd6e6a2d98b1501bb15f"

    def read(self) -> Dataset:
        """Read the training and the test part."""
        path = self.path()
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
