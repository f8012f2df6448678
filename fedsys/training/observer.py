"""What a user sees of every step: a call, and the states of all clients at chosen steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor

from fedsys.communication import Communicator
from fedsys.core.algorithm import State
from fedsys.core.errors import InputError

OnStep = Callable[[int, State], None]
Trajectory = dict[int, dict[str, Tensor]]
"""The variables [M, ...] of all clients by name, by the number of steps that led to them."""


@dataclass
class Observer:
    """Calls `on_step` after every step, and collects the states of chosen steps.

    Args:
        on_step: called with the number of steps so far and the state of the clients hosted here.
        trajectory: True for the states of all steps, or the numbers of steps.
        states: the states so far.
    """

    on_step: OnStep | None = None
    trajectory: bool | Collection[int] = False
    states: Trajectory = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.trajectory, bool):
            try:
                self.trajectory = frozenset(self.trajectory)
            except TypeError:
                raise InputError(
                    f"trajectory must be true, false or a collection of steps, got "
                    f"{self.trajectory!r}"
                ) from None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.on_step is None and not self.trajectory

    def collect(self, step: int, state: State, communicator: Communicator) -> None:
        """Keep the state after `step` steps if it is wanted; all ranks call this together."""
        if self._wants(step):
            gather = communicator.unmetered().gather
            self.states[step] = {name: gather(rows) for name, rows in state.tensors().items()}

    def see(self, step: int, state: State, communicator: Communicator) -> None:
        """Collect the state that a step has led to, and pass it on."""
        self.collect(step, state, communicator)
        if self.on_step is not None:
            self.on_step(step, state)

    def _wants(self, step: int) -> bool:
        wanted = self.trajectory
        return wanted if isinstance(wanted, bool) else step in wanted
