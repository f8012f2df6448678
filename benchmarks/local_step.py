"""A local step of fedsys against the bare PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import reference
from benchmarks.measure import Ratio, interleave, lasting, repeat, warm_up
from fedsys.algorithms import Algorithm, FedAvg
from fedsys.communication import AllReduce, Every, LocalTransport
from fedsys.data import IID, Batch, Dataset
from fedsys.models import MLP, CifarResNet, ModelSource, flattened
from fedsys.problems import Site, classification
from fedsys.problems.binary import Scorer, cross_entropy
from fedsys.problems.client_data import ClientData
from fedsys.problems.mapping import Loss
from fedsys.problems.network import MinimisationNetworkOracle, NetworkOracle

SAMPLES, BATCH, LR = 2048, 32, 0.01
NEVER = 10**9


@dataclass(frozen=True)
class Case:
    """A network in fedsys and in plain PyTorch, and how long to look at it."""

    name: str
    limit: float
    input_shape: tuple[int, ...]
    outputs: int
    fedsys: ModelSource
    reference: Callable[[], nn.Module]
    steps_per_slice: int
    seconds: float


RESNET20 = Case("ResNet20", 1.03, (3, 32, 32), 1, CifarResNet(20), reference.ResNet20, 1, 60.0)
CASES = (
    Case(
        *("MLP 784-200-200-1", 1.05, (784,), 1, MLP((200, 200))),
        *(lambda: reference.dense(784, 200, 200, 1), 10, 20.0),
    ),
    Case(
        *("MLP 784-200-200-10", 1.05, (784,), 10, MLP((200, 200))),
        *(lambda: reference.dense(784, 200, 200, 10), 10, 20.0),
    ),
    RESNET20,
)


def measure(cases: Sequence[Case] = CASES, seconds: float | None = None) -> Iterator[Ratio]:
    """The ratio of each network, in this process, each in its own time or in the given one."""
    # A rank has a core. With more threads each kernel would wait for the most disturbed of them.
    torch.set_num_threads(1)
    for case in cases:
        torch.manual_seed(0)
        inputs = torch.randn(SAMPLES, *case.input_shape)
        labels = random_labels(SAMPLES, case.outputs)
        model, oracle = case.reference(), make_oracle(case, inputs, labels)
        _require_same_gradient(case, inputs[:BATCH], labels[:BATCH])
        # Nothing here waits, so on an idle machine the processor's time is the clock's; on a busy
        # one it leaves out the neighbours' share.
        loss = reference.loss_of(case.outputs)
        bare = reference.training_loop(model, loss, inputs, labels, BATCH, LR)
        theirs = repeat(bare, case.steps_per_slice, process_time)
        steps = local_steps(FedAvg(lr=LR), oracle)
        # The runner, too, switches autograd off once and not in every step.
        ours = torch.no_grad()(repeat(steps, case.steps_per_slice, process_time))
        warm_up(ours, theirs)
        times = interleave(ours, theirs, lasting(seconds or case.seconds, at_least=30))
        yield Ratio(f"local step, {case.name}", case.limit, *times)


def make_oracle(
    case: Case, inputs: Tensor, labels: Tensor, site: Site | None = None
) -> MinimisationNetworkOracle:
    """One client that trains the network of a case in fedsys."""
    site = site or Site()
    model, loss = trained(case.fedsys, case.input_shape, case.outputs)
    data = Dataset(inputs, labels, inputs[:1], labels[:1], classes=max(2, case.outputs))
    clients = ClientData.of(data, IID(), BATCH, site)
    return MinimisationNetworkOracle(site, loss, (model,), clients)


def trained(
    source: ModelSource, input_shape: tuple[int, ...], outputs: int
) -> tuple[nn.Module, Loss]:
    """A network and its loss as problem=classification has them, or binary_classification."""
    net = source.build(input_shape, outputs)
    return (net, classification.cross_entropy) if outputs > 1 else (Scorer(net), cross_entropy)


def random_labels(count: int, outputs: int) -> Tensor:
    """Of as many classes as there are outputs; of one output 0.0 and 1.0."""
    labels = torch.randint(max(2, outputs), (count,))
    return labels if outputs > 1 else labels.float()


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


def _require_same_gradient(case: Case, inputs: Tensor, labels: Tensor) -> None:
    """Both sides do the same work: the same gradient at the same point on the same batch.

    In float64: in float32 torch's BatchNorm is good to 2e-6 only where channels are last, and
    twenty layers with ReLU make 1e-2 of it.
    """
    inputs = inputs.double()
    labels = labels.double() if labels.is_floating_point() else labels
    model = case.reference().double()
    oracle = make_oracle(case, inputs, labels, Site(dtype=torch.float64))
    loss = reference.loss_of(case.outputs)(model, inputs, labels)
    expected = _flat(torch.autograd.grad(loss, list(model.parameters())))
    point = _flat(model.parameters()).detach()[None]
    found = oracle.grad(point, Batch(inputs[None], labels[None]))
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-12)


def _flat(parameters: Iterable[Tensor]) -> Tensor:
    """In the order of fedsys."""
    return torch.cat([flattened(parameter) for parameter in parameters])
