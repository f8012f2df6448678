"""All-reduce averaging: the communicator of the periodic methods, and the base of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from fedsys.communication.compression import Codec, Compressed
from fedsys.communication.flat import as_rows, local_sums
from fedsys.communication.placement import Placement
from fedsys.communication.schedule import Every, Schedule
from fedsys.communication.sync import Serve, Sync
from fedsys.communication.traffic import Traffic
from fedsys.communication.transport import LocalTransport, Transport
from fedsys.communication.weights import Participation, Weights
from fedsys.errors import InputError, require
from fedsys.memory import keep_freed_memory


class AllReduce:
    """Fused weighted means: a sum over the hosted clients, one all_reduce, views back.

    Args:
        timeout: seconds after which a collective gives up on a silent rank.
        startup_timeout: the same for the first meeting of the ranks.
        backend: "gloo", "nccl" or "auto" (nccl where every rank of the host has its own GPU).
        weights: "uniform", or "size" for clients weighted by the size of their data.
        shared_memory: whether CPU ranks of one host pass their vectors through its memory.
        batchnorm: "average" its running statistics in every round, or keep them "local".
        participation: the share of the clients that take part in a round, drawn anew for each.
        on_nonfinite: "stop" the run, or "drop" a client that hands in a NaN or an infinity from
            that average.
        compression: of what clients send: "none", "bf16", "fp16", "int8" or "top_k".
        keep: the share of its numbers that a client sends with compression="top_k".
    """

    name = "all_reduce"

    def __init__(
        self,
        timeout: float = 60.0,
        startup_timeout: float = 300.0,
        backend: str = "auto",
        weights: str = "uniform",
        shared_memory: bool = True,
        batchnorm: str = "average",
        participation: float = 1.0,
        on_nonfinite: str = "stop",
        compression: str = "none",
        keep: float = 0.1,
    ) -> None:
        seconds, owner = "a positive number of seconds", "communicator"
        require(timeout > 0, owner, "timeout", timeout, seconds)
        require(startup_timeout > 0, owner, "startup_timeout", startup_timeout, seconds)
        backends = ("auto", "gloo", "nccl")
        require(backend in backends, owner, "backend", backend, f"one of {', '.join(backends)}")
        require(weights in ("uniform", "size"), owner, "weights", weights, "uniform or size")
        policies = ("average", "local")
        require(batchnorm in policies, owner, "batchnorm", batchnorm, " or ".join(policies))
        require(0 < participation <= 1, owner, "participation", participation, "in (0, 1]")
        answers = ("stop", "drop")
        require(on_nonfinite in answers, owner, "on_nonfinite", on_nonfinite, " or ".join(answers))
        self.participation, self.on_nonfinite = participation, on_nonfinite
        self.dropped: Counter[int] = Counter()
        self.timeout, self.startup_timeout = timeout, startup_timeout
        self.backend, self.weights, self.shared_memory = backend, weights, shared_memory
        self.batchnorm = batchnorm
        codec = Codec(compression, keep)
        self.compressed = None if compression == "none" else Compressed(self, codec)
        self.traffic = Traffic()
        self.open(LocalTransport(), Placement(1), Every(1))

    def open(
        self,
        transport: Transport,
        placement: Placement,
        schedule: Schedule,
        seed: int = 0,
        step: int = 0,
        sizes: Sequence[int] | None = None,
        rider: Tensor | None = None,
    ) -> None:
        """Connect to the other ranks, ready for iteration `step`.

        Args:
            transport: the wire.
            placement: which clients live where.
            schedule: when the algorithm communicates.
            seed: of the shared coins.
            step: the iteration that comes next.
            sizes: how much data each hosted client has, for weights="size".
            rider: rows [C, b] averaged in place with the first exchange of each round that makes
                means; the running statistics of BatchNorm travel so.
        """
        self.transport, self.placement, self.schedule, self.seed = (
            transport,
            placement,
            schedule,
            seed,
        )
        self._rider = rider if self.batchnorm == "average" else None
        self._rider_step = -1
        self._accept(schedule)
        if self.compressed is not None:
            self.compressed.accept(schedule)
        keep_freed_memory()
        self._all_weights = Weights(self._client_weights(sizes))
        self._round_weights = (-1, self._all_weights)
        self._participation = self._make_participation()
        self._begin(step)

    def at(self, step: int) -> Sync:
        """What iteration `step` may do."""
        communicates, traffic = self._communicates(step), self.traffic
        traffic.rounds += communicates
        return Sync(self.compressed or self, communicates, traffic, step, self._coins(step))

    @property
    def memory(self) -> dict[str, Tensor]:
        """What the hosted clients remember of their messages, by name: rows [C, n]."""
        return {} if self.compressed is None else self.compressed.memory

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Go on with this memory, of a checkpoint."""
        if self.compressed is not None:
            self.compressed.memory = memory

    def rewind(self, step: int) -> None:
        """Go back to iteration `step`, to go through a stretch of the run once more."""
        self._rider, self.traffic = None, Traffic()
        self.remember({})
        self._begin(step)

    def at_start(self) -> Sync:
        """The exchange before the first step; it always communicates and is no round."""
        return Sync(self, True, self.traffic)

    def aside(self) -> Sync:
        """For evaluation: always communicates, and none of it counts as the algorithm's."""
        return Sync(self, True, Traffic())

    # What the schedule asks for; the skip-coin communicator answers otherwise.

    def _accept(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Every):
            raise InputError(
                f"the algorithm flips shared coins, which communicator={self.name} does not; "
                "use communicator=skip_coin"
            )

    def _begin(self, step: int) -> None:
        """Prepare what iteration `step` and those up to the next communication need to know."""

    def _communicates(self, step: int) -> bool:
        assert isinstance(self.schedule, Every)
        return self.schedule.communicates(step)

    def _coins(self, step: int) -> Mapping[str, bool] | None:
        """The shared coins of a step, other than the one that decides on communication."""
        return None

    # The verbs.

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """Weighted means over all clients of fields [C, ...], as shared rows of the same shape."""
        rider = self._boarding(step)
        if rider is not None:
            *rows, mean = self._mean((*fields, rider), traffic, step)
            rider.copy_(mean)
            return tuple(rows)
        return self._mean(fields, traffic, step)

    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        """Run a function of the means on the server and broadcast its result."""
        raise InputError(
            f"the algorithm computes on the server, which communicator={self.name} does not; "
            "use communicator=adaptive_matrix"
        )

    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        """The values [C, ...] of all clients: [M, ...]."""
        placement = self.placement
        most = len(placement.block(0))
        padded = values
        if len(values) < most:
            padded = torch.cat([values, values.new_zeros(most - len(values), *values.shape[1:])])
        started = perf_counter()
        parts = self.transport.all_gather(padded)
        traffic.seconds_waited += perf_counter() - started
        traffic.exchanges += 1
        size = values[0].numel() * values.element_size()
        traffic.bytes_up += size
        traffic.bytes_down += size * placement.clients
        return torch.cat([part[: len(placement.block(r))] for r, part in enumerate(parts)])

    # Pieces shared with the subclasses.

    def _mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        weights = self._weights_at(step)
        if self.on_nonfinite == "drop":
            return as_rows(self._sum_of_finite(fields, weights, traffic, step), fields)
        sums = local_sums(fields, weights)
        size = sums.nbytes
        self._timed(self.transport.all_reduce, sums, traffic)
        traffic.exchanges += 1
        traffic.bytes_up += self._per_client(size, step)
        traffic.bytes_down += size
        return as_rows(sums, fields)

    def _sum_of_finite(
        self, fields: tuple[Tensor, ...], weights: Weights, traffic: Traffic, step: int
    ) -> Tensor:
        """The weighted mean of the clients whose fields are finite, in a flat buffer.

        With the sums travel what the finite ones weigh and how many are not.
        """
        kept, rows = weights.of_finite(fields)
        if step >= 0:
            self.dropped.update(self.placement.hosted[row] for row in rows)
        sums = local_sums(fields, kept).reshape(-1)
        message = torch.cat([sums, sums.new_tensor([sum(kept.values), len(rows)])])
        self._timed(self.transport.all_reduce, message, traffic)
        traffic.exchanges += 1
        traffic.bytes_up += self._per_client(message.nbytes, step)
        traffic.bytes_down += message.nbytes
        weight, dropped = message[-2:].tolist()
        traffic.dropped += int(dropped)
        # Nothing is divided where nobody is missing, so that rounding is that of any other run.
        return message[:-2] / weight if dropped else message[:-2]

    def _weights_at(self, step: int) -> Weights:
        """Of a round, those of the clients that take part; of anything else, all."""
        if self._participation is None or step < 0:
            return self._all_weights
        if self._round_weights[0] != step:
            hosted = self.placement.hosted
            weights = self._participation.at(step)[hosted.start : hosted.stop]
            self._round_weights = (step, Weights(weights.tolist()))
        return self._round_weights[1]

    def _per_client(self, size: int, step: int) -> int:
        """What a client sends on average of a message that those who take part send."""
        if self._participation is None or step < 0:
            return size
        return round(size * self._participation.drawn / self.placement.clients)

    def _boarding(self, step: int) -> Tensor | None:
        """The rider, if this is the first exchange of its round."""
        if self._rider is None or step <= self._rider_step:
            return None
        self._rider_step = step
        return self._rider

    def _timed(
        self, collective: Callable[[Tensor], None], buffer: Tensor, traffic: Traffic
    ) -> None:
        started = perf_counter()
        collective(buffer)
        traffic.seconds_waited += perf_counter() - started

    def _make_participation(self) -> Participation | None:
        if self.participation == 1:
            return None
        parts = self.transport.all_gather_object(self._all_weights.values)
        return Participation(self.participation, [w for part in parts for w in part], self.seed)

    def _client_weights(self, sizes: Sequence[int] | None) -> list[float]:
        hosted = len(self.placement.hosted)
        if self.weights == "uniform" or sizes is None:
            return [1.0 / self.placement.clients] * hosted
        total = torch.tensor(float(sum(sizes)), dtype=torch.float64)
        self.transport.all_reduce(total)
        return [size / total.item() for size in sizes]
