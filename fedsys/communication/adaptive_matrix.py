"""Adaptive-matrix broadcast: the server computes from the means, and all clients use its result."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsys.communication.all_reduce import AllReduce
from fedsys.communication.flat import as_rows, local_sums
from fedsys.communication.sync import Serve
from fedsys.communication.traffic import Traffic

_MAX_RESULTS, _MAX_AXES = 16, 4


class AdaptiveMatrix(AllReduce):
    """All-reduce averaging, plus a real server for what must be bit-identical on all clients.

    `server` sums its fields at rank 0, which alone runs the function and broadcasts the result: the
    adaptive matrices travel together with the new point.
    """

    name = "adaptive_matrix"

    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        """Run the function of the means on rank 0; all clients share its result."""
        rider = self._boarding(step)
        sent = fields if rider is None else (*fields, rider)
        sums = self._sums_at_server(sent, traffic, step)
        results: tuple[Tensor, ...] = ()
        means = [row[0] for row in as_rows(sums, sent)]
        if self.transport.rank == 0:
            value = function(*means[: len(fields)])
            results = value if isinstance(value, tuple) else (value,)
        shapes = self._result_shapes(function, fields, results, traffic)
        if rider is not None:
            results = (*results, means[-1]) if results else ()
            shapes = (*shapes, rider.shape[1:])
        message = sums.new_empty(sum(shape.numel() for shape in shapes))
        if results:
            torch.cat([result.reshape(-1) for result in results], out=message)
        self._timed(self.transport.broadcast, message, traffic)
        traffic.exchanges += 1
        traffic.bytes_down += message.numel() * message.element_size()
        parts = message.split_with_sizes([shape.numel() for shape in shapes])
        hosted = len(fields[0])
        rows = tuple(
            part.view(shape).expand(hosted, *shape)
            for part, shape in zip(parts, shapes, strict=True)
        )
        if rider is None:
            return rows
        rider.copy_(rows[-1])
        return rows[:-1]

    def _sums_at_server(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> Tensor:
        """The weighted means in a flat buffer on rank 0; elsewhere its content is void."""
        weights = self._weights_at(step)
        if self.on_nonfinite == "drop":
            exchanges = traffic.exchanges, traffic.bytes_down
            sums = self._sum_of_finite(fields, weights, traffic, step)
            traffic.exchanges, traffic.bytes_down = exchanges  # counted with the result's
            return sums
        sums = local_sums(fields, weights)
        self._timed(self.transport.reduce, sums, traffic)
        traffic.bytes_up += self._per_client(sums.nbytes, step)
        return sums

    def _result_shapes(
        self,
        function: Callable[..., object],
        fields: tuple[Tensor, ...],
        results: tuple[Tensor, ...],
        traffic: Traffic,
    ) -> tuple[torch.Size, ...]:
        """The shapes of the results, told once for each function and shape of arguments."""
        known: dict[object, tuple[torch.Size, ...]] = self.__dict__.setdefault("_shapes", {})
        key = (_code_of(function), tuple(field.shape[1:] for field in fields))
        if key not in known:
            header = torch.full((_MAX_RESULTS, _MAX_AXES + 1), -1)
            for row, result in zip(header, results, strict=False):
                row[0] = result.dim()
                row[1 : result.dim() + 1] = torch.tensor(result.shape)
            self._timed(self.transport.broadcast, header, traffic)
            traffic.bytes_control += header.numel() * header.element_size()
            rows = [row.tolist() for row in header if row[0] >= 0]
            known[key] = tuple(torch.Size(row[1 : row[0] + 1]) for row in rows)
        return known[key]


def _code_of(function: Callable[..., object]) -> object:
    """What tells functions apart, also two lambdas of one step, and is the same in every step."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return getattr(inner, "__code__", type(inner))
