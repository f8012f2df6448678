"""Tensors of the user's own: .npz, .safetensors and .pt files with inputs and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.core.site import Site
from fedsys.data.checks import check_part
from fedsys.data.dataset import Dataset
from fedsys.data.formats import read_npz, reading
from fedsys.data.own.schema import Schema
from fedsys.data.own.source import OwnFiles, Pair, PairPart, joined

_MOST_CLASSES = 10_000


@dataclass(frozen=True, kw_only=True)
class TensorFiles(OwnFiles[PairPart]):
    """Files with the tensors `inputs` [N, ...] and `labels` [N]: .npz, .safetensors or .pt.

    A .pt file holds a dictionary of tensors; nothing else in it is loaded. Inputs of bytes (uint8)
    are images, scaled to [0, 1].

    Args:
        path: the file; {client} in it is the number of the client that owns it.
        test_path: the file of the test samples; null: `test_share` of the samples are for testing.
        test_share: the fraction of the samples of each class that is kept for testing.
        seed: the seed of the choice of test samples.
        inputs: the name of the inputs in the file.
        labels: the name of the labels in the file.
    """

    inputs: str = "inputs"
    labels: str = "labels"

    name: ClassVar[str] = "tensors"

    def _read(self, client: int) -> PairPart:
        path = self._file(self.path, client)
        pair = self._tensors(path)
        if self.test_path is None:
            return self._part(pair, None, str(path), client)
        test_path = self._file(self.test_path, client)
        return self._part(pair, self._tensors(test_path), str(path), client)

    def _part(self, train: Pair, test: Pair | None, where: str, client: int) -> PairPart:
        """Return the part of a client whose tensors are given."""
        if test is None:
            self._check(train, where)
            train, test = self._divided(train, client)
        self._check(train, where)
        self._check(test, f"{where}: the test part")
        classes = 1 + int(max(train[1].max(), test[1].max()))
        kind = str(train[0].dtype).removeprefix("torch.")
        return PairPart(train, test, Schema(tuple(train[0].shape[1:]), kind, {}, classes))

    @staticmethod
    def _check(pair: Pair, where: str) -> None:
        check_part(where, *pair, _MOST_CLASSES)

    def _tensors(self, path: Path) -> Pair:
        names = (self.inputs, self.labels)
        suffix = path.suffix.lower()
        if suffix == ".npz":
            arrays = read_npz(path, names)
            inputs, labels = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
            return inputs, labels.squeeze(-1) if labels.dim() == 2 else labels
        with reading(path):
            found = self._load(path, suffix)
        if not isinstance(found, Mapping) or not all(
            isinstance(found.get(name), Tensor) for name in names
        ):
            raise InputError(f"{path} must hold the tensors {names[0]!r} and {names[1]!r}")
        return found[names[0]], found[names[1]]

    @staticmethod
    def _load(path: Path, suffix: str) -> Any:
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if suffix in (".pt", ".pth"):
            return torch.load(path, map_location="cpu", weights_only=True)
        raise InputError(f"tensors: {path} must be an .npz, .safetensors or .pt file")

    def _build(self, parts: Mapping[int, PairPart], schema: Schema, site: Site) -> Dataset:
        return built(self.name, parts, schema)


def built(name: str, parts: Mapping[int, PairPart], schema: Schema) -> Dataset:
    """Return the data set of the parts of several clients."""
    shape = {"kind": "tensors", "shape": list(schema.shape or ()), "dtype": schema.dtype}
    classes = max(2, schema.classes)
    return Dataset(**joined(parts), classes=classes, name=name, preparation=shape)
