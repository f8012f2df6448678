"""The contract of a communicator, and its default verbs.

Axes: C clients hosted by this rank, M clients in total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication.aggregation import AggregationOptions, Aggregator
from fedsys.communication.compression import Codec, Compressed
from fedsys.communication.transport.base import Transport
from fedsys.communication.transport.connection import ConnectionOptions
from fedsys.communication.transport.local import LocalTransport
from fedsys.core.errors import InputError, require
from fedsys.core.fields import check_types, type_hints
from fedsys.core.placement import Placement
from fedsys.core.rounds import CommunicationSchedule, Every
from fedsys.core.sync import Exchanges, Serve, Sync
from fedsys.core.traffic import Traffic
from fedsys.system.memory import keep_freed_memory


class Communicator(Exchanges):
    """Base class of the communicators: everything that clients send passes through one.

    A run opens its communicator with `open` and asks it for a `Sync` in every iteration with
    `at(step)`. The step of the algorithm communicates through that `Sync`, which calls the verbs
    `mean`, `server` and `gather` on communication steps. The defaults of the base class follow
    periodic schedules, average with one all-reduce and offer no server.

    The parts are separate and compose: the aggregation (client weights, participation, non-finite
    values; aggregation.py), the compression (compression.py) and the transport (transport/).

    To write your own communicator, override the verbs that differ, and name the class in a file
    `conf/communicator/NAME.yaml` (`_target_: my_module.MyCommunicator`) or pass an instance to
    `fedsys.run(..., communicator=...)`:

        class AveragedTwice(Communicator):
            @override
            def mean(self, fields, traffic, step):
                return super().mean(super().mean(fields, traffic, step), traffic, step)

    A verb runs on all ranks, in the same order, and counts its bytes in `traffic`. A `mean` that
    does not call `super().mean` averages `synchronised_buffers` itself. A communicator whose means
    are not the plain means of all clients overrides `takes_exact_means`; one with a state of its
    own overrides `memory` and `load_state`, and checkpoints then contain it. A constructor with
    options of its own passes all others on to `super().__init__`.

    Args:
        timeout: seconds after which a collective gives up on a rank that does not answer.
        startup_timeout: the same for the rendezvous.
        backend: "gloo", "nccl" or "auto" (nccl where every rank of the host has its own GPU).
        weights: "uniform", or "size" to weight clients by the number of their samples.
        shared_memory: whether CPU ranks on one host exchange vectors through shared memory.
        batchnorm: "average" the running statistics of BatchNorm in every round, or keep them
            "local".
        participation: the share of the clients that take part in a round, drawn for each round.
        on_nonfinite: "stop" the run when a client sends a NaN or an infinity, or "drop" that client
            from that mean.
        compression: of what clients send: "none", "bf16", "fp16", "int8" or "top_k". Simulated:
            the numbers and `bytes_up` are those of compressed messages; sums travel uncompressed.
        keep: the share of its numbers that a client sends with compression="top_k".

    Attributes:
        name: the name in error messages; that of the class by default.
        has_server: whether `server` is offered.
        options: the arguments above, by name.
        connection: the options of the connection between the ranks.
        aggregation: the options of the mean over clients.
        traffic: the counters of the run.
        dropped: how often each hosted client was dropped because of a non-finite value.
        transport: connects the ranks.
        placement: which clients live on which rank.
        schedule: when the algorithm communicates.
        seed: the seed of everything that the communicator draws.
    """

    name: ClassVar[str] = "communicator"
    has_server: ClassVar[bool] = False
    _synchronised_buffers: Tensor | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

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
        given = {name: value for name, value in locals().items() if name != "self"}
        check_types("communicator", type_hints(Communicator.__init__), given)
        self.options: dict[str, Any] = given
        self.connection = ConnectionOptions(timeout, startup_timeout, backend, shared_memory)
        self.aggregation = AggregationOptions(weights, participation, on_nonfinite)
        is_known = batchnorm in ("average", "local")
        require(is_known, "communicator", "batchnorm", batchnorm, "average or local")
        self._averages_buffers = batchnorm == "average"
        self._codec = Codec(compression, keep)
        self._compressed = None if compression == "none" else Compressed(self, self._codec)
        self.traffic = Traffic()
        self.dropped: Counter[int] = Counter()
        self._connect(LocalTransport(), Placement(1), Every(1))

    @property
    def takes_exact_means(self) -> bool:
        """Whether a mean is of all clients, with equal weights and without loss."""
        return self.aggregation.is_exact and self._compressed is None

    def accept(self, schedule: CommunicationSchedule, server: bool = False) -> None:
        """Refuse a schedule, or computing on the server, that this communicator does not offer."""
        if not self._supports(schedule):
            raise InputError(
                f"the algorithm flips shared coins, which communicator={self.name} does not; "
                "use communicator=skip_coin"
            )
        self._codec.check(schedule, self.aggregation)
        if server and not self.has_server:
            raise self._no_server()

    def open(
        self,
        transport: Transport,
        placement: Placement,
        schedule: CommunicationSchedule,
        seed: int = 0,
        step: int = 0,
        sizes: Sequence[int] | None = None,
        synchronised_buffers: Tensor | None = None,
    ) -> None:
        """Connect to the other ranks and prepare for iteration `step`.

        Args:
            transport: connects the ranks.
            placement: which clients live on which rank.
            schedule: when the algorithm communicates.
            seed: the seed of the shared coins and of the participation draws.
            step: the iteration that comes next.
            sizes: the number of samples of each hosted client, for weights="size".
            synchronised_buffers: rows [C, b] that are averaged in place with the first exchange of
                each round: the running statistics of BatchNorm.
        """
        self.accept(schedule)
        self.load_state({})
        keep_freed_memory()
        self._connect(transport, placement, schedule, seed, sizes, synchronised_buffers)
        self._begin(step)

    def at(self, step: int) -> Sync:
        """Return the `Sync` of iteration `step`; iterations are asked for one after another."""
        communicates, traffic = self._communicates(step), self.traffic
        traffic.rounds += communicates
        return Sync(self._compressed or self, communicates, traffic, step, self._coins(step))

    def initial(self) -> Sync:
        """Return the `Sync` before the first iteration: it communicates, and is no round."""
        return Sync(self, True, self.traffic)

    def unmetered(self) -> Sync:
        """Return a `Sync` for evaluation: it communicates, and nothing is counted."""
        return Sync(self, True, Traffic())

    @property
    def memory(self) -> dict[str, Tensor]:
        """The state of the hosted clients' messages by name, as rows [C, n], for checkpoints."""
        return {} if self._compressed is None else self._compressed.memory

    def load_state(self, memory: dict[str, Tensor]) -> None:
        """Continue from the `memory` of a checkpoint; an empty one starts anew."""
        if self._compressed is not None:
            self._compressed.reset(memory)

    def rewind(self, step: int) -> None:
        """Go back to iteration `step` to repeat a part of the run; traffic starts at zero."""
        self._synchronised_buffers, self.traffic = None, Traffic()
        self.load_state({})
        self._begin(step)

    @override
    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        buffers = self._due_buffers(step)
        if buffers is not None:
            *rows, mean = self._aggregator.mean((*fields, buffers), traffic, step)
            buffers.copy_(mean)
            return tuple(rows)
        return self._aggregator.mean(fields, traffic, step)

    @override
    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        raise self._no_server()

    @override
    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        placement = self.placement
        most = len(placement.block(0))
        padded = values
        if len(values) < most:
            padded = torch.cat([values, values.new_zeros(most - len(values), *values.shape[1:])])
        parts = traffic.timed(self.transport.all_gather, padded)
        traffic.exchanges += 1
        size = values[0].numel() * values.element_size()
        traffic.bytes_up += size
        traffic.bytes_down += size * placement.clients
        return torch.cat([part[: len(placement.block(r))] for r, part in enumerate(parts)])

    # Hooks: which schedules a communicator follows, and how.

    def _supports(self, schedule: CommunicationSchedule) -> bool:
        """Return whether this communicator follows `schedule`."""
        return isinstance(schedule, Every)

    def _begin(self, step: int) -> None:
        """Prepare what iteration `step` and those up to the next communication need to know."""

    def _communicates(self, step: int) -> bool:
        """Return whether iteration `step` is a communication step."""
        schedule = self.schedule
        assert type(schedule) is Every
        return schedule.communicates(step)

    def _coins(self, step: int) -> Mapping[str, bool] | None:
        """Return the shared coins of iteration `step` besides the one that decides on the round."""
        return None

    # Private parts.

    def _connect(
        self,
        transport: Transport,
        placement: Placement,
        schedule: CommunicationSchedule,
        seed: int = 0,
        sizes: Sequence[int] | None = None,
        synchronised_buffers: Tensor | None = None,
    ) -> None:
        self.transport, self.placement = transport, placement
        self.schedule, self.seed = schedule, seed
        self._synchronised_buffers = synchronised_buffers if self._averages_buffers else None
        self._buffers_step = -1
        self._aggregator = Aggregator(
            self.aggregation, transport, placement, seed, sizes, self.dropped
        )

    def _due_buffers(self, step: int) -> Tensor | None:
        """Return the synchronised buffers if this is the first exchange of a round."""
        if self._synchronised_buffers is None or step <= self._buffers_step:
            return None
        self._buffers_step = step
        return self._synchronised_buffers

    def _no_server(self) -> InputError:
        return InputError(
            f"the algorithm computes on the server, which communicator={self.name} does not; "
            "use communicator=adaptive_matrix"
        )
