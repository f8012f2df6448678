"""The options of binary problems whose network is evaluated by its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedsys.problems.networks.score_evaluation import ScoreEvaluation
from fedsys.problems.networks.score_metrics import Operating
from fedsys.problems.networks.trained_network import BinaryNetwork


@dataclass(frozen=True)
class ScoredProblem(BinaryNetwork):
    """A network with one output, the logit of its score, that is evaluated by the AUC.

    Args:
        dataset: the data set.
        partition: the partition of the samples over the clients.
        model: the network, with one output.
        batch_size: samples per draw, or None for all.
        evaluation: how the AUC on the test samples is computed: "pooled" from the scores of all
            clients, "histogram" from counts of their scores in 4096 bins, "local" as the mean of
            the clients' AUCs weighted by their test samples; "auto" for histogram where clients own
            their data, pooled elsewhere.
        metrics: further metrics of the pooled scores: average_precision,
            sensitivity_at_specificity, calibration_error, partial_auc.
        specificity: the smallest specificity of sensitivity_at_specificity.
        max_fpr: the largest false-positive rate of partial_auc.
        each_client: whether records hold the AUC of each client, where clients own their data.
        cross_site: whether every client's model and the common one are judged on the test samples
            of every client after training; all clients get the models.
    """

    evaluation: str = field(default="auto", kw_only=True)
    metrics: Sequence[str] = field(default=(), kw_only=True)
    specificity: float = field(default=0.9, kw_only=True)
    max_fpr: float = field(default=0.1, kw_only=True)
    each_client: bool = field(default=True, kw_only=True)
    cross_site: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.score_evaluation.check(type(self).__name__)

    @property
    def score_evaluation(self) -> ScoreEvaluation:
        """How the oracle evaluates the scores."""
        at = Operating(self.specificity, self.max_fpr)
        given = self.evaluation, tuple(self.metrics), at, self.each_client, self.cross_site
        return ScoreEvaluation(*given)
