"""Small models of all hosted clients at once, on batches with an axis of clients.

Axes: C hosted clients, B samples, O outputs, d parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedsys.clients.batches import Batches
from fedsys.clients.dense import DenseStack, Pull
from fedsys.clients.flat_module import FlatModule, leaf
from fedsys.clients.forward_pass import inspect_forward, is_deterministic
from fedsys.clients.mapping import choose_way
from fedsys.core.errors import InputError
from fedsys.core.site import Site


class Samples(NamedTuple):
    """A batch of every hosted client.

    `tags` is what weights go by (a group, or the sample's own number); `mass` is 1/n for each of a
    client's n samples, and 0 for what only fills up its row.
    """

    inputs: Tensor
    labels: Tensor
    tags: Tensor
    mass: Tensor


class StackedBatches:
    """The batches of `Batches` as one tensor; a client with fewer samples gives all of them.

    Args:
        site: where the clients live.
        inputs: of each hosted client.
        labels: of each hosted client.
        tags: of each hosted client.
        batch_size: samples per draw, or None for all.
        mass: of the samples of each hosted client, if they do not count alike; all are drawn then.
    """

    def __init__(
        self,
        site: Site,
        inputs: list[Tensor],
        labels: list[Tensor],
        tags: list[Tensor],
        batch_size: int | None,
        mass: list[Tensor] | None = None,
    ) -> None:
        self.sizes = [len(rows) for rows in labels]
        self._fields = [torch.cat(field).to(site.device) for field in (inputs, labels, tags)]
        self._fields[0] = self._fields[0].to(site.dtype)
        self._batch_size = batch_size
        if mass is not None or (batch_size is not None and batch_size >= max(self.sizes)):
            self._batch_size = None
        self._small = [
            row for row, size in enumerate(self.sizes) if size <= (self._batch_size or 0)
        ]
        inputs_, labels_, _ = self._fields
        self._batches = Batches(
            inputs_, labels_, self.sizes, site.hosted, self._batch_size, site.seed
        )
        alike = [torch.full((n,), 1 / n, dtype=torch.float64) for n in self.sizes]
        self.whole = self._stack_all([m.to(inputs_) for m in mass or alike])

    def at(self, step: int, k: int) -> Samples:
        """The k-th batch of a step."""
        size = self._batch_size
        if size is None:
            return self.whole
        clients, index = len(self.sizes), self._batches.indices(step, k, size)
        inputs, labels, tags = (
            field.index_select(0, index).view(clients, size, *field.shape[1:])
            for field in self._fields
        )
        mass = inputs.new_full((), 1 / size).expand(clients, size)
        drawn = Samples(inputs, labels, tags, mass)
        return self._with_whole_data(drawn) if self._small else drawn

    def _with_whole_data(self, drawn: Samples) -> Samples:
        """Replace the rows of clients that have no more samples than a batch by all of these.

        Each client follows this rule on its own, so that batches do not depend on the placement.
        """
        size = drawn.labels.shape[1]
        fields = []
        for field, whole in zip(drawn, self.whole, strict=True):
            field = field.clone()
            field[self._small] = whole[self._small, :size]
            fields.append(field)
        return Samples(*fields)

    def _stack_all(self, mass: list[Tensor]) -> Samples:
        parts = [field.split_with_sizes(self.sizes) for field in self._fields]
        inputs, labels, tags = (nn.utils.rnn.pad_sequence(list(p), batch_first=True) for p in parts)
        return Samples(inputs, labels, tags, nn.utils.rnn.pad_sequence(mass, batch_first=True))


# The loss of a score: the logistic one for one output, cross-entropy for several.


def losses(z: Tensor, labels: Tensor) -> Tensor:
    """The loss of each sample: [C, B]."""
    if z.shape[2] == 1:
        return F.softplus(z[:, :, 0]) - labels * z[:, :, 0]
    return F.cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


def slopes(z: Tensor, labels: Tensor) -> Tensor:
    """Its derivative in the scores: [C, B, O]."""
    if z.shape[2] == 1:
        return z.sigmoid() - labels[:, :, None]
    return _softmax(z) - F.one_hot(labels, z.shape[2])


def second_derivatives(z: Tensor, u: Tensor) -> Tensor:
    """Its second derivative in the scores, times u: [C, B, O]."""
    if z.shape[2] == 1:
        p = z.sigmoid()
        return p * (1 - p) * u
    p = _softmax(z)
    return p * (u - (p * u).sum(2, keepdim=True))


def _softmax(z: Tensor) -> Tensor:
    """The chances of the classes: torch's own takes five times as long over a short last axis."""
    p = (z - z.amax(2, keepdim=True)).exp_()
    return p.div_(p.sum(2, keepdim=True))


class NetworkModel:
    """Any module; derivatives by autograd."""

    linear = False

    def __init__(self, module: nn.Module, site: Site, vectorize: str = "auto") -> None:
        self._flat = FlatModule(module, site.dtype, site.device)
        self._device, self._inspected = site.device, is_deterministic(module)
        if self._flat.statistics.numel():
            raise InputError(
                "bilevel and grouped problems do not synchronise the running statistics of "
                "BatchNorm; use a network without it (model.norm=group)"
            )
        self.start = self._flat.vector.clone()
        way = choose_way(vectorize, [self._flat], [_outputs] * len(site.hosted))
        self._stack = None if way is None else way.stack

    def forward(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Scores [C, B, O] that autograd can differentiate."""
        if not self._inspected:
            self._inspect(inputs[0, :2])
        if self._stack is not None:
            return self._stack(_outputs, (y,), inputs)
        rows = zip(y, inputs, strict=True)
        call, flat = torch.func.functional_call, self._flat
        return torch.stack([call(flat.module, flat.named(row), (batch,)) for row, batch in rows])

    def scores(self, y: Tensor, inputs: Tensor) -> tuple[Tensor, Pull]:
        """The scores, and the way back from them."""
        with torch.enable_grad():
            y = leaf(y)
            z = self.forward(y, inputs)

        def pull(u: Tensor) -> Tensor:
            (gradient,) = torch.autograd.grad(z, y, u, retain_graph=True)
            return gradient

        return z.detach(), pull

    def named(self, y: Tensor) -> dict[str, Tensor]:
        """Return the parameters of a row [d], or [M, ...] those of rows [M, d], and the buffers."""
        return self._flat.state(y)

    def _inspect(self, inputs: Tensor) -> None:
        """Refuse networks that draw random numbers: a product with a Hessian would draw others."""
        self._inspected = True
        module = self._flat.module
        if inspect_forward([module], lambda: _outputs(module, inputs), self._device).always:
            raise InputError(
                "bilevel and grouped problems take no network that draws random numbers in its "
                "forward pass (such as Dropout); use one without"
            )


class LinearModel(NetworkModel):
    """One linear layer, by batched matrix products: an order of magnitude faster than autograd."""

    linear = True

    def __init__(self, module: nn.Module, site: Site, vectorize: str = "auto") -> None:
        super().__init__(module, site, vectorize)
        self._dense = DenseStack(self._flat)

    def forward(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Scores; a linear function of y, so this is also its derivative in direction y."""
        return self._dense.forward(y, inputs)

    def scores(self, y: Tensor, inputs: Tensor) -> tuple[Tensor, Pull]:
        """The scores, and the way back from them."""
        return self._dense.scores(y, inputs)


def stacked_model(module: nn.Module, site: Site, vectorize: str = "auto") -> NetworkModel:
    """The fastest way to compute a module for all clients."""
    linear = DenseStack.fits(module) and sum(1 for _ in module.parameters()) == 2
    model = LinearModel if linear and vectorize != "loop" else NetworkModel
    return model(module, site, vectorize)


def _outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    outputs: Tensor = module(inputs)
    return outputs
