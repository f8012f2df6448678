"""`python -m benchmarks [step] [fgda] [round] ...`: measure the overhead of fedsys."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from benchmarks import (
    adaptive_step,
    breakdown,
    checkpoint,
    communication_round,
    compositional_step,
    fgda,
    first_round,
    hosted_clients,
    hypergradient,
    local_step,
    many_clients,
    own_problem,
    proxskip,
    startup,
)
from benchmarks.measure import Ratio

BENCHMARKS: dict[str, Callable[[], Iterator[Ratio]]] = {
    "step": local_step.measure,
    "fgda": fgda.measure,
    "adaptive": adaptive_step.measure,
    "hosted": hosted_clients.measure,
    "first": first_round.measure,
    "many": many_clients.measure,
    "breakdown": breakdown.measure,
    "compositional": compositional_step.measure,
    "round": communication_round.measure,
    "proxskip": proxskip.measure,
    "own": own_problem.measure,
    "hypergradient": hypergradient.measure,
    "checkpoint": checkpoint.measure,
    "startup": startup.measure,
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure, print and store the ratios; return 1 if one of them exceeds its limit."""
    names = _arguments() or list(BENCHMARKS)
    print(_line("", "fedsys", "reference", "ratio", "half of pairs", "limit", ""))
    ratios = []
    for name in names:
        for ratio in BENCHMARKS[name]():
            ratios.append(ratio)
            print(_row(ratio), flush=True)
    _store(ratios)
    failures = sum(not ratio.holds for ratio in ratios)
    limited = sum(ratio.limit is not None for ratio in ratios)
    print(f"{limited - failures} ratios hold, {failures} do not")
    return int(failures > 0)


def _arguments() -> list[str]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time fedsys against plain PyTorch, alternating; see benchmarks/README.md.",
    )
    known = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known}; all by default")
    names: list[str] = parser.parse_args().names
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; choose from {known}")
    return names


def _row(ratio: Ratio) -> str:
    low, high = ratio.spread
    return _line(
        ratio.name,
        _amount(median(ratio.fedsys), ratio.unit),
        _amount(median(ratio.reference), ratio.unit),
        f"{ratio.value:.3f}",
        f"{low:.2f} .. {high:.2f}",
        "" if ratio.limit is None else f"{ratio.limit:.2f}",
        "" if ratio.limit is None else "holds" if ratio.holds else "DOES NOT HOLD",
    )


def _line(name: str, fedsys: str, reference: str, ratio: str, *rest: str) -> str:
    spread, limit, verdict = rest
    return (
        f"{name:<32}{fedsys:>10}{reference:>11}{ratio:>8}{spread:>15}{limit:>7}  {verdict}".rstrip()
    )


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:.0f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _store(ratios: list[Ratio]) -> None:
    """Write all times and a description of the machine as JSON."""
    now = datetime.now(UTC)
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    record = {"date": now.isoformat(timespec="seconds"), "machine": machine}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    text = json.dumps({**record, "ratios": [ratio.as_dict() for ratio in ratios]}, indent=1)
    path.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
