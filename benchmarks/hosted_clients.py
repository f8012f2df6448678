"""A round with several clients per rank against a loop over the clients in plain PyTorch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter, process_time

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from benchmarks import reference
from benchmarks.local_step import random_labels, trained
from benchmarks.measure import Ratio, lasting, repeat
from benchmarks.ranks import interleave_on_all_ranks, started
from fedsys.algorithms import FedAvg
from fedsys.clients.client_data import ClientData
from fedsys.communication import AllReduce, choose_transport
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.data import IID, Dataset
from fedsys.models import MLP, CifarResNet, ModelSource
from fedsys.problems.networks.network_oracle import MinimisationNetworkOracle

RANKS, LR = 2, 0.01
# Ranks wait for each other in a round, so rounds are timed by the wall clock on an idle machine.
# FEDSYS_BENCH_CLOCK=process measures CPU time, which excludes other programs and the waiting.
CLOCK = process_time if os.environ.get("FEDSYS_BENCH_CLOCK") == "process" else perf_counter


@dataclass(frozen=True)
class Case:
    """A workload with the same network in fedsys and in plain PyTorch."""

    name: str
    limit: float
    clients: int
    samples: int
    input_shape: tuple[int, ...]
    outputs: int
    fedsys: ModelSource
    reference: Callable[[], nn.Module]
    batch: int
    local_steps: int
    seconds: float = 40.0


CASES = (
    Case(
        *("W1, 100 clients, MLP", 0.80, 100, 200, (784,), 10, MLP((200, 200))),
        *(lambda: reference.dense(784, 200, 200, 10), 32, 10),
    ),
    Case(
        *("W2, 8 clients, ResNet20", 1.08, 8, 160, (3, 32, 32), 1, CifarResNet(20)),
        *(reference.ResNet20, 32, 5, 90.0),
    ),
    Case(
        *("W3, 100 clients, logistic", 0.16, 100, 200, (784,), 10, MLP(())),
        *(lambda: reference.dense(784, 10), 10, 30),
    ),
)


def measure() -> Iterator[Ratio]:
    """Yield the ratio of the seconds of a round on two ranks for each case."""
    for number, case in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, (Path(folder), number), nprocs=RANKS)
            yield Ratio(
                case.name, case.limit, *torch.load(Path(folder) / "times", weights_only=True)
            )


def _rank(rank: int, folder: Path, number: int) -> None:
    case = CASES[number]
    with started(rank, RANKS, folder):
        ours = repeat(torch.no_grad()(fedsys_round(case, rank)), 1, CLOCK)
        theirs = repeat(_reference_round(case), 1, CLOCK)
        times = interleave_on_all_ranks(ours, theirs, lasting(case.seconds, at_least=8))
        if rank == 0:
            torch.save(times, folder / "times")


def _samples(case: Case, clients: int) -> tuple[Tensor, Tensor]:
    """Return random inputs, with labels for cross-entropy or for one logit."""
    torch.manual_seed(0)
    inputs = torch.randn(clients * case.samples, *case.input_shape)
    return inputs, random_labels(len(inputs), case.outputs)


def fedsys_round(case: Case, rank: int) -> Callable[[], None]:
    """Return a function that executes one round in the way the runner does."""
    site = Site(Placement(case.clients, rank, RANKS))
    inputs, labels = _samples(case, case.clients)
    test = (inputs[:1].clone(), labels[:1].long())  # a view would keep all samples in memory
    data = Dataset(inputs, labels.long(), *test, classes=max(2, case.outputs))
    net, loss = trained(case.fedsys, case.input_shape, case.outputs)
    oracle = MinimisationNetworkOracle(
        site, loss, (net,), ClientData.of(data, IID(), case.batch, site)
    )
    algorithm, communicator = FedAvg(lr=LR, local_steps=case.local_steps), AllReduce()
    schedule = algorithm.schedule
    communicator.open(
        choose_transport(one_host=True),
        site.placement,
        schedule,
        synchronised_buffers=oracle.synchronised_buffers,
    )
    state = algorithm.init(oracle.initial(), communicator.initial())
    steps = count()

    def one_round() -> None:
        nonlocal state
        for _ in range(case.local_steps):
            t = next(steps)
            state = algorithm.step(state, oracle.at(t), communicator.at(t))

    return one_round


def _reference_round(case: Case) -> Callable[[], None]:
    hosted = case.clients // RANKS
    inputs, labels = _samples(case, hosted)
    shape = (hosted, case.samples)
    models = [case.reference() for _ in range(hosted)]
    loss = reference.loss_of(case.outputs)
    own, targets = inputs.unflatten(0, shape), labels.unflatten(0, shape)
    return reference.federated_round(models, loss, own, targets, case.batch, case.local_steps, LR)
