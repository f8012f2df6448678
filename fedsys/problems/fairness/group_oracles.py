"""Oracles of group-fair classification, with and without learned group weights, and metrics."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsys.clients.small_models import NetworkModel, Samples, StackedBatches, losses, slopes
from fedsys.core.oracles import Draw
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.data import ClientSplit
from fedsys.data.sources.tables import GroupedDataset
from fedsys.problems.bilevel.autograd import shared_row
from fedsys.problems.bilevel.reweighting import GroupWeighting, ReweightingOracle
from fedsys.problems.fairness.group_metrics import (
    confusion,
    group_table,
    soft_disparity,
    unfairness,
)
from fedsys.problems.stepping import SteppingOracle

SMALL_WEIGHT = 0.3
"""A learned group weight below this causes a warning; the mean weight is 1."""


class GroupMetrics:
    """Metrics of the clients' models, or of the model that they share."""

    def __init__(
        self,
        data: GroupedDataset,
        client_split: ClientSplit,
        whole: StackedBatches,
        site: Site,
        held: list[np.ndarray] | None = None,
    ) -> None:
        self.names, self.train, self.client_split = data.group_names, whole.whole, client_split
        self._description, self._is_owned = dict(data.description), data.test_owners is not None
        if data.test_owners is not None:
            self.test = _own_test_parts(data, data.test_owners, site)
            return
        self._description["clients"] = self._count(data, client_split.parts)
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
        """Return how the table was prepared, and the number of rows of each client and group."""
        return self._description

    def metrics(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, float]:
        """Return the accuracy and the measures of `unfairness`, with prefixes train_ and test_."""
        return {
            f"{part}_{name}": value
            for part, counts in self._counts(model, y, sync).items()
            for name, value in unfairness(counts).items()
        }

    def report(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, Any]:
        """Return the tables of groups, and a remark on the number of positives of each group."""
        counts = self._counts(model, y, sync)
        tables = {part: group_table(table, self.names) for part, table in counts.items()}
        positives = {name: row["positives"] for name, row in tables["test"].items()}
        listed = ", ".join(f"{name} {n}" for name, n in positives.items())
        remark = f"positives in the test part: {listed}"
        name, fewest = min(positives.items(), key=lambda one: one[1] or inf)
        if fewest:
            remark += f"; one person moves the rate of {name} by {1 / fewest:.2g}"
        return {**tables, "remarks": [remark]}

    def _counts(self, model: NetworkModel, y: Tensor, sync: Sync) -> dict[str, Tensor]:
        """Return counts [K, 2, 2] on the training and on the test set.

        On the training set each client's model counts its own samples, and the counts are summed.
        On a common test set the counts are the mean over the clients' models; if clients own their
        test samples, they are as on the training set.
        """
        train = self._confusion(model, y, self.train)
        if self._is_owned:
            own = self._confusion(model, y, self.test)
            return {"train": sync.gather(train).sum(0), "test": sync.gather(own).sum(0)}
        equal = all(torch.equal(row, y[0]) for row in y[1:])
        test = [self._confusion(model, row[None], self.test) for row in (y[:1] if equal else y)]
        tests = torch.cat(test).expand(len(y), -1, -1, -1)
        return {"train": sync.gather(train).sum(0), "test": sync.gather(tests).mean(0)}

    def _confusion(self, model: NetworkModel, y: Tensor, xi: Samples) -> Tensor:
        scores = model.scores(y, xi.inputs)[0][:, :, 0]
        return confusion(scores, xi.labels, xi.tags, len(self.names), xi.mass > 0)


def _own_test_parts(data: GroupedDataset, owners: Tensor, site: Site) -> Samples:
    """Return the own test samples of the hosted clients."""
    rows = [(owners == client).nonzero()[:, 0] for client in site.hosted]
    fields = (data.test_inputs, data.test_labels, data.test_groups)
    inputs, labels, groups = ([values[index] for index in rows] for values in fields)
    return StackedBatches(site, inputs, labels, groups, None).whole


class BilevelFairOracle(ReweightingOracle):
    """The bilevel oracle: x has the logits of the groups' weights, y is the classifier.

    It reports outer_loss, the mean of f_m(y_m), and the metrics of the classifiers.
    """

    def __init__(
        self,
        site: Site,
        model: NetworkModel,
        train: StackedBatches,
        validation: StackedBatches,
        l2: float,
        metrics: GroupMetrics,
        weighting: GroupWeighting,
        pooled: GroupWeighting,
    ) -> None:
        x0 = torch.zeros(len(metrics.names))
        super().__init__(site, model, weighting, x0, train, validation, l2)
        self._metrics, self.client_split, self._pooled = metrics, metrics.client_split, pooled

    @override
    def named(self, z: Tensor) -> dict[str, Tensor]:
        x, y = self.split(z)
        weights = self._pooled.weights(shared_row(x)[None])[0]
        return {"group_weights": weights, **self.model.named(y)}

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        _, y = self.split(z)
        return {**super().evaluate(z, sync), **self._metrics.metrics(self.model, y, sync)}

    def describe(self) -> dict[str, Any]:
        """Return how the data was prepared."""
        return self._metrics.describe()

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """Return the tables of groups, their weights, and a warning about small weights."""
        x, y = self.split(z)
        weights = self._pooled.weights(x[:1])[0].tolist()
        named = dict(zip(self._metrics.names, weights, strict=True))
        report = self._metrics.report(self.model, y, sync)
        listed = ", ".join(f"{name} {weight:.3g}" for name, weight in named.items())
        report["remarks"].insert(0, f"group weights: {listed}")
        small = [name for name, weight in named.items() if weight < SMALL_WEIGHT]
        if small:
            report["warnings"] = [
                f"the learned weights of {', '.join(small)} are below {SMALL_WEIGHT} (the mean is "
                "1): the samples of these groups hardly affect the classifier"
            ]
        return {"group_weights": named, **report}


class GroupedOracle(SteppingOracle):
    """The single-level oracle: x is the classifier, trained on the mean loss + l2 |x|^2 / 2."""

    def __init__(
        self,
        site: Site,
        model: NetworkModel,
        train: StackedBatches,
        l2: float,
        metrics: GroupMetrics,
    ) -> None:
        super().__init__(site)
        self.model, self.train, self.l2 = model, train, l2
        self._metrics, self.client_split = metrics, metrics.client_split
        self.uses_autograd = not model.linear
        self.sizes = train.sizes
        self.z0 = self.x0 = site.rows(model.start)
        self.group_shares = self._by_group(train.whole, train.whole.mass)

    @property
    @override
    def finite_sum(self) -> bool:
        return True

    def draw(self) -> Draw:
        """Return the next batch of each hosted client."""
        return self.train.at(*self._next())

    def grad(self, x: Tensor, xi: Samples) -> Tensor:
        """Return the gradient of the mean loss."""
        return self.loss_and_grad(x, xi)[1]

    def loss_and_grad(self, x: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """Return the mean loss [C], and its gradient."""
        z, pull = self.model.scores(x, xi.inputs)
        loss = (xi.mass * losses(z, xi.labels)).sum(1) + self.l2 / 2 * x.square().sum(1)
        return loss, pull(xi.mass[:, :, None] * slopes(z, xi.labels)) + self.l2 * x

    def weighted_grad(self, x: Tensor, w: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradient with weights [C, K], and each group's part of the unweighted loss."""
        z, pull = self.model.scores(x, xi.inputs)
        weights = w.gather(1, xi.tags) * xi.mass
        gradient = pull(weights[:, :, None] * slopes(z, xi.labels)) + self.l2 * x
        return gradient, self._by_group(xi, xi.mass * losses(z, xi.labels))

    def disparity_and_grad(self, x: Tensor, xi: Samples) -> tuple[Tensor, Tensor]:
        """Return the largest difference of soft true-positive rates, and its gradient."""
        z, pull = self.model.scores(x, xi.inputs)
        K = len(self._metrics.names)
        value, slope = soft_disparity(z[:, :, 0], xi.labels, xi.tags, K, xi.mass > 0)
        return value, pull(slope[:, :, None])

    def _by_group(self, xi: Samples, values: Tensor) -> Tensor:
        sums = values.new_zeros(len(values), len(self._metrics.names))
        return sums.scatter_add(1, xi.tags, values)

    def named(self, z: Tensor) -> dict[str, Tensor]:
        """Return the parameters of the classifier by name."""
        return self.model.named(z)

    def evaluate(self, z: Tensor, sync: Sync) -> dict[str, float]:
        """Return train_loss, and the metrics of the averaged classifier."""
        loss = float(sync(self.loss_and_grad(z, self.train.whole)[0][:, None])[0])
        return {"train_loss": loss, **self._metrics.metrics(self.model, z, sync)}

    def describe(self) -> dict[str, Any]:
        """Return how the data was prepared."""
        return self._metrics.describe()

    def report(self, z: Tensor, sync: Sync) -> dict[str, Any]:
        """Return the tables of groups."""
        return self._metrics.report(self.model, z, sync)
