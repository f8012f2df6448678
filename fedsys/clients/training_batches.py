"""Training batches that are augmented, or that have a stated share of positives.

Axes: C hosted clients, B samples of a batch, N samples of all hosted clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.batches import Batch, Batches
from fedsys.core.errors import InputError
from fedsys.core.random import Streams, global_generators

Transform = Callable[[Tensor], Tensor]


class Augmentation:
    """Random transforms of single samples, by (seed, client, step, k).

    Args:
        transforms: applied one after another to a sample, such as torchvision.transforms.v2.
        seed: of the run.
    """

    def __init__(self, transforms: Iterable[Transform], seed: int) -> None:
        self._transforms, self._streams = list(transforms), Streams(seed, "augmentation")

    def __call__(self, inputs: Tensor, client: int, step: int, k: int) -> Tensor:
        """Return a client's batch [B, ...] with each sample transformed."""
        key = int(self._streams.at(client, step, k).integers(2**62))
        with global_generators(key, inputs.device):
            return torch.stack([self._transformed(sample) for sample in inputs])

    def check(self, sample: Tensor) -> None:
        """Refuse transforms that fail, or that change the shape or the type of a sample."""
        try:
            with global_generators(0, sample.device):
                made: object = self._transformed(sample)
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                f"problem.augment fails on a sample, {_described(sample)}: {reason}"
            ) from error
        if not isinstance(made, Tensor) or (made.shape, made.dtype) != (sample.shape, sample.dtype):
            got = _described(made) if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise InputError(
                f"problem.augment must keep shape and type of a sample, {_described(sample)}; got "
                f"{got}"
            )

    def _transformed(self, sample: Tensor) -> Tensor:
        for transform in self._transforms:
            sample = transform(sample)
        return sample


class TrainingBatches(Batches):
    """Batches of training samples with augmentation, a share of positives, or both.

    A class of a client's samples has epochs of its own: draw k of step t takes the next samples of
    it in an endless sequence of permutations. The batch depends on (seed, client, t, k) alone.

    Args:
        plain: the batches of all samples; their permutations are used without `positives`.
        seed: of the permutations.
        augmentation: applied to every batch, before images in bytes are scaled; None for none.
        positives: the number of samples with label 1 in every batch; None for any number.
    """

    def __init__(
        self,
        plain: Batches,
        seed: int,
        augmentation: Augmentation | None = None,
        positives: int | None = None,
    ) -> None:
        self.__dict__.update(vars(plain))
        self._augmentation, self._positives = augmentation, positives
        if augmentation is not None and len(self._inputs):
            augmentation.check(self._inputs[0])
        self._of_class = [] if positives is None else self._split(seed)

    @property
    @override
    def all_samples(self) -> Batch:
        what = "augmented samples" if self._augmentation else "batches with positive_share"
        raise InputError(
            f"the exact gradient on all data, which this algorithm needs, is not known for {what}; "
            "use an algorithm that takes stochastic gradients, or leave the option out"
        )

    @override
    def at(self, step: int, k: int) -> Batch:
        size = self._batch_size
        sizes = self.sizes if size is None else [size] * len(self.sizes)
        if size is None:
            index = torch.arange(len(self._labels), device=self._labels.device)
        else:
            index = self.indices(step, k, size)
        labels = self._labels.index_select(0, index)
        places = index if self._places is None else self._places.index_select(0, index)
        inputs = self._inputs.index_select(0, places)
        if self._augmentation is not None:
            rows = zip(inputs.split(sizes), self._clients, strict=True)
            inputs = torch.cat([self._augmentation(own, m, step, k) for own, m in rows])
        inputs = self._prepared(inputs)
        if len({*sizes}) == 1:
            return self._stacked(inputs, labels, (step, k))
        return Batch(inputs.split(sizes), labels.split(sizes), (step, k))

    @override
    def indices(self, step: int, k: int, batch_size: int) -> Tensor:
        if self._positives is None:
            return super().indices(step, k, batch_size)
        counts = batch_size - self._positives, self._positives
        picks = [
            members[batches.indices(step, k, count)].view(len(self.sizes), count)
            for (members, batches), count in zip(self._of_class, counts, strict=True)
        ]
        return torch.cat(picks, dim=1).flatten()

    def _split(self, seed: int) -> list[tuple[Tensor, Batches]]:
        """Return the places of the samples of each class, and their epochs."""
        found = []
        for label, name in enumerate(("negative", "positive")):
            own = [self._labels[self.own(row)] == label for row in range(len(self.sizes))]
            sizes = [int(is_member.sum()) for is_member in own]
            if 0 in sizes:
                raise InputError(
                    f"problem.positive_share: client {self._clients[sizes.index(0)]} has no "
                    f"{name} training samples; use another partition, or positive_share=null"
                )
            members = torch.cat(own).nonzero()[:, 0]
            given = sizes, self._clients, None, seed
            epochs = Batches(self._labels, self._labels, *given, purpose=f"{name} batches")
            found.append((members, epochs))
        return found


def positives_of(share: float, batch_size: int | None) -> int:
    """Return how many samples of a batch are positive; refuse batches without a class."""
    if batch_size is None:
        raise InputError(
            f"problem.positive_share={share:g} needs a batch_size, got null (all samples)"
        )
    count = int(np.floor(share * batch_size + 0.5))
    if not 0 < count < batch_size:
        raise InputError(
            f"problem.positive_share={share:g} leaves a class without samples in a batch of "
            f"{batch_size}; use a larger batch_size or another share"
        )
    return count


def transforms_of(given: object) -> Sequence[Transform]:
    """Return the transforms of a setting: None, one callable or a list; refuse anything else."""
    if given is None:
        return []
    listed = [given] if callable(given) else given
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        listed = [given]
    for one in listed:
        if not callable(one):
            raise InputError(
                "problem.augment must be a transform (_target_: torchvision.transforms.v2...) or a "
                f"list of them, got {one!r}"
            )
    return list(listed)


def _described(sample: Tensor) -> str:
    return f"{tuple(sample.shape)} {str(sample.dtype).removeprefix('torch.')}"
