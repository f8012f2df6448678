"""The evaluation of binary networks by their scores: of all clients together, and of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.core.errors import InputError, require
from fedsys.core.metrics import Record
from fedsys.core.sync import Sync
from fedsys.problems.networks.network_oracle import NetworkOracle
from fedsys.problems.networks.score_metrics import (
    MEASURES,
    Operating,
    auc_of_counts,
    auroc,
    has_both_classes,
    measured,
    score_counts,
)
from fedsys.problems.networks.scorer import Scorer

MODES = ("auto", "pooled", "histogram", "local")
_SMALLEST_SPREAD = 1e-4
"""The smallest standard deviation of scores in (0, 1) without a warning.

AUC losses are minimal if the scores of the two classes differ by 1.
"""
_LARGEST_BOUND = 0.05
"""The largest error bound of an AUC from counts without a warning."""
_MOST_CLIENTS_NAMED = 8


@dataclass(frozen=True)
class ScoreEvaluation:
    """How the test AUC is computed, and what is measured besides it.

    Args:
        mode: "pooled", "histogram" or "local"; "auto" for histogram where clients own their test
            samples, and pooled elsewhere.
        metrics: further metrics of the pooled scores, names of `MEASURES`.
        at: the operating points of these metrics.
        each_client: whether records hold the AUC of each client that owns test samples.
        cross_site: whether the model of each client is judged at every client after training.
    """

    mode: str = "auto"
    metrics: Sequence[str] = ()
    at: Operating = field(default_factory=Operating)
    each_client: bool = True
    cross_site: bool = False

    def check(self, owner: str) -> None:
        """Refuse unknown names and operating points out of range."""
        require(self.mode in MODES, owner, "evaluation", self.mode, " or ".join(MODES))
        for name in self.metrics:
            require(name in MEASURES, owner, "metrics", name, f"among {', '.join(MEASURES)}")
        for name in ("specificity", "max_fpr"):
            value = getattr(self.at, name)
            require(0 < value <= 1, owner, name, value, "above 0 and at most 1")

    def resolved(self, is_owned: bool) -> ScoreEvaluation:
        """Return the evaluation for test samples that clients own, or for a common test part."""
        mode = self.mode
        if mode == "auto":
            mode = "histogram" if is_owned else "pooled"
        if mode == "local" and not is_owned:
            raise InputError(
                "evaluation=local is the mean over clients that own their test samples, and the "
                "test part of this data set is common; use evaluation=pooled"
            )
        if self.cross_site and not is_owned:
            raise InputError(
                "cross_site=true judges models on the test samples of each client, and the test "
                "part of this data set is common; leave it out"
            )
        if self.metrics and mode != "pooled":
            raise InputError(
                f"metrics={list(self.metrics)} need the scores of all clients, which "
                f"evaluation={mode} does not gather; use evaluation=pooled, or leave them out"
            )
        return replace(self, mode=mode)


class ScoredOracle(NetworkOracle):
    """An oracle that reports the test AUC of the averaged model, and that of each client.

    Args:
        args: those of `NetworkOracle`.
        evaluation: how the AUC is computed.
        others: further arguments of the base classes.
    """

    def __init__(
        self,
        *args: Any,
        evaluation: ScoreEvaluation,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)
        self._evaluation = evaluation.resolved(self.data.test_sizes is not None)

    @property
    def judges_all_models(self) -> bool:
        """Whether the site-by-site matrix is wanted."""
        return self._evaluation.cross_site

    @override
    def evaluate(self, z: Tensor, sync: Sync) -> Record:
        return {**super().evaluate(z, sync), **self._score_metrics(z, sync)}

    def client_aucs(self, z: Tensor, sync: Sync) -> Tensor:
        """Return the AUC on the own test samples of each hosted client [C], NaN if undefined."""
        return own_aucs(self.own_test_outputs(z, sync, self._logits), self._own_labels())

    def _score_metrics(self, z: Tensor, sync: Sync) -> Record:
        if self._evaluation.mode == "pooled" or self.data.test_sizes is None:
            logits, labels = self.test_outputs(z, sync, self._logits), self.test_labels(sync)
            sizes = self._sizes_of_all(sync)
            # Only the first rank needs the metrics, and the others can go on.
            return {} if self.site.placement.rank > 0 else self._of_all(logits, labels, sizes)
        own, labels_of = self.own_test_outputs(z, sync, self._logits), self._own_labels()
        found: Record = {}
        if self._evaluation.mode == "histogram":
            counts = summed_counts(own, labels_of)
            found = self._of_counts(sync.gather(counts).long().sum(0))
        if self._evaluation.mode == "local" or self._evaluation.each_client:
            found |= self._of_each(sync.gather(own_aucs(own, labels_of)), sync)
        return found

    def _of_all(self, logits: Tensor, labels: Tensor, sizes: list[int] | None) -> Record:
        """Return the metrics of the scores of all clients, and of those of each."""
        if self._evaluation.mode == "histogram":
            return self._of_counts(score_counts(logits, labels))
        if (line := equal_scores(logits)) is not None:
            self.warnings.setdefault("scores", line)
        names, at = self._evaluation.metrics, self._evaluation.at
        found: Record = {**measured(names, logits, labels, at)}
        if sizes is not None and self._evaluation.each_client:
            parts = zip(logits.split(sizes), labels.split(sizes), strict=True)
            each = [
                measured(names, *part, at) if has_both_classes(part[1]) else {} for part in parts
            ]
            found |= {f"{name}_clients": [one.get(name) for one in each] for name in [*found]}
        return found

    def _of_counts(self, counts: Tensor) -> Record:
        auc, bound = auc_of_counts(counts)
        if bound > _LARGEST_BOUND:
            self.warnings.setdefault("scores", _inexact(bound))
        return {"test_auc": auc, "test_auc_error_bound": bound}

    def _of_each(self, aucs: Tensor, sync: Sync) -> Record:
        """Return the AUC of each client, and in the local mode their weighted mean."""
        each = [None if auc != auc else auc for auc in aucs.tolist()]
        found: Record = {"test_auc_clients": each} if self._evaluation.each_client else {}
        if self._evaluation.mode != "local":
            return found
        sizes = self._sizes_of_all(sync) or []
        left_out = [client for client, auc in enumerate(each) if auc is None]
        if left_out:
            self.warnings.setdefault("option evaluation", _left_out(left_out))
        rated = [(n, auc) for n, auc in zip(sizes, each, strict=True) if auc is not None]
        total = sum(n for n, _ in rated)
        mean = sum(n * auc for n, auc in rated) / total if total else float("nan")
        return {"test_auc": mean, **found}

    def _sizes_of_all(self, sync: Sync) -> list[int] | None:
        """Return the number of test samples of every client, None if the test part is common."""
        if self.data.test_sizes is None:
            return None
        sizes = torch.tensor(self.data.test_sizes, device=self.site.device)
        return [int(size) for size in sync.gather(sizes)]

    def _logits(self, inputs: Tensor) -> Tensor:
        scorer = self.min_player
        assert isinstance(scorer, Scorer)
        return scorer.logits(inputs)

    def _own_labels(self) -> Sequence[Tensor]:
        assert self.data.test_sizes is not None
        return self.data.test_labels.split_with_sizes(self.data.test_sizes)


def own_aucs(own: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Return the AUC of each hosted client [C] in float64, NaN for a client with one class."""
    aucs = [
        auroc(logits, mine) if has_both_classes(mine) else float("nan")
        for logits, mine in zip(own, labels, strict=True)
    ]
    return torch.tensor(aucs, dtype=torch.float64, device=labels[0].device)


def summed_counts(own: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Return counts of scores [C, 2, bins], in the first row, whose sum is that of all rows.

    The counts of the clients hosted here are added before they leave the process.
    """
    counts = [score_counts(logits, mine) for logits, mine in zip(own, labels, strict=True)]
    total = torch.stack(counts).sum(0, dtype=torch.int32)
    return torch.stack([total, *(torch.zeros_like(total) for _ in counts[1:])])


def equal_scores(logits: Tensor) -> str | None:
    """Return a warning if the scores hardly differ: the sigmoid or the network is saturated."""
    spread = float(logits.double().sigmoid().std(correction=0))
    most = int(logits.unique(return_counts=True)[1].max())
    if len(logits) < 2 or (spread >= _SMALLEST_SPREAD and 2 * most <= len(logits)):
        return None
    return (
        f"the scores of the {len(logits)} test samples hardly differ (standard deviation "
        f"{spread:.2g}, {most} are equal), so test_auc is unreliable and gradients vanish; try "
        "smaller step sizes"
    )


def _inexact(bound: float) -> str:
    return (
        f"test_auc from counts of scores is exact to {bound:.2g} only, because many scores hardly "
        "differ; try smaller step sizes, or evaluation=local or pooled"
    )


def _left_out(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:_MOST_CLIENTS_NAMED]))
    more = len(clients) - _MOST_CLIENTS_NAMED
    named = f"{shown} and {more} more" if more > 0 else shown
    return (
        f"clients without test samples of both classes have no AUC and are left out of test_auc: "
        f"{named}"
    )
