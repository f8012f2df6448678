"""Compression of what clients send: a wrapper around any communicator.

Axes: C hosted clients, n numbers of a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedsys.communication.schedule import Coins, Schedule
from fedsys.communication.sync import Serve
from fedsys.communication.traffic import Traffic
from fedsys.errors import InputError, require

if TYPE_CHECKING:
    from fedsys.communication.all_reduce import AllReduce

CODECS = ("none", "bf16", "fp16", "int8", "top_k")
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Codec:
    """What becomes of a client's numbers on their way.

    Args:
        name: "bf16" and "fp16" round every number; "int8" sends whole multiples of the largest one
            over 127; "top_k" sends those of largest size, and where they belong.
        keep: the share of its numbers that a client sends with top_k.
    """

    name: str
    keep: float = 0.1

    def __post_init__(self) -> None:
        rule = "one of " + ", ".join(CODECS)
        require(self.name in CODECS, "communicator", "compression", self.name, rule)
        require(0 < self.keep < 1, "communicator", "keep", self.keep, "in (0, 1)")

    @property
    def remembers(self) -> bool:
        """Whether it sends differences to what was sent before: alone it is too coarse."""
        return self.name in ("int8", "top_k")

    def size(self, field: Tensor) -> int:
        """The bytes of one client's message."""
        n, number = field[0].numel(), field.element_size()
        if self.name == "int8":
            return n + number
        return self._kept(n) * (number + _INDEX_BYTES) if self.name == "top_k" else 2 * n

    def __call__(self, rows: Tensor) -> Tensor:
        """What a receiver reads of each client's row [C, n]."""
        if self.name == "bf16":
            return rows.to(torch.bfloat16).to(rows.dtype)
        if self.name == "fp16":
            return rows.to(torch.float16).to(rows.dtype)
        if self.name == "int8":
            unit = rows.abs().amax(1, keepdim=True) / 127
            return (rows / unit.clamp(min=torch.finfo(rows.dtype).tiny)).round() * unit
        places = rows.abs().topk(self._kept(rows.shape[1]), dim=1, sorted=False).indices
        return torch.zeros_like(rows).scatter(1, places, rows.gather(1, places))

    def _kept(self, n: int) -> int:
        return ceil(self.keep * n)


class Compressed:
    """A communicator whose clients send through a codec, with error feedback where it is coarse.

    Error feedback is that of Richtarik, Sokolov and Fatkhullin (NeurIPS 2021): a client sends the
    compressed difference between its vector and what it has sent so far, h_i <- h_i + C(v_i - h_i),
    and everybody averages the h_i. What is left out now is part of the next difference, so nothing
    is lost; the sum of all messages of a client is its h_i. The first message is a whole vector.

    Exchanges before the first step and those of evaluation are not compressed, and what the server
    sends back never is. A client's bytes are counted as they would travel; between the ranks of a
    run travel sums of what was read of them.

    Attributes:
        memory: the h_i [C, n] of each field, by the place of its exchange in the step.
    """

    def __init__(self, communicator: AllReduce, codec: Codec) -> None:
        self._communicator, self._codec = communicator, codec
        self.memory: dict[str, Tensor] = {}
        self._step, self._exchange = -1, 0

    def accept(self, schedule: Schedule) -> None:
        """Begin a run, or refuse one that needs exact means."""
        self.memory = {}
        problem = None
        if isinstance(schedule, Coins):
            problem = "the control variates of ProxSkip sum up to zero only with exact means"
        elif self._communicator.participation != 1:
            problem = "a client that is not drawn would count as sent what it did not send"
        elif self._communicator.on_nonfinite == "drop" and self._codec.remembers:
            problem = "a client that was dropped once would remember its NaN"
        if problem is not None:
            raise InputError(
                f"communicator.compression={self._codec.name}: {problem}; use compression=none"
            )

    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        """The means of what was read of the clients' messages."""
        if step < 0:
            return self._communicator.mean(fields, traffic, step)
        read, saved = self._send(fields, step)
        means = self._communicator.mean(read, traffic, step)
        traffic.bytes_up -= saved
        return means

    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        """The server's function of those means."""
        if step < 0:
            return self._communicator.server(function, fields, traffic, step)
        read, saved = self._send(fields, step)
        results = self._communicator.server(function, read, traffic, step)
        traffic.bytes_up -= saved
        return results

    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        """Small values go as they are."""
        return self._communicator.gather(values, traffic)

    def _send(self, fields: tuple[Tensor, ...], step: int) -> tuple[tuple[Tensor, ...], int]:
        """What is read of the fields of every client, and the bytes that a client saved."""
        self._exchange = self._exchange + 1 if step == self._step else 0
        self._step = step
        read, saved = [], 0
        for number, field in enumerate(fields):
            name = f"sent.{self._exchange}.{number}"
            sent = self.memory.get(name)
            rows = field.reshape(len(field), -1)
            if not self._codec.remembers:
                seen = self._codec(rows)
            elif sent is None or sent.shape != rows.shape:
                self.memory[name] = rows.clone()
                read.append(field)
                continue
            else:
                seen = self.memory[name] = sent + self._codec(rows - sent)
            read.append(seen.view(field.shape))
            saved += rows[0].nbytes - self._codec.size(rows)
        return tuple(read), saved
