"""The image sets that torchvision downloads: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, STL-10.

The files are read here, not by torchvision, which unpickles whatever is in them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import require
from fedsys.data.checks import check_part
from fedsys.data.dataset import Dataset, Imbalance, Scaling
from fedsys.data.formats import read_batch, read_idx, read_records
from fedsys.data.sources.base import DownloadableSource
from fedsys.data.storage import damaged, extract, extracted, find, unpacked
from fedsys.system.compat import torchvision


@dataclass(frozen=True, kw_only=True)
class TorchvisionSource(DownloadableSource):
    """A data set of torchvision.

    What is in `root` is read as it is: only downloads are compared with the published checksums.
    """

    kind: ClassVar[str]
    """torchvision's name for it."""
    archive: ClassVar[str | None] = None
    """The file it is published as, if that is one."""
    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling]

    def read(self) -> Dataset:
        """Read both parts."""
        return self.read_from(self.locate())

    def read_from(self, root: Path) -> Dataset:
        """Read both parts below a folder."""
        train, test = (self.part(root, is_train) for is_train in (True, False))
        return Dataset(*train, *test, self.classes, self.scaling, name=self.name)

    def present(self, root: Path) -> Path | None:
        """`root`, or a folder of the cache."""
        found = unpacked(root, self.files(root), self.read_from)
        if found is None and self.archive and (root / self.archive).is_file():
            inside = extracted(root / self.archive, self._verify_extracted)
            found = unpacked(inside, self.files(inside))
        return found

    def _verify_extracted(self, folder: Path) -> None:
        if all((folder / name).is_file() for name in self.files(folder)):
            self.read_from(folder)

    def download_to(self, folder: Path) -> None:
        """Let torchvision download it, with its md5 sum."""
        kind = self.torchvision_class()
        if self.archive is None:
            kind(str(folder), download=True)
            return
        fetch = torchvision().datasets.utils.download_url
        fetch(kind.url, str(folder), kind.filename, kind.tgz_md5)
        extract(folder / kind.filename, folder)

    def torchvision_class(self) -> Any:
        """The class of torchvision that knows where it is published."""
        return getattr(torchvision().datasets, self.kind)

    @abstractmethod
    def part(self, root: Path, train: bool) -> tuple[Tensor, Tensor]:
        """Images [N, channels, height, width] in bytes, and labels, after a check of each file."""

    def checked(
        self, images: np.ndarray, labels: np.ndarray, path: Path, of_labels: Path | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images and labels of one or two files as tensors, if they fit together."""
        tensors = torch.from_numpy(images), torch.from_numpy(labels).long()
        files = str(path) if of_labels is None else f"{path}, {of_labels.name}"
        check_part(f"{self.name}: {files}", *tensors, self.classes)
        return tensors


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionSource):
    """70,000 handwritten digits, 28x28 grey (LeCun et al. 1998): MNIST/raw in `root`."""

    name: ClassVar[str] = "mnist"
    kind: ClassVar[str] = "MNIST"
    top: ClassVar[str] = "MNIST"
    scaling: ClassVar[Scaling] = Scaling((0.1307,), (0.3081,))

    def files(self, root: Path) -> list[str]:
        """Images and labels of both parts."""
        return [
            f"{self.top}/raw/{part}-{what}-ubyte"
            for part in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        ]

    def part(self, root: Path, train: bool) -> tuple[Tensor, Tensor]:
        """Two IDX files; images get a channel."""
        prefix = root / self.top / "raw" / ("train" if train else "t10k")
        of_images, of_labels = (
            Path(f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
        )
        images = read_idx(of_images, 3)
        if images.shape[1:] != (28, 28):
            raise damaged(of_images, f"its images are {images.shape[1:]}, not 28 x 28")
        return self.checked(images[:, None], read_idx(of_labels, 1), of_images, of_labels)


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(MNIST):
    """70,000 pictures of clothing, 28x28 grey (Xiao et al. 2017): FashionMNIST/raw in `root`."""

    name: ClassVar[str] = "fashion_mnist"
    kind: ClassVar[str] = "FashionMNIST"
    top: ClassVar[str] = "FashionMNIST"
    scaling: ClassVar[Scaling] = Scaling((0.2860,), (0.3530,))


@dataclass(frozen=True, kw_only=True)
class CIFAR10(TorchvisionSource):
    """60,000 small photographs, 32x32 (Krizhevsky 2009): cifar-10-batches-py in `root`.

    With only some of the five training batches the run says so, and trains on them.
    """

    name: ClassVar[str] = "cifar10"
    kind: ClassVar[str] = "CIFAR10"
    top: ClassVar[str] = "cifar-10-batches-py"
    archive: ClassVar[str | None] = "cifar-10-python.tar.gz"
    meta: ClassVar[str] = "batches.meta"
    train: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{number}" for number in range(1, 6))
    test: ClassVar[str] = "test_batch"
    labels: ClassVar[str] = "labels"
    scaling: ClassVar[Scaling] = Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

    def read(self) -> Dataset:
        """Read both parts, and say if some of the training part is missing."""
        data = super().read()
        there = self._batches(self.locate())
        if len(there) < len(self.train):
            count = f"{len(there)} of {len(self.train)} training batches"
            data = replace(data, note=f"{self.name}: {count} are there")
        return data

    def files(self, root: Path) -> list[str]:
        """The batches that are there, or else all of them."""
        names = [*(self._batches(root) or self.train), self.test, self.meta]
        return [f"{self.top}/{name}" for name in names]

    def part(self, root: Path, train: bool) -> tuple[Tensor, Tensor]:
        """The batches one after another."""
        names = self._batches(root) if train else [self.test]
        paths = [root / self.top / name for name in names]
        parts = [self.checked(*read_batch(path, self.labels), path) for path in paths]
        images, labels = zip(*parts, strict=True)
        return torch.cat(images), torch.cat(labels)

    def _batches(self, root: Path) -> list[str]:
        return [name for name in self.train if find(root, f"{self.top}/{name}")]


@dataclass(frozen=True, kw_only=True)
class CIFAR100(CIFAR10):
    """CIFAR-100, read from cifar-100-python in `root`.

    Args:
        task: "classes", or "animal_machine": 45 classes of animals against the 10 of vehicles,
            which are positive; Huang et al. (AISTATS 2024), arXiv:2211.07303, Section 6.2, do not
            name the classes.
    """

    task: str = "classes"

    name: ClassVar[str] = "cifar100"
    kind: ClassVar[str] = "CIFAR100"
    top: ClassVar[str] = "cifar-100-python"
    archive: ClassVar[str | None] = "cifar-100-python.tar.gz"
    meta: ClassVar[str] = "meta"
    train: ClassVar[tuple[str, ...]] = ("train",)
    test: ClassVar[str] = "test"
    labels: ClassVar[str] = "fine_labels"
    classes: ClassVar[int] = 100
    scaling: ClassVar[Scaling] = Scaling((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))

    def __post_init__(self) -> None:
        super().__post_init__()
        tasks = ("classes", "animal_machine")
        require(self.task in tasks, self.name, "task", self.task, " or ".join(tasks))

    def read(self) -> Dataset:
        """Read both parts, and make the task binary if it is to be."""
        data = super().read()
        if self.task == "classes":
            return data
        return Imbalance(None, _MACHINES, _ANIMALS)(data, self.seed)


_MACHINES = (8, 13, 41, 48, 58, 69, 81, 85, 89, 90)
"""CIFAR-100's vehicles 1 and 2: bicycle, bus, lawn mower, ..., train."""
_ANIMALS = (
    *(1, 3, 4, 6, 7, 14, 15, 18, 19, 21, 24, 26, 27, 29, 30, 31, 32, 34, 36, 38, 42, 43, 44, 45),
    *(50, 55, 63, 64, 65, 66, 67, 72, 73, 74, 75, 77, 78, 79, 80, 88, 91, 93, 95, 97, 99),
)
"""Its aquatic mammals, fish, insects, carnivores, herbivores, other mammals and invertebrates."""


@dataclass(frozen=True, kw_only=True)
class STL10(TorchvisionSource):
    """13,000 labelled photographs, 96x96 (Coates et al. 2011): stl10_binary in `root`."""

    name: ClassVar[str] = "stl10"
    kind: ClassVar[str] = "STL10"
    top: ClassVar[str] = "stl10_binary"
    archive: ClassVar[str | None] = "stl10_binary.tar.gz"
    scaling: ClassVar[Scaling] = Scaling((0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713))

    def files(self, root: Path) -> list[str]:
        """Images and labels of both parts; the unlabelled images are not used."""
        names = [f"{part}_{what}.bin" for part in ("train", "test") for what in ("X", "y")]
        return [f"{self.top}/{name}" for name in [*names, "class_names.txt"]]

    def part(self, root: Path, train: bool) -> tuple[Tensor, Tensor]:
        """Images by columns, and labels from 1."""
        prefix = root / self.top / ("train" if train else "test")
        of_images, of_labels = Path(f"{prefix}_X.bin"), Path(f"{prefix}_y.bin")
        images = read_records(of_images, (3, 96, 96)).transpose(0, 1, 3, 2)
        labels = read_records(of_labels, ()).astype(np.int64) - 1
        return self.checked(np.ascontiguousarray(images), labels, of_images, of_labels)
