"""A local step of fedsys against a plain PyTorch training loop."""

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
from fedsys.algorithms import FedAvg
from fedsys.clients.batches import Batch
from fedsys.clients.client_data import ClientData
from fedsys.clients.flat_module import flattened
from fedsys.clients.mapping import Loss
from fedsys.communication import AllReduce, Communicator, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.rounds import Every
from fedsys.core.site import Site
from fedsys.data import IID, Dataset
from fedsys.models import MLP, CifarResNet, ModelSource
from fedsys.problems.networks import classification
from fedsys.problems.networks.binary import cross_entropy
from fedsys.problems.networks.network_oracle import MinimisationNetworkOracle, NetworkOracle
from fedsys.problems.networks.scorer import Scorer

SAMPLES, BATCH, LR = 2048, 32, 0.01
NEVER = 10**9


@dataclass(frozen=True)
class Case:
    """A network in fedsys and in plain PyTorch, and the measuring time."""

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
    """Yield the ratio of each network, measured for `seconds` or for the time of its case."""
    # One core per rank. With more threads each kernel would wait for the slowest thread.
    torch.set_num_threads(1)
    for case in cases:
        torch.manual_seed(0)
        inputs = torch.randn(SAMPLES, *case.input_shape)
        labels = random_labels(SAMPLES, case.outputs)
        model, oracle = case.reference(), make_oracle(case, inputs, labels)
        _require_same_gradient(case, inputs[:BATCH], labels[:BATCH])
        # Nothing here waits, so CPU time equals wall-clock time on an idle machine; on a busy one
        # it excludes other programs.
        loss = reference.loss_of(case.outputs)
        plain = reference.training_loop(model, loss, inputs, labels, BATCH, LR)
        theirs = repeat(plain, case.steps_per_slice, process_time)
        steps = local_steps(FedAvg(lr=LR), oracle)
        # Like the runner, switch autograd off once and not in every step.
        ours = torch.no_grad()(repeat(steps, case.steps_per_slice, process_time))
        warm_up(ours, theirs)
        times = interleave(ours, theirs, lasting(seconds or case.seconds, at_least=30))
        yield Ratio(f"local step, {case.name}", case.limit, *times)


def make_oracle(
    case: Case, inputs: Tensor, labels: Tensor, site: Site | None = None
) -> MinimisationNetworkOracle:
    """Return the oracle of one client that trains the network of a case."""
    site = site or Site()
    model, loss = trained(case.fedsys, case.input_shape, case.outputs)
    data = Dataset(
        inputs, labels.long(), inputs[:1], labels[:1].long(), classes=max(2, case.outputs)
    )
    clients = ClientData.of(data, IID(), BATCH, site)
    return MinimisationNetworkOracle(site, loss, (model,), clients)


def trained(
    source: ModelSource, input_shape: tuple[int, ...], outputs: int
) -> tuple[nn.Module, Loss]:
    """Return network and loss of problem=classification; binary_classification for one output."""
    net = source.build(input_shape, outputs)
    return (net, classification.cross_entropy) if outputs > 1 else (Scorer(net), cross_entropy)


def random_labels(count: int, outputs: int) -> Tensor:
    """Draw labels of `outputs` classes; 0.0 and 1.0 for a single output."""
    labels = torch.randint(max(2, outputs), (count,))
    return labels if outputs > 1 else labels.float()


def local_steps(
    algorithm: Algorithm[Any, Any], oracle: NetworkOracle, communicator: Communicator | None = None
) -> Callable[[], None]:
    """Return a function that executes one local step in the way the runner does."""
    communicator = communicator or AllReduce()
    communicator.open(
        LocalTransport(),
        oracle.site.placement,
        Every(NEVER),
        synchronised_buffers=oracle.synchronised_buffers,
    )
    state = algorithm.init(oracle.initial(), communicator.initial())
    steps = count()

    def step() -> None:
        nonlocal state
        t = next(steps)
        sync = communicator.at(t)
        state = algorithm.step(state, oracle.at(t), sync)

    return step


def _require_same_gradient(case: Case, inputs: Tensor, labels: Tensor) -> None:
    """Check that both sides compute the same gradient at the same point on the same batch.

    The check uses float64. In float32 torch's BatchNorm with channels last is accurate to 2e-6
    only, and twenty layers with ReLU amplify the error to 1e-2.
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
    """Concatenate parameters in the layout of fedsys."""
    return torch.cat([flattened(parameter) for parameter in parameters])
