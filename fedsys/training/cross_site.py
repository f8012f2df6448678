"""The site-by-site matrix: every client's model and the common one on every client's test part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsys.core.algorithm import Algorithm, State
from fedsys.core.optional_oracles import CrossSite
from fedsys.core.rounds import Every
from fedsys.core.sync import Exchanges, Sync
from fedsys.core.traffic import Traffic

COMMON = "common"
"""The name of the model that training returns; those of the clients are called "client m"."""


@dataclass(frozen=True)
class ClientModels:
    """The models of the clients at the end of a run.

    All clients have the same model when the last round ends. The model of client m is what one more
    round makes of it without the communication: the common model after `local_steps` local steps of
    client m. It depends on the final state only, so a run that was stopped and resumed gives the
    same. An algorithm that communicates in every step has no such models.

    Args:
        algorithm: the algorithm.
        state: the final state of the clients hosted here.
        step: the number of steps that led to it.
        communicator: how clients communicate; local steps do not use it.
    """

    algorithm: Algorithm[Any, Any]
    state: State
    step: int
    communicator: Exchanges

    @property
    def local_steps(self) -> int:
        """The local steps of a round; 0 if clients have no models of their own."""
        schedule = self.algorithm.schedule
        local = isinstance(schedule, Every) and schedule.local_steps > 1
        return schedule.local_steps if isinstance(schedule, Every) and local else 0

    def points(self, oracle: Any) -> Tensor:
        """Return the points [C, d] of the clients hosted here, after their local steps."""
        state = self.state
        for step in range(self.step, self.step + self.local_steps):
            local = Sync(self.communicator, False, Traffic(), step)
            state = self.algorithm.step(state, oracle.at(step), local)
        return self.algorithm.solution(state)


def cross_site(oracle: CrossSite, models: ClientModels, z: Tensor, sync: Sync) -> dict[str, Any]:
    """Return the AUC of each model on the test samples of each client, as JSON.

    Args:
        oracle: judges a model at the clients hosted here.
        models: the models of the clients.
        z: the common model, in the rows [C, d] of the clients hosted here.
        sync: communicates; the models themselves travel to all clients.
    """
    names, values = [COMMON], [_values(sync.gather(oracle.client_aucs(z, sync)))]
    statistics = oracle.synchronised_buffers
    common = None if statistics is None else statistics.clone()
    try:
        if models.local_steps:
            points = sync.gather(models.points(oracle))
            own = None if statistics is None else sync.gather(statistics.clone())
            for client, point in enumerate(points):
                if statistics is not None and own is not None:
                    statistics.copy_(own[client].expand_as(statistics))
                aucs = oracle.client_aucs(point.expand_as(z), sync)
                names.append(f"client {client}")
                values.append(_values(sync.gather(aucs)))
    finally:
        if statistics is not None and common is not None:
            statistics.copy_(common)
    found = {"metric": "test_auc", "local_steps": models.local_steps, "models": names}
    return {**found, "values": values}


def _values(aucs: Tensor) -> list[float | None]:
    """Return numbers, with None for clients whose AUC is undefined."""
    return [None if auc != auc else auc for auc in aucs.tolist()]
