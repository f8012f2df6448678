"""PneumoniaMNIST: chest X-rays of MedMNIST v2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.data.checks import check_part
from fedsys.data.dataset import Dataset, Scaling
from fedsys.data.formats import read_npz
from fedsys.data.sources.base import FileSource


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
        names = [f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")]
        train, train_labels, test, test_labels = read_npz(path, names)
        return Dataset(
            *self._part(f"{self.name}: {path}, training part", train, train_labels),
            *self._part(f"{self.name}: {path}, test part", test, test_labels),
            classes=2,
            scaling=Scaling((0.5,), (0.5,)),
            name=self.name,
        )

    @staticmethod
    def _part(where: str, images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        if images.ndim != 3 or images.dtype != np.uint8:
            raise InputError(f"{where}: images must be uint8 [N, 28, 28], got {_kind(images)}")
        if labels.ndim != 2 or labels.shape[1] != 1:
            raise InputError(f"{where}: labels must be [N, 1], got {_kind(labels)}")
        part = torch.from_numpy(images)[:, None], torch.from_numpy(labels)[:, 0]
        check_part(where, *part, classes=2)
        return part


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
