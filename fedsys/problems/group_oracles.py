"""Classifiers of groups, with weights to learn or without, and how they are judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.communication import Sync
from fedsys.data import Deal
from fedsys.data.tables import GroupedDataset
from fedsys.problems.fairness import confusion, group_table, soft_disparity, unfairness
from fedsys.problems.oracle import Draw
from fedsys.problems.reweighting import GroupWeighting, ReweightingOracle
from fedsys.problems.site import Site
from fedsys.problems.stacked import NetworkModel, Samples, StackedBatches, losses, slopes
from fedsys.problems.stepping import SteppingOracle


class Judge:
    """Metrics of one model for all clients: on the pooled training part, and on the test part."""

    def __init__(
        self,
        data: GroupedDataset,
        dealt: Deal,
        whole: StackedBatches,
        site: Site,
        held: list[np.ndarray] | None = None,
    ) -> None:
        self.names, self.train, self.deal = data.group_names, whole.whole, dealt
        self._description = {**data.description, "clients": self._count(data, dealt.parts)}
        if held is not None:
            self._description["validation"] = self._count(data, held)
        inputs = data.test_inputs.to(dtype=site.dtype, device=site.device)
        labels, groups = (t.to(site.device) for t in (data.test_labels, data.test_groups))
        mass = inputs.new_full((1, len(labels)), 1 / len(labels))
        self.test = Samples(inputs[None], labels[None], groups[None], mass)

    def _count(self, data: GroupedDataset, parts: list[np.ndarray]) -> list[dict[str, Any]]:
        groups, labels = data.train_groups.numpy(), data.train_labels.numpy()
        rows = []
        for part in parts:
            mine, positive = groups[part], labels[part] == 1
            rows.append(
                {
                    name: {
                        "rows": int((mine == g).sum()),
                        "positives": int(positive[mine == g].sum()),
                    }
                    for g, name in enumerate(data.group_names)
                }
            )
        return rows

    def describe(self) -> dict[str, Any]:
        """How the table was prepared, and who has how much of it."""
        return self._description

    def metrics(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, float]:
        """train_ and test_ accuracy, eqopp and eqodds."""
        return {
            f"{part}_{name}": value
            for part, counts in self._counts(model, y, sync).items()
            for name, value in unfairness(counts).items()
        }

    def report(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, Any]:
        """The table of groups."""
        counts = self._counts(model, y, sync)
        return {part: group_table(table, self.names) for part, table in counts.items()}

    def _counts(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, Tensor]:
        K = len(self.names)
        parts = {"train": (self.train, y), "test": (self.test, y[:1])}
        counts = {}
        for part, (xi, rows) in parts.items():
            scores = model.scores(rows, xi.inputs)[0][:, :, 0]
            counts[part] = confusion(scores, xi.labels, xi.tags, K, xi.mass > 0)
        return {"train": sync.gather(counts["train"]).sum(0), "test": counts["test"][0]}


class BilevelFairOracle(ReweightingOracle):
    """x are the logits of the groups' weights, y the classifier."""

    def __init__(
        self,
        site: Site,
        model: NetworkModel,
        train: StackedBatches,
        validation: StackedBatches,
        l2: float,
        judge: Judge,
    ) -> None:
        x0 = torch.zeros(len(judge.names))
        super().__init__(site, model, GroupWeighting(), x0, train, validation, l2)
        self._judge, self.deal = judge, judge.deal

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The groups' weights, and the classifier."""
        x, y = self.split(z)
        return {"group_weights": GroupWeighting().weights(x[None])[0], **self.model.named(y)}

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """outer_loss, the mean of f_m, and the metrics of the averaged classifier."""
        _, y = self.split(z)
        return {**super().evaluate(z, sync), **self._judge.metrics(self.model, y, sync)}

    def describe(self) -> dict[str, Any]:
        """How the data was prepared."""
        return self._judge.describe()

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """The table of groups, and their weights."""
        x, y = self.split(z)
        weights = GroupWeighting().weights(x)[0].tolist()
        named = dict(zip(self._judge.names, weights, strict=True))
        return {"group_weights": named, **self._judge.report(self.model, y, sync)}


class GroupedOracle(SteppingOracle):
    """One level: x is the classifier, trained on the mean loss + l2 |x|^2 / 2."""

    def __init__(
        self, site: Site, model: NetworkModel, train: StackedBatches, l2: float, judge: Judge
    ) -> None:
        super().__init__(site)
        self.model, self.train, self.l2 = model, train, l2
        self._judge, self.deal = judge, judge.deal
        self.uses_autograd = not model.linear
        self.sizes = train.sizes
        self.z0 = self.x0 = site.rows(model.start)
        self.group_shares = self._by_group(train.whole, train.whole.mass)

    @property
    def finite_sum(self) -> bool:
        """Draws are batches."""
        return True

    def draw(self) -> Draw:
        """The next batch of each hosted client."""
        return self.train.at(*self._next())

    def grad(self, x: Tensor, xi: Samples) -> Tensor:
        """The gradient of the mean loss."""
        return self.loss_and_grad(x, xi)[1]

    def loss_and_grad(self, x: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """The mean loss [C], and its gradient."""
        z, pull = self.model.scores(x, xi.inputs)
        loss = (xi.mass * losses(z, xi.labels)).sum(1) + self.l2 / 2 * x.square().sum(1)
        return loss, pull(xi.mass[:, :, None] * slopes(z, xi.labels)) + self.l2 * x

    def weighted_grad(self, x: Tensor, w: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """The gradient with weights [C, K], and each group's part of the loss without them."""
        z, pull = self.model.scores(x, xi.inputs)
        weights = w.gather(1, xi.tags) * xi.mass
        gradient = pull(weights[:, :, None] * slopes(z, xi.labels)) + self.l2 * x
        return gradient, self._by_group(xi, xi.mass * losses(z, xi.labels))

    def disparity_and_grad(self, x: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """The largest difference of soft true-positive rates in the batch, and its gradient."""
        z, pull = self.model.scores(x, xi.inputs)
        K = len(self._judge.names)
        value, slope = soft_disparity(z[:, :, 0], xi.labels, xi.tags, K, xi.mass > 0)
        return value, pull(slope[:, :, None])

    def _by_group(self, xi: Samples, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), len(self._judge.names))
        return sums.scatter_add(1, xi.tags, values)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """The classifier."""
        return self.model.named(z)

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """train_loss, and the metrics of the averaged classifier."""
        loss = float(sync(self.loss_and_grad(z, self.train.whole)[0][:, None])[0])
        return {"train_loss": loss, **self._judge.metrics(self.model, z, sync)}

    def describe(self) -> dict[str, Any]:
        """How the data was prepared."""
        return self._judge.describe()

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """The table of groups."""
        return self._judge.report(self.model, z, sync)
