"""Steps never ask a device for a number: the meta device has none, any such call raises there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.cases import Clouds
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from fedsys.algorithms import FGDA, AdaFGDA, FedAvg, LocalSCGDAM, LocalSGDA
from fedsys.communication import AdaptiveMatrix, DistributedTransport
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.models import MLP
from fedsys.problems import Classification, CompositionalAUC, DeepAUC, RobustNetwork
from fedsys.system.memory import to_device

META = torch.device("meta")
RANKS = 4
NUMBERS: dict[str, Any] = {"eta": 1.0, "alpha": 0.1, "beta": 0.1, "local_steps": 2}
STEPPED = {
    "fedavg": (FedAvg(local_steps=2), Classification),
    "local_sgda": (LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=2), RobustNetwork),
    "fgda": (FGDA(lr_x=0.1, lr_y=0.1, **NUMBERS), DeepAUC),
    "adafgda": (AdaFGDA(lr_x=0.1, lr_y=0.1, **NUMBERS), DeepAUC),
    "localscgdam": (LocalSCGDAM(local_steps=2, decay_at=()), CompositionalAUC),
}


@pytest.fixture
def transport() -> Iterator[DistributedTransport]:
    """One of four ranks, of which the others are made up by torch."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield DistributedTransport()
    dist.destroy_process_group()


def test_the_meta_device_has_no_numbers_to_give() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(1, device=META).item()


@pytest.mark.parametrize(("hosted", "vectorize"), [(1, "loop"), (1, "vmap"), (3, "vmap")])
@pytest.mark.parametrize("name", STEPPED)
def test_two_rounds_need_no_number_of_the_device_and_stay_on_it(
    name: str, hosted: int, vectorize: str, transport: DistributedTransport
) -> None:
    algorithm, problem = STEPPED[name]
    site = Site(Placement(hosted * RANKS, 0, RANKS), device=META)
    # With a batch size a draw is an index, made on the CPU and sent along.
    made = problem(Clouds(), model=MLP([3]), batch_size=4, vectorize=vectorize)
    oracle = made.oracle(site)
    communicator = AdaptiveMatrix()
    communicator.open(
        transport,
        site.placement,
        algorithm.schedule,
        synchronised_buffers=oracle.synchronised_buffers,
    )
    with torch.no_grad():
        state: Any = algorithm.init(oracle.initial(), communicator.initial())
        for step in range(4):
            state = algorithm.step(state, oracle.at(step), communicator.at(step))
    assert communicator.traffic.rounds == 2
    fields: dict[str, Tensor] = state.tensors()
    for name, rows in fields.items():
        assert rows.device == META, name
        assert len(rows) == hosted, name


def test_drawn_numbers_reach_a_gpu_from_pinned_memory_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no GPU here: what would be asked of torch is written down instead."""
    asked: list[Any] = []

    class Recorded(Tensor):
        def pin_memory(self, *args: Any) -> Tensor:
            asked.append("pinned")
            return self

        def to(self, *args: Any, **options: Any) -> Tensor:
            asked.append((args, options))
            return self

    monkeypatch.setattr(torch, "from_numpy", lambda values: torch.ones(2).as_subclass(Recorded))
    gpu = torch.device("cuda:1")
    to_device(np.ones(2), gpu)
    assert asked == ["pinned", ((gpu,), {"non_blocking": True})]
