"""Aggregation: how the fields of the clients become one weighted mean.

Client weights, partial participation and the policy for values that are not finite. Axes: C hosted
clients, M clients in total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsys.communication.messages import as_rows, local_sums
from fedsys.communication.transport.base import Transport
from fedsys.communication.values import list_of, real
from fedsys.communication.weights import Participation, Weights
from fedsys.core.errors import require
from fedsys.core.placement import Placement
from fedsys.core.traffic import Traffic

_OWNER = "communicator"


@dataclass(frozen=True)
class AggregationOptions:
    """Options of the mean over clients.

    Args:
        weights: "uniform", or "size" to weight clients by the number of their samples.
        participation: the share of the clients that take part in a round, in (0, 1].
        on_nonfinite: "stop" the run when a client sends a NaN or an infinity, or "drop" that client
            from that mean.
    """

    weights: str = "uniform"
    participation: float = 1.0
    on_nonfinite: str = "stop"

    def __post_init__(self) -> None:
        share, answer = self.participation, self.on_nonfinite
        require(
            self.weights in ("uniform", "size"), _OWNER, "weights", self.weights, "uniform or size"
        )
        require(0 < share <= 1, _OWNER, "participation", share, "in (0, 1]")
        require(answer in ("stop", "drop"), _OWNER, "on_nonfinite", answer, "stop or drop")

    @property
    def is_exact(self) -> bool:
        """Whether every mean is of all clients, with equal weights."""
        all_take_part = self.participation == 1 and self.on_nonfinite == "stop"
        return all_take_part and self.weights == "uniform"


class Aggregator:
    """Weighted means over all clients: a sum over the hosted clients, then one collective.

    Args:
        options: weights, participation and the policy for non-finite values.
        transport: sums over the ranks.
        placement: which clients this rank hosts.
        seed: the seed of the participation draws.
        sizes: the number of samples of each hosted client, for weights="size".
        dropped: counts how often each hosted client was dropped.
    """

    def __init__(
        self,
        options: AggregationOptions,
        transport: Transport,
        placement: Placement,
        seed: int,
        sizes: Sequence[int] | None,
        dropped: Counter[int],
    ) -> None:
        self._transport, self._placement, self._dropped = transport, placement, dropped
        self._drops_nonfinite = options.on_nonfinite == "drop"
        self._all_weights = Weights(self._client_weights(options, sizes))
        self._round_weights = (-1, self._all_weights)
        self._participation = self._make_participation(options.participation, seed)

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """Return the weighted means of `fields` [C, ...] on every rank: one all-reduce."""
        all_take_part = self._participation is None
        weights = self._all_weights if all_take_part else self._weights_at(step)
        if self._drops_nonfinite:
            return as_rows(self._mean_of_finite(fields, weights, traffic, step), fields)
        sums = local_sums(fields, weights)
        size = sums.nbytes
        traffic.timed(self._transport.all_reduce, sums)
        traffic.exchanges += 1
        traffic.bytes_up += size if all_take_part else self._bytes_per_client(size, step)
        traffic.bytes_down += size
        return as_rows(sums, fields)

    def mean_at_server(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> Tensor:
        """Return the weighted means in a flat buffer on rank 0; it is undefined elsewhere.

        The caller sends a result back, and counts the exchange and `bytes_down` with it.
        """
        weights = self._weights_at(step)
        if self._drops_nonfinite:
            counted = traffic.exchanges, traffic.bytes_down
            means = self._mean_of_finite(fields, weights, traffic, step)
            traffic.exchanges, traffic.bytes_down = counted
            return means
        sums = local_sums(fields, weights)
        traffic.timed(self._transport.reduce, sums)
        traffic.bytes_up += self._bytes_per_client(sums.nbytes, step)
        return sums

    def _mean_of_finite(
        self, fields: tuple[Tensor, ...], weights: Weights, traffic: Traffic, step: int
    ) -> Tensor:
        """Return the weighted mean of the clients whose fields are finite, in a flat buffer.

        The message also carries the weight of these clients and the number of the others.
        """
        kept, rows = weights.of_finite(fields)
        if step >= 0:
            self._dropped.update(self._placement.hosted[row] for row in rows)
        sums = local_sums(fields, kept).reshape(-1)
        message = torch.cat([sums, sums.new_tensor([sum(kept.values), len(rows)])])
        traffic.timed(self._transport.all_reduce, message)
        traffic.exchanges += 1
        traffic.bytes_up += self._bytes_per_client(message.nbytes, step)
        traffic.bytes_down += message.nbytes
        weight, dropped = message[-2:].tolist()
        traffic.dropped += int(dropped)
        # Divide only where a client is missing, so that other runs are rounded like any other.
        return message[:-2] / weight if dropped else message[:-2]

    def _weights_at(self, step: int) -> Weights:
        """Return the weights of the clients of a round; outside of rounds, those of all clients."""
        if self._participation is None or step < 0:
            return self._all_weights
        if self._round_weights[0] != step:
            hosted = self._placement.hosted
            weights = self._participation.at(step)[hosted.start : hosted.stop]
            self._round_weights = (step, Weights(weights.tolist()))
        return self._round_weights[1]

    def _bytes_per_client(self, size: int, step: int) -> int:
        """Return what a client sends on average when those of the round send `size` bytes each."""
        if self._participation is None or step < 0:
            return size
        return round(size * self._participation.drawn / self._placement.clients)

    def _make_participation(self, share: float, seed: int) -> Participation | None:
        if share == 1:
            return None
        parts = self._transport.all_gather_values(self._all_weights.values, list_of(real))
        return Participation(share, [w for part in parts for w in part], seed)

    def _client_weights(
        self, options: AggregationOptions, sizes: Sequence[int] | None
    ) -> list[float]:
        hosted = len(self._placement.hosted)
        if options.weights == "uniform" or sizes is None:
            return [1.0 / self._placement.clients] * hosted
        total = torch.tensor(float(sum(sizes)), dtype=torch.float64)
        self._transport.all_reduce(total)
        return [size / total.item() for size in sizes]
