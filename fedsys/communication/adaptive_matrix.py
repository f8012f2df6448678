"""A server: it computes from the means, and all clients use its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication.communicator import Communicator
from fedsys.communication.messages import as_rows
from fedsys.core.sync import Serve
from fedsys.core.traffic import Traffic

_MAX_RESULTS, _MAX_AXES = 16, 4


class AdaptiveMatrix(Communicator):
    """All-reduce averaging, and a server for results that must be bit-identical on all clients.

    `server` reduces the fields to rank 0, which alone runs the function and broadcasts its result.
    The algorithms with adaptive matrices compute these and the new point there.

    Options are those of `Communicator`.
    """

    name = "adaptive_matrix"
    has_server = True

    @override
    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        buffers = self._due_buffers(step)
        sent = fields if buffers is None else (*fields, buffers)
        sums = self._aggregator.mean_at_server(sent, traffic, step)
        results: tuple[Tensor, ...] = ()
        means = [row[0] for row in as_rows(sums, sent)]
        if self.transport.rank == 0:
            value = function(*means[: len(fields)])
            results = value if isinstance(value, tuple) else (value,)
        shapes = self._result_shapes(function, fields, results, traffic)
        if buffers is not None:
            results = (*results, means[-1]) if results else ()
            shapes = (*shapes, buffers.shape[1:])
        message = sums.new_empty(sum(shape.numel() for shape in shapes))
        if results:
            torch.cat([result.reshape(-1) for result in results], out=message)
        traffic.timed(self.transport.broadcast, message)
        traffic.exchanges += 1
        traffic.bytes_down += message.numel() * message.element_size()
        parts = message.split_with_sizes([shape.numel() for shape in shapes])
        hosted = len(fields[0])
        rows = tuple(
            part.view(shape).expand(hosted, *shape)
            for part, shape in zip(parts, shapes, strict=True)
        )
        if buffers is None:
            return rows
        buffers.copy_(rows[-1])
        return rows[:-1]

    @cached_property
    def _known_shapes(self) -> dict[object, tuple[torch.Size, ...]]:
        return {}

    def _result_shapes(
        self,
        function: Callable[..., object],
        fields: tuple[Tensor, ...],
        results: tuple[Tensor, ...],
        traffic: Traffic,
    ) -> tuple[torch.Size, ...]:
        """Return the shapes of the results; rank 0 broadcasts them once per function and shapes."""
        known = self._known_shapes
        key = (_code_of(function), tuple(field.shape[1:] for field in fields))
        if key not in known:
            header = torch.full((_MAX_RESULTS, _MAX_AXES + 1), -1)
            for row, result in zip(header, results, strict=False):
                row[0] = result.dim()
                row[1 : result.dim() + 1] = torch.tensor(result.shape)
            traffic.timed(self.transport.broadcast, header)
            traffic.bytes_control += header.numel() * header.element_size()
            rows = [row.tolist() for row in header if row[0] >= 0]
            known[key] = tuple(torch.Size(row[1 : row[0] + 1]) for row in rows)
        return known[key]


def _code_of(function: Callable[..., object]) -> object:
    """Return a key that is the same in every step and differs for two lambdas of one step."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return getattr(inner, "__code__", type(inner))
