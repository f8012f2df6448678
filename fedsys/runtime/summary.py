"""What summary.json says of a run besides its last record."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fedsys.runtime.display import metrics_of
from fedsys.runtime.runner import Result


def numbers(algorithm: Any) -> dict[str, Any]:
    """The hyperparameters as they were used."""
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return {n: _plain(v) for n, v in values.items()}


def _plain(value: Any) -> Any:
    """A schedule or a matrix rule by its own numbers."""
    is_record = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_record else value


def theory(result: Result) -> dict[str, Any] | None:
    """The constants behind the theory's numbers, and the bound beside what was measured."""
    if result.theory is None:
        return None
    found: dict[str, Any] = {
        "constants": result.theory.constants.finite(),
        "finite_sum": result.theory.finite_sum,
    }
    bound = result.algorithm.bound(result.theory)
    if bound is not None:
        gap = result.records[-1].get("average_gap")
        found["bound"] = {"at_most": bound, "average_gap": gap}
    return found


def best(records: list[dict[str, float]]) -> dict[str, float]:
    """The best value of each test metric (higher is better for all of them but unfairness)."""
    found: dict[str, float] = {}
    for record in records:
        for name, value in metrics_of(record).items():
            if name.startswith("test_"):
                pick = min if name in ("test_eqopp", "test_eqodds") else max
                found[name] = pick(value, found.get(name, value))
    return found
