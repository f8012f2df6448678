"""A Neumann hypergradient with Q terms against Q + 3 gradients of the same batch size."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

import torch

from benchmarks.measure import Ratio, Slice, interleave, lasting, repeat, warm_up
from fedsys.clients.small_models import StackedBatches, stacked_model
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.models import MLP
from fedsys.problems import NeumannHypergradient
from fedsys.problems.bilevel.reweighting import GroupWeighting, ReweightingOracle

CLIENTS, SAMPLES, FEATURES, GROUPS, BATCH, TERMS = 3, 2000, 107, 5, 128, 10
LIMIT = 2.2


def measure() -> Iterator[Ratio]:
    """Yield the ratio for logistic regression (closed form) and for a network (autograd)."""
    torch.set_num_threads(1)
    for name, hidden in {"logistic": [], "two layers": [64]}.items():
        slices = _slices(_oracle(MLP(hidden=hidden)))
        with torch.no_grad():
            warm_up(*slices)
            times = interleave(*slices, lasting(15.0, at_least=30))
        yield Ratio(f"hypergradient, {name}", LIMIT, *times)


def _slices(oracle: ReweightingOracle) -> tuple[Slice, Slice]:
    x, y = oracle.x0.clone(), oracle.y0.clone()
    hypergradient = NeumannHypergradient(TERMS, lr=0.1)
    draw, batch = hypergradient.draw(oracle), oracle.draw()

    def gradients() -> None:
        for _ in range(TERMS + 3):
            oracle.inner_grad(x, y, batch)

    ours = repeat(lambda: hypergradient(oracle, x, y, draw), 2, process_time)
    return ours, repeat(gradients, 2, process_time)


def _oracle(model: MLP) -> ReweightingOracle:
    site = Site(Placement(CLIENTS))
    noise = torch.Generator().manual_seed(0)

    def batches(samples: int) -> StackedBatches:
        inputs = [torch.randn(samples, FEATURES, generator=noise) for _ in site.hosted]
        labels = [torch.arange(samples) % 2 for _ in site.hosted]
        groups = [torch.arange(samples) % GROUPS for _ in site.hosted]
        return StackedBatches(site, inputs, labels, groups, BATCH)

    net = stacked_model(model.build((FEATURES,), outputs=1), site)
    start = torch.zeros(GROUPS)
    return ReweightingOracle(
        site, net, GroupWeighting(), start, batches(SAMPLES), batches(BATCH), l2=1e-3
    )
