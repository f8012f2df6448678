"""The best record of a run by one metric: the same on every rank, and saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from torch import Tensor

from fedsys.communication.values import integer, real, text
from fedsys.core.errors import InputError, require
from fedsys.core.metrics import Record, headline, metric, metrics_of
from fedsys.core.oracles import Oracle
from fedsys.distributed.world import World
from fedsys.training.early_stopping import KEEP, EarlyStopping

_POINT, _BUFFERS = "best_record.point", "best_record.buffers"
"""The names of the rows in a checkpoint; a variable's name has no dot."""


@dataclass(frozen=True)
class Standing:
    """The best record so far, and the records since the last improvement.

    Attributes:
        metric: the metric that the records are compared by.
        value: the best value.
        reference: the value at the last improvement by more than `min_delta`.
        step: the step of the best record.
        round: its round.
        waited: the records since the last improvement.
        last: the step of the last record.
    """

    metric: str
    value: float
    reference: float
    step: int
    round: int
    waited: int
    last: int

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Standing:
        """Return the standing that a checkpoint stores; refuse anything else."""
        counts = [integer(content[name]) for name in ("step", "round", "waited", "last")]
        if {*content} != {*cls.__dataclass_fields__} or min(counts) < 0:
            raise TypeError("not the standing of a run")
        numbers = real(content["value"]), real(content["reference"])
        return cls(text(content["metric"]), *numbers, *counts)

    def after(self, record: Record, value: float, min_delta: float) -> Standing:
        """Return the standing after a record with this value; NaN is no improvement."""
        sign = metric(self.metric).sign
        step, rounds = int(record["step"]), int(record["round"])
        improves = _less(sign * value, sign * self.reference - min_delta)
        reference, waited = (value, 0) if improves else (self.reference, self.waited + 1)
        best = self.value, self.step, self.round
        if _less(sign * value, sign * self.value):
            best = value, step, rounds
        return Standing(self.metric, best[0], reference, best[1], best[2], waited, step)


@dataclass
class BestRecord:
    """Follows the records of a run, decides when it stops, and keeps the best point.

    Some metrics exist on the first rank only. It therefore sends its value to the other ranks after
    every record, and all ranks decide alike. Without early stopping and with `keep="last"`, nothing
    is sent or stored.

    Args:
        options: the metric, and when the run stops.
        keep: which point is the result of the run: "last", or "best" for that of the best record.
    """

    options: EarlyStopping = field(default_factory=EarlyStopping)
    keep: str = "last"
    standing: Standing | None = None
    rows: dict[str, Tensor] = field(default_factory=dict)
    """The point of the best record [C, d], and the buffers of networks [C, b], by name."""

    def __post_init__(self) -> None:
        """Check the choice of what is kept."""
        require(self.keep in KEEP, "run", "keep", self.keep, " or ".join(KEEP))

    @property
    def is_active(self) -> bool:
        """Whether records are followed."""
        return self.options.patience is not None or self.keep == "best"

    @property
    def is_over(self) -> bool:
        """Whether the run stops: `patience` records have passed without improvement."""
        patience, standing = self.options.patience, self.standing
        return patience is not None and standing is not None and standing.waited >= patience

    @property
    def reason(self) -> str:
        """Why the run stopped before its planned length; empty if it did not."""
        if not self.is_over or self.standing is None:
            return ""
        one, delta = self.standing, self.options.min_delta
        by = f" by more than {delta:g}" if delta else ""
        records = "1 record" if one.waited == 1 else f"{one.waited} records"
        return (
            f"early stopping: {one.metric} has not improved{by} for {records}; its best value is "
            f"{one.value:.6g}, in round {one.round}"
        )

    def see(self, record: Record, points: Mapping[str, Tensor], oracle: Oracle, w: World) -> None:
        """Take a complete record into account, together with the other ranks.

        Args:
            record: the record; on other ranks than the first it may lack metrics.
            points: the points [C, d] that it was measured at, by the prefix of their metrics.
            oracle: its buffers belong to the point.
            w: the ranks.
        """
        before = self.standing
        if not self.is_active or (before is not None and record["step"] <= before.last):
            return
        mine = w.on_all_ranks(lambda: self._measured(record) if w.rank == 0 else ("", 0.0))
        name, value = w.transport.all_gather_values(mine, _parse_measured)[0]
        if before is None:
            step, rounds = int(record["step"]), int(record["round"])
            self.standing = Standing(name, value, value, step, rounds, 0, step)
        else:
            self.standing = before.after(record, value, self.options.min_delta)
        if self.keep == "best" and self.standing.step == self.standing.last:
            self.rows = {_POINT: _point_of(name, points).clone()}
            if oracle.synchronised_buffers is not None:
                self.rows[_BUFFERS] = oracle.synchronised_buffers.clone()

    def restore(self, standing: Mapping[str, Any], rows: dict[str, Tensor]) -> None:
        """Continue from what a checkpoint stores, which is empty if records were not followed."""
        if standing and self.is_active:
            self.standing, self.rows = Standing.parse(standing), rows

    def kept(self, oracle: Oracle) -> tuple[Tensor, int] | None:
        """Return the point of the best record and its step, if it is the result of the run.

        The buffers of the oracle become those of the record.
        """
        if self.standing is None or _POINT not in self.rows:
            return None
        if oracle.synchronised_buffers is not None:
            oracle.synchronised_buffers.copy_(self.rows[_BUFFERS])
        return self.rows[_POINT], self.standing.step

    def ending(self, step: int, rounds: int) -> tuple[str, Record, int | None]:
        """Return why the run stopped, its kept record, and the records without improvement.

        Args:
            step: the last step of the run.
            rounds: its last round.
        """
        one = self.standing
        kept: Record = {"step": step, "round": rounds}
        if one is not None and _POINT in self.rows:
            kept = {"step": one.step, "round": one.round, one.metric: one.value}
        return self.reason, kept, None if one is None else one.waited

    def _measured(self, record: Record) -> tuple[str, float]:
        """Return the name and the value of the metric."""
        before = self.standing.metric if self.standing else headline(record)
        name = self.options.metric or before
        if name not in metrics_of(record):
            known = ", ".join(metrics_of(record))
            raise InputError(f"early_stopping: metric must be one of {known}; got {name}")
        return name, float(record[name])


def _point_of(name: str, points: Mapping[str, Tensor]) -> Tensor:
    """Return the point that a metric was measured at: `average_gap` is that of the average."""
    prefix = next((one for one in points if one and name.startswith(f"{one}_")), "")
    return points[prefix]


def _less(value: float, bound: float) -> bool:
    """Return whether a value is less than a bound; every number is less than NaN."""
    return value < bound or (isnan(bound) and not isnan(value))


def _parse_measured(value: Any) -> tuple[str, float]:
    name, number = value
    return text(name), real(number)
