"""The metrics of a record: meaning, direction, axis, and whether one is the headline.

A record is one line of metrics.jsonl. It has bookkeeping columns (`BOOKKEEPING`) and metrics. The
console, curves.png, summary.json, reports and reproductions ask `metric(name)` how to treat one.
The metric of each client is a list of M numbers under the name of the metric with `_clients`, with
None for a client without a value. Lists are shown, and never compared, averaged or optimised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from fedsys.core.errors import InputError

Record = dict[str, Any]
"""Numbers by name, and lists of the numbers of each client, see `client_metrics_of`."""

CLIENTS = "_clients"
"""What the name of the list of a metric of each client ends with."""

BOOKKEEPING = frozenset({
    "step", "round", "exchanges", "bytes_up", "bytes_down", "bytes_control",
    "seconds", "seconds_waited", "dropped", "oracle_calls",
})  # fmt: skip
"""The columns of a record that say where in the run it is and what the run has cost."""


@dataclass(frozen=True)
class Metric:
    """A quantity that is measured during training.

    Args:
        name: the key in a record.
        meaning: one sentence for documentation.
        better: whether "lower" or "higher" values are better.
        axis: "log" if figures use a logarithmic axis where the values span more than a decade.
            By default, metrics of which lower is better have one.
        headline: whether the progress display and the ranking in reports prefer this metric. Of
            several, the one that was registered first is preferred.
        unit: empty for a dimensionless quantity.
        vanishes: whether the value at the last iterate tends to zero. The panel of such a metric in
            curves.png has a logarithmic axis, or begins at zero.
    """

    name: str
    meaning: str = ""
    better: Literal["lower", "higher"] = "lower"
    axis: Literal["linear", "log", ""] = ""
    headline: bool = False
    unit: str = ""
    vanishes: bool = False

    def __post_init__(self) -> None:
        """Check the choices, and fill in the default axis."""
        for field, allowed in (("better", ("lower", "higher")), ("axis", ("linear", "log", ""))):
            if (given := getattr(self, field)) not in allowed:
                choices = " or ".join(repr(choice) for choice in allowed if choice)
                raise InputError(f"metric {self.name}: {field} must be {choices}, got {given!r}")
        if not self.axis:
            object.__setattr__(self, "axis", "log" if self.better == "lower" else "linear")

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values are better."""
        return self.better == "lower"

    @property
    def sign(self) -> int:
        """The factor that turns comparison by this metric into minimisation: 1 or -1."""
        return 1 if self.lower_is_better else -1

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return min(values) if self.lower_is_better else max(values)

    def needs_log_axis(self, values: Sequence[float]) -> bool:
        """Whether a figure of these values should have a logarithmic axis."""
        positive = [value for value in values if isfinite(value) and value > 0]
        most_are_positive = self.axis == "log" and len(positive) > len(values) / 2
        return most_are_positive and max(positive) > 10 * min(positive)


_BUILT_IN = (
    # Headlines, the most informative first.
    Metric("test_auc", "Area under the ROC curve on the test set.", "higher", headline=True),
    Metric("test_accuracy", "Accuracy on the test set.", "higher", headline=True),
    Metric(
        "test_accuracy_perturbed",
        "Accuracy on the test set with the learned perturbation added to every input.",
        "higher",
        headline=True,
    ),
    Metric(
        "relative_error",
        "Squared distance to the solution, divided by that of the starting point.",
        headline=True,
        vanishes=True,
    ),
    Metric(
        "gap",
        "Duality gap of a saddle problem: max over y minus min over x of the objective.",
        headline=True,
        vanishes=True,
    ),
    Metric(
        "gap_lower_bound",
        "Lower bound of the gap over a ball: the best value that an ascent finds.",
        vanishes=True,
    ),
    Metric(
        "operator_norm",
        "Norm of the mean operator, or of the proximal residual of a composite problem.",
        headline=True,
        vanishes=True,
    ),
    Metric("train_loss", "Objective on the training data of all clients.", headline=True),
    # All others.
    Metric(
        "drift",
        "Mean squared distance of the clients' variables from their mean, before it is taken.",
        vanishes=True,
    ),
    Metric(
        "lyapunov",
        "The Lyapunov function of the theorem that covers the run, summed over the clients.",
    ),
    Metric("lyapunov_bound", "What the theorem promises for the expectation of lyapunov."),
    Metric("distance_x", "Squared distance of x from the known saddle point.", vanishes=True),
    Metric("distance_y", "Squared distance of y from the known saddle point.", vanishes=True),
    Metric(
        "hypergradient_norm",
        "Norm of the mean hypergradient of a bilevel problem, at each client's own inner variable, "
        "or at its inner solution if the problem knows it.",
        vanishes=True,
    ),
    Metric(
        "outer_loss",
        "Outer objective of a bilevel problem on all its data, at each client's own inner "
        "variable.",
    ),
    Metric(
        "inner_residual",
        "Mean norm of the gradient of the clients' inner functions at their own inner variables; "
        "of a shared lower level, the norm of the mean gradient.",
        vanishes=True,
    ),
    Metric(
        "noise_auc",
        "Area under the ROC curve of the learned sample weights as detectors of clean labels.",
        "higher",
    ),
    Metric("auc", "Area under the ROC curve.", "higher"),
    Metric("auc_error_bound", "Largest error of the AUC that was computed from counts of scores."),
    Metric(
        "average_precision", "Area under the precision-recall curve, summed over steps.", "higher"
    ),
    Metric(
        "sensitivity_at_specificity",
        "Largest sensitivity of a threshold with at least the specificity problem.specificity.",
        "higher",
    ),
    Metric(
        "calibration_error",
        "Mean distance of score and fraction of positives, in 15 bins of the scores.",
    ),
    Metric(
        "partial_auc",
        "Area under the ROC curve up to the false-positive rate problem.max_fpr, scaled to [0, 1] "
        "with 0.5 for chance.",
        "higher",
    ),
    Metric("accuracy", "Fraction of samples that are classified correctly.", "higher"),
    Metric("loss", "Mean loss of the samples."),
    Metric("eqopp", "Equal opportunity: largest difference of two groups' true-positive rates."),
    Metric("eqopp_low", "Lower end of the 95 % confidence interval of eqopp."),
    Metric("eqopp_high", "Upper end of the 95 % confidence interval of eqopp."),
    Metric("eqopp_std", "Standard deviation of the groups' true-positive rates."),
    Metric(
        "eqopp_weighted_std",
        "Standard deviation of the groups' true-positive rates, weighted by their positives.",
    ),
    Metric(
        "eqodds",
        "Equalised odds: the largest difference of two groups' true- or false-positive rates.",
    ),
    Metric("parity", "Largest difference of two groups' fractions of positive predictions."),
)
_registry: dict[str, Metric] = {one.name: one for one in _BUILT_IN}

_PREFIXES = {
    "average_": "at the averaged iterate",
    "sampled_": "of a single random draw",
    "test_": "on the test set",
    "train_": "on the training set",
    "validation_": "on the validation set",
}
"""The first parts of derived names, and what they add to the meaning."""

_LOWER_IS_BETTER = (
    "loss", "error", "gap", "norm", "residual", "distance", "eqopp", "eqodds", "parity", "drift",
)  # fmt: skip
"""An unknown name that contains one of these words is taken for a quantity to minimise."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric to the registry, and return it.

    A process that only reads run directories, such as fedsys-report, knows a metric of a user's
    module only if that module was imported there; otherwise it guesses from the name.
    """
    known = _registry.setdefault(metric.name, metric)
    if known != metric:
        raise InputError(
            f"metric {metric.name} is registered already, with other properties ({known}); "
            "choose another name"
        )
    return metric


def registered_metrics() -> Mapping[str, Metric]:
    """Return all registered metrics by name; headlines are in the order of preference."""
    return dict(_registry)


def metric(name: str) -> Metric:
    """Return the metric of this name.

    A derived name (`average_gap`, `test_eqopp`, `sampled_train_loss`) that is not registered has
    the properties of the metric it is derived from. The direction of an unknown name is guessed,
    and its meaning is empty.
    """
    if name in _registry:
        return _registry[name]
    if name.endswith(CLIENTS) and (of := metric(name.removesuffix(CLIENTS))).meaning:
        meaning = f"{of.meaning.removesuffix('.')}, of each client."
        return replace(of, name=name, meaning=meaning, headline=False, vanishes=False)
    for prefix, place in _PREFIXES.items():
        base = metric(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if base is not None and base.meaning:
            # An average or an estimate from samples does not tend to zero as the iterate does, and
            # the metric itself says more than its average.
            return replace(
                base,
                name=name,
                meaning=f"{base.meaning.removesuffix('.')}, {place}.",
                headline=base.headline and prefix == "sampled_",
                vanishes=False,
            )
    lower = any(word in name for word in _LOWER_IS_BETTER)
    return Metric(name, better="lower" if lower else "higher")


def importance(name: str) -> tuple[int, str]:
    """Return a sort key: headlines by preference, their sampled estimates, all others by name."""
    headlines = [one.name for one in _registry.values() if one.headline]
    if not metric(name).headline:
        return 2 * len(headlines), name
    if name in headlines:
        return headlines.index(name), name
    return len(headlines) + headlines.index(name.removeprefix("sampled_")), name


def metrics_of(record: Record) -> dict[str, float]:
    """Return the metrics of a record, without its bookkeeping columns and the clients' lists."""
    return {
        name: value
        for name, value in record.items()
        if name not in BOOKKEEPING and not isinstance(value, list)
    }


def client_metrics_of(record: Record) -> dict[str, list[float | None]]:
    """Return the metrics of each client, by the name of the metric: `test_auc`, a list of M."""
    return {
        name.removesuffix(CLIENTS): value
        for name, value in record.items()
        if isinstance(value, list)
    }


def headline(record: Record) -> str:
    """Return the name of the most informative metric of a record: `step` if it has none."""
    found = metrics_of(record)
    known = min((name for name in found if metric(name).headline), key=importance, default="drift")
    return known if known in found else next(iter(found), "step")


def labelled(name: str, noisy: bool) -> str:
    """Return the name of a metric, with a prefix if its value is that of one random draw."""
    return f"sampled_{name}" if noisy else name
