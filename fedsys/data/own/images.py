"""Images of the user's own: a folder for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError, require
from fedsys.core.site import Site
from fedsys.data.dataset import Dataset, Scaling
from fedsys.data.formats import read_picture
from fedsys.data.own.schema import Schema
from fedsys.data.own.source import OwnFiles, Pair, PairPart, joined
from fedsys.data.own.table import rounded

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
_PIXELS_AT_A_TIME = 2**24


@dataclass(frozen=True, kw_only=True)
class ImageFolders(OwnFiles[PairPart]):
    """JPEG and PNG files in a folder for each class: path/CLASS/NAME.png.

    Args:
        path: the folder; {client} in it is the number of the client that owns it.
        test_path: the folder of the test images; null: `test_share` of the images are for testing.
        test_share: the fraction of the images of each class that is kept for testing.
        seed: the seed of the choice of test images.
        classes: the names of the class folders, in the order of the classes; the last one of two is
            positive. null: the folders that there are, which must be the same at all clients.
        size: pixels per side, to which all images are scaled.
        channels: 3 for colour, 1 for grey.
        scaling: "standard" for channels with mean 0 and deviation 1 over the training images of all
            clients, from sums over clients; "none" for pixels in [0, 1].
    """

    classes: Sequence[str] | None = None
    size: int = 64
    channels: int = 3
    scaling: str = "standard"

    name: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 8, "images", "size", self.size, "at least 8")
        require(self.channels in (1, 3), "images", "channels", self.channels, "1 or 3")
        known = ("standard", "none")
        require(self.scaling in known, "images", "scaling", self.scaling, " or ".join(known))

    def _read(self, client: int) -> PairPart:
        folder = self._file(self.path, client)
        names = self._class_folders(folder)
        train = self._images(folder, names)
        if self.test_path is None:
            train, test = self._divided(train, client)
        else:
            test = self._images(self._file(self.test_path, client), names)
        shape = (self.channels, self.size, self.size)
        columns = {} if self.classes is not None else dict.fromkeys(names, "class folder")
        schema = Schema(shape, "uint8", columns, len(names), what="class folder")
        return PairPart(train, test, schema)

    def _class_folders(self, folder: Path) -> list[str]:
        """Return the names of the classes."""
        if self.classes is not None:
            return [str(name) for name in self.classes]
        if not folder.is_dir():
            raise InputError(f"images: {folder} is not a folder")
        names = sorted(one.name for one in folder.iterdir() if one.is_dir())
        if len(names) < 2:
            raise InputError(
                f"images: {folder} has {len(names)} folders of images; there must be one for each "
                "class, or give their names by dataset.classes=[...]"
            )
        return names

    def _images(self, folder: Path, names: Sequence[str]) -> Pair:
        paths, labels = [], []
        for label, name in enumerate(names):
            inside = folder / name
            found = sorted(inside.iterdir()) if inside.is_dir() else []
            images = [path for path in found if path.suffix.lower() in _SUFFIXES]
            paths += images
            labels += [label] * len(images)
        if not paths:
            raise InputError(f"images: {folder} has no JPEG or PNG file in {', '.join(names)}")
        pixels = np.empty((len(paths), self.channels, self.size, self.size), dtype=np.uint8)
        with ThreadPoolExecutor() as pool:
            read = pool.map(lambda path: read_picture(path, self.channels, self.size), paths)
            for row, image in enumerate(read):
                pixels[row] = image
        return torch.from_numpy(pixels), torch.tensor(labels)

    def _build(self, parts: Mapping[int, PairPart], schema: Schema, site: Site) -> Dataset:
        names = list(schema.columns) if self.classes is None else [*map(str, self.classes)]
        tensors = joined(parts)
        scaling = self._scaling(tensors["train_inputs"], site)
        preparation = {
            "kind": "images",
            "classes": names,
            "size": self.size,
            "channels": self.channels,
            "mean": list(scaling.mean),
            "std": list(scaling.std),
        }
        return Dataset(
            **tensors,
            classes=len(names),
            scaling=scaling,
            name=self.name,
            preparation=preparation,
        )

    def _scaling(self, pixels: Tensor, site: Site) -> Scaling:
        if self.scaling == "none":
            return Scaling((0.0,) * self.channels, (1.0,) * self.channels)
        moments = torch.zeros(2 * self.channels + 1, dtype=torch.float64)
        moments[-1] = pixels[:, 0].numel()
        for piece in pixels.split(max(1, _PIXELS_AT_A_TIME // pixels[0].numel())):
            values = piece.long()  # sums of integers are exact in any order
            moments[: self.channels] += values.sum((0, 2, 3))
            moments[self.channels : -1] += values.square().sum((0, 2, 3))
        sums = site.peers.total(moments)
        mean = sums[: self.channels] / sums[-1]
        variance = sums[self.channels : -1] / sums[-1] - mean.square()
        std = torch.where(variance > 0, variance.clamp(min=0).sqrt(), 255.0)
        values = [rounded(one / 255).tolist() for one in (mean, std)]
        return Scaling(tuple(values[0]), tuple(values[1]))
