"""A local step of fedsys against the bare PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from benchmarks import reference
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import Algorithm, FedAvg
from fedsys.communication import AllReduce, Every, LocalTransport
from fedsys.data import IID, Batch, Dataset
from fedsys.models import MLP, CifarResNet, ModelSource
from fedsys.problems import Site
from fedsys.problems.binary import Scorer, cross_entropy
from fedsys.problems.client_data import ClientData
from fedsys.problems.network import MinimisationNetworkOracle, NetworkOracle

SAMPLES, BATCH, LR = 2048, 32, 0.01
NEVER = 10**9


@dataclass(frozen=True)
class Case:
    """A network in fedsys and in plain PyTorch, and how long to look at it."""

    name: str
    limit: float
    input_shape: tuple[int, ...]
    fedsys: ModelSource
    reference: Callable[[], nn.Module]
    steps_per_slice: int
    seconds: float


CASES = (
    Case("MLP 784-200-200-1", 1.10, (784,), MLP((200, 200)), reference.mlp, 10, 25.0),
    Case("ResNet20", 1.05, (3, 32, 32), CifarResNet(20), reference.ResNet20, 1, 60.0),
)


def measure() -> Iterator[Ratio]:
    """The ratio of each network, in this process."""
    # A rank has a core. With more threads each kernel would wait for the most disturbed of them.
    torch.set_num_threads(1)
    for case in CASES:
        torch.manual_seed(0)
        inputs = torch.randn(SAMPLES, *case.input_shape)
        labels = torch.randint(2, (SAMPLES,)).float()
        model, oracle = case.reference(), make_oracle(case, inputs, labels)
        _require_same_gradient(model, oracle, inputs[:BATCH], labels[:BATCH])
        # Nothing here waits, so on an idle machine the processor's time is the clock's; on a busy
        # one it leaves out the neighbours' share.
        bare = reference.training_loop(model, inputs, labels, BATCH, LR)
        theirs = repeat(bare, case.steps_per_slice, process_time)
        steps = local_steps(FedAvg(lr=LR), oracle)
        # The runner, too, switches autograd off once and not in every step.
        ours = torch.no_grad()(repeat(steps, case.steps_per_slice, process_time))
        warm_up(ours, theirs)
        times = interleave(ours, theirs, lasting(case.seconds, at_least=30))
        yield Ratio(f"local step, {case.name}", case.limit, *times)


def make_oracle(case: Case, inputs: Tensor, labels: Tensor) -> MinimisationNetworkOracle:
    """One client that trains the network of a case in fedsys."""
    site = Site()
    model = Scorer(case.fedsys.build(case.input_shape, outputs=1))
    data = Dataset(inputs, labels, inputs[:1], labels[:1], classes=2)
    clients = ClientData.of(data, IID(), BATCH, site)
    return MinimisationNetworkOracle(site, cross_entropy, (model,), clients)


def local_steps(
    algorithm: Algorithm[Any, Any], oracle: NetworkOracle, communicator: AllReduce | None = None
) -> Callable[[], None]:
    """One local step as the runner makes it, each time it is called, never a communication."""
    communicator = communicator or AllReduce()
    communicator.open(LocalTransport(), oracle.site.placement, Every(NEVER), rider=oracle.rider)
    state = algorithm.init(oracle.at_start(), communicator.at_start())
    steps = count()

    def step() -> None:
        nonlocal state
        t = next(steps)
        sync = communicator.at(t)
        state = algorithm.step(state, oracle.at(t), sync)

    return step


def _require_same_gradient(
    model: nn.Module, oracle: MinimisationNetworkOracle, inputs: Tensor, labels: Tensor
) -> None:
    """Both sides do the same work: the same gradient at the same point on the same batch."""
    loss = reference.loss(model, inputs, labels)
    expected = parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
    point = parameters_to_vector(model.parameters()).detach()[None]
    found = oracle.grad(point, Batch(inputs[None], labels[None]))
    torch.testing.assert_close(found[0], expected)
