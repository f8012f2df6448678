"""All-reduce averaging: the communicator of the periodic methods, and the base of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from fedsys.communication.compression import Codec, Compressed
from fedsys.communication.placement import Placement
from fedsys.communication.schedule import Every, Schedule
from fedsys.communication.sync import Sync
from fedsys.communication.traffic import Traffic
from fedsys.communication.transport import LocalTransport, Transport
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
        self._weights = self._client_weights(sizes)
        self._weight_vectors: dict[torch.dtype, Tensor] = {}
        self._begin(step)

    def at(self, step: int) -> Sync:
        """What iteration `step` may do."""
        verbs = self.compressed or self
        sync = Sync(verbs, self._communicates(step), self.traffic, step, self._coins(step))
        self.traffic.rounds += bool(sync)
        return sync

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

    def _coins(self, step: int) -> Mapping[str, bool]:
        """The shared coins of a step, other than the one that decides on communication."""
        return {}

    # The verbs.

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """Weighted means over all clients of fields [C, ...], as shared rows of the same shape."""
        rider = self._boarding(step)
        if rider is not None:
            *rows, mean = self._mean((*fields, rider), traffic)
            rider.copy_(mean)
            return tuple(rows)
        return self._mean(fields, traffic)

    def server(
        self,
        function: Callable[..., Tensor | tuple[Tensor, ...]],
        fields: tuple[Tensor, ...],
        traffic: Traffic,
        step: int,
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

    def _mean(self, fields: tuple[Tensor, ...], traffic: Traffic) -> tuple[Tensor, ...]:
        sums = self._local_sums(fields)
        size = sums.nbytes
        self._timed(self.transport.all_reduce, sums, traffic)
        traffic.exchanges += 1
        traffic.bytes_up += size
        traffic.bytes_down += size
        return self._rows(sums, fields)

    def _boarding(self, step: int) -> Tensor | None:
        """The rider, if this is the first exchange of its round."""
        if self._rider is None or step <= self._rider_step:
            return None
        self._rider_step = step
        return self._rider

    def _local_sums(self, fields: tuple[Tensor, ...]) -> Tensor:
        """The weighted sums over the hosted clients, one after another in a new flat buffer.

        The one field of one client keeps its shape instead: the time of a small round goes by the
        number of calls, and this way needs the fewest.
        """
        if len(fields) == 1:
            field = fields[0]
            alone = field.shape[0] == 1
            return field.contiguous() * self._weights[0] if alone else self._local_sum(field)
        sizes = [field.numel() // field.shape[0] for field in fields]
        buffer = fields[0].new_empty(sum(sizes))
        for field, part in zip(fields, buffer.split_with_sizes(sizes), strict=True):
            self._local_sum(field, out=part)
        return buffer

    def _local_sum(self, field: Tensor, out: Tensor | None = None) -> Tensor:
        clients = field.shape[0]
        if clients == 1:
            return torch.mul(field.reshape(-1), self._weights[0], out=out)
        rows = field
        if field.dim() != 2 or not field.is_contiguous():
            # Contiguous, so that rows that share their memory sum up like others.
            rows = field.reshape(clients, -1).contiguous()
        weights = self._weight_vectors.get(rows.dtype)
        if weights is None:
            weights = self._weight_vectors[rows.dtype] = rows.new_tensor(self._weights)
        return torch.mv(rows.t(), weights, out=out)

    def _rows(self, buffer: Tensor, fields: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Cut a flat buffer into one row per field, shared by all hosted clients."""
        if len(fields) == 1:
            field = fields[0]
            if buffer.shape == field.shape:
                return (buffer,)
            row = buffer if field.dim() == 2 else buffer.view(field.shape[1:])
            return (row.expand_as(field),)
        parts = buffer.split_with_sizes([field.numel() // field.shape[0] for field in fields])
        return tuple(
            part.view(field.shape[1:]).expand_as(field)
            for part, field in zip(parts, fields, strict=True)
        )

    def _timed(
        self, collective: Callable[[Tensor], None], buffer: Tensor, traffic: Traffic
    ) -> None:
        started = perf_counter()
        collective(buffer)
        traffic.seconds_waited += perf_counter() - started

    def _client_weights(self, sizes: Sequence[int] | None) -> list[float]:
        hosted = len(self.placement.hosted)
        if self.weights == "uniform" or sizes is None:
            return [1.0 / self.placement.clients] * hosted
        total = torch.tensor(float(sum(sizes)), dtype=torch.float64)
        self.transport.all_reduce(total)
        return [size / total.item() for size in sizes]
