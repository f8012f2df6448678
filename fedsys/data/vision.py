"""The image sets that torchvision reads: MNIST, FashionMNIST, CIFAR-10, CIFAR-100 and STL-10."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.compat import torchvision
from fedsys.data.dataset import Dataset, Imbalance, Scaling
from fedsys.data.source import DownloadableSource
from fedsys.data.storage import extracted, find, unpacked
from fedsys.errors import InputError, require


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
        root = self.locate()
        try:
            parts = [self.tensors(self.open(root, train)) for train in (True, False)]
        except (ValueError, EOFError, RuntimeError, LookupError, pickle.UnpicklingError) as error:
            where = root / self.top
            raise InputError(f"{self.name}: cannot read {where}: {error}") from error
        (train, train_labels), (test, test_labels) = parts
        for labels in (train_labels, test_labels):
            valid = len(labels) > 0 and int(labels.max()) < self.classes
            require(valid, self.name, "labels", labels.unique().tolist(), f"below {self.classes}")
        return Dataset(train, train_labels, test, test_labels, self.classes, self.scaling)

    def present(self, root: Path) -> Path | None:
        """`root`, or a folder of the cache."""
        found = unpacked(root, self.files(root))
        if found is None and self.archive and (root / self.archive).is_file():
            inside = extracted(root / self.archive)
            found = unpacked(inside, self.files(inside))
        return found

    def download_to(self, folder: Path) -> None:
        """Let torchvision download both parts, with their md5 sums."""
        self.torchvision_class()(str(folder), download=True)

    def open(self, root: Path, train: bool) -> Any:
        """torchvision's data set."""
        return self.torchvision_class()(str(root), train=train)

    def torchvision_class(self) -> Any:
        """The class of torchvision that reads it."""
        return getattr(torchvision().datasets, self.kind)

    @abstractmethod
    def tensors(self, data: Any) -> tuple[Tensor, Tensor]:
        """Images [N, channels, height, width] in bytes, and labels."""


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

    def tensors(self, data: Any) -> tuple[Tensor, Tensor]:
        """With a channel."""
        return data.data[:, None], data.targets.long()


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

    def open(self, root: Path, train: bool) -> Any:
        """Without the checksums of the whole set, which a part of it cannot have."""
        kind = self.torchvision_class()
        lists = {
            "train_list": [[name, None] for name in self._batches(root)],
            "test_list": [[self.test, None]],
            "meta": {**kind.meta, "md5": None},
        }
        return type(self.kind, (kind,), lists)(str(root), train=train)

    def tensors(self, data: Any) -> tuple[Tensor, Tensor]:
        """Channels first."""
        images = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
        return torch.from_numpy(images), torch.tensor(data.targets)

    def _batches(self, root: Path) -> list[str]:
        return [name for name in self.train if find(root, f"{self.top}/{name}")]


@dataclass(frozen=True, kw_only=True)
class CIFAR100(CIFAR10):
    """The same with 100 classes: cifar-100-python in `root`.

    Args:
        task: "classes", or "animal_machine": 45 classes of animals against the 10 of vehicles,
            which are positive (adafgda.txt Section 6.2 does not name its classes).
    """

    task: str = "classes"

    name: ClassVar[str] = "cifar100"
    kind: ClassVar[str] = "CIFAR100"
    top: ClassVar[str] = "cifar-100-python"
    archive: ClassVar[str | None] = "cifar-100-python.tar.gz"
    meta: ClassVar[str] = "meta"
    train: ClassVar[tuple[str, ...]] = ("train",)
    test: ClassVar[str] = "test"
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

    def open(self, root: Path, train: bool) -> Any:
        """Without the checksum of the unlabelled images."""
        lists = {
            f"{part}_list": [[f"{part}_{what}.bin", None] for what in ("X", "y")]
            for part in ("train", "test")
        }
        kind = type(self.kind, (self.torchvision_class(),), lists)
        return kind(str(root), split="train" if train else "test")

    def tensors(self, data: Any) -> tuple[Tensor, Tensor]:
        """As torchvision has them."""
        images = torch.from_numpy(np.ascontiguousarray(data.data))
        return images, torch.from_numpy(data.labels).long()
