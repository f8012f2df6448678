"""The entries of summary.json that are computed at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fedsys.communication import Communicator
from fedsys.communication.values import dict_of, integer, list_of, optional, real
from fedsys.core.metrics import Record, metric, metrics_of
from fedsys.core.placement import Placement
from fedsys.training.redaction import redacted
from fedsys.training.result import Result


def summary_of(
    result: Result,
    placement: Placement,
    choices: Mapping[str, str],
    startup: float,
    waited: list[float],
    dropped: Counter[int],
) -> dict[str, Any]:
    """Return the content of summary.json.

    Args:
        result: what the run returned.
        placement: the clients and the ranks.
        choices: the chosen option of each configuration group.
        startup: the seconds before the first step.
        waited: the seconds that each rank waited for the others.
        dropped: how often each client was dropped because of a non-finite value.
    """
    return {
        "choices": dict(choices),
        "clients": placement.clients,
        "ranks": placement.ranks,
        "final": result.records[-1],
        "best": best(result.records),
        "kept": result.kept,
        "stopped": result.stopped or None,
        "records_without_improvement": result.records_without_improvement,
        "hyperparameters": redacted(numbers(result.algorithm)),
        "theory": theory(result),
        "startup_seconds": startup,
        "seconds_waited_by_rank": waited,
        "dropped_by_client": dict(sorted(dropped.items())),
        "warnings": result.warnings,
    }


def numbers(algorithm: Any) -> dict[str, Any]:
    """Return the hyperparameters that were used."""
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return {n: _plain(v) for n, v in values.items()}


def _plain(value: Any) -> Any:
    """Return the fields of a schedule or a matrix rule, any other value as it is."""
    is_record = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_record else value


def theory(result: Result) -> dict[str, Any] | None:
    """Return the constants of the theory, and its bound with the measured value."""
    if result.theory is None:
        return None
    found: dict[str, Any] = {
        "constants": result.theory.constants.finite(),
        "finite_sum": result.theory.finite_sum,
    }
    if source := result.theory.constants.source:
        found["source"] = source
    bound, gap = result.algorithm.bound(result.theory), result.records[-1].get("average_gap")
    if bound is not None and gap is not None:
        found["bound"] = {"at_most": bound, "average_gap": gap, "holds": gap <= bound}
    last = result.records[-1]
    if "lyapunov_bound" in last:
        value, limit = last["lyapunov"], last["lyapunov_bound"]
        found["lyapunov"] = {"at_most": limit, "lyapunov": value, "holds": value <= limit}
    return found


def best(records: list[Record]) -> Record:
    """Return the best value of each metric of the test set."""
    found: Record = {}
    for record in records:
        for name, value in metrics_of(record).items():
            if name.startswith("test_"):
                found[name] = metric(name).best((value, found.get(name, value)))
    return found


def parse_record(value: Any) -> Record:
    """Accept a record: numbers by name, and lists of numbers of the clients."""
    return dict_of(_number_or_list)(value)


def _number_or_list(value: Any) -> Any:
    return list_of(optional(real))(value) if isinstance(value, list) else real(value)


def outcome(communicator: Communicator, result: Result) -> tuple[object, ...]:
    """Return what a rank sends to the others after its run, for `parse_outcome`."""
    dropped = list(communicator.dropped.items())
    return communicator.traffic.seconds_waited, dropped, result.records[-1:]


def parse_outcome(value: Any) -> tuple[float, Counter[int], list[Record]]:
    """Return the seconds that a rank waited, its drops by client, and its last record."""
    waited, dropped, records = value
    counts = {integer(client): integer(count) for client, count in dropped}
    return real(waited), Counter(counts), list_of(parse_record)(records)
