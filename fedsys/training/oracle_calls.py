"""The operators and gradients that a client has evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedsys.communication import Communicator


@dataclass
class OracleCalls:
    """Counts the calls of an oracle in the steps of a run; evaluation does not count.

    Args:
        calls: the evaluations at a draw.
        passes: the evaluations on all data.
        draws_per_pass: the calls at a draw that one on all data costs, the mean over all clients.
    """

    calls: int = 0
    passes: int = 0
    draws_per_pass: float = 1.0

    def add(self, oracle: Any) -> None:
        """Add the calls of the oracle of one step."""
        self.calls += oracle.calls
        self.passes += oracle.passes

    @property
    def total(self) -> float:
        """All calls of a client, in calls at a draw."""
        return self.calls + self.passes * self.draws_per_pass

    def measure_passes(self, oracle: Any, communicator: Communicator) -> None:
        """Set the cost of a call on all data; all ranks call this together."""
        costs = torch.tensor(getattr(oracle, "draws_per_pass", None) or [1.0] * len(oracle.sizes))
        self.draws_per_pass = float(communicator.unmetered().gather(costs.double()).mean())
