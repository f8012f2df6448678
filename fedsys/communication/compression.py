"""Compression of what clients send: a wrapper around the verbs of any communicator.

Axes: C hosted clients, n numbers of a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from typing_extensions import override

from fedsys.communication.aggregation import AggregationOptions
from fedsys.core.errors import InputError, require
from fedsys.core.rounds import Coins, CommunicationSchedule
from fedsys.core.sync import Exchanges, Serve
from fedsys.core.traffic import Traffic

CODECS = ("none", "bf16", "fp16", "int8", "top_k")
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Codec:
    """A lossy encoding of a client's numbers.

    Args:
        name: "bf16" and "fp16" round every number; "int8" rounds to integer multiples of the
            largest magnitude over 127; "top_k" sends the numbers of largest magnitude with their
            indices; "none" is no compression.
        keep: the share of its numbers that a client sends with "top_k".
    """

    name: str
    keep: float = 0.1

    def __post_init__(self) -> None:
        rule = "one of " + ", ".join(CODECS)
        require(self.name in CODECS, "communicator", "compression", self.name, rule)
        require(0 < self.keep < 1, "communicator", "keep", self.keep, "in (0, 1)")

    @property
    def has_error_feedback(self) -> bool:
        """Whether clients send differences to what they have sent before.

        "int8" and "top_k" are too coarse without.
        """
        return self.name in ("int8", "top_k")

    def size(self, field: Tensor) -> int:
        """Return the bytes of one client's message."""
        n, number = field[0].numel(), field.element_size()
        if self.name == "int8":
            return n + number
        return self._kept(n) * (number + _INDEX_BYTES) if self.name == "top_k" else 2 * n

    def __call__(self, rows: Tensor) -> Tensor:
        """Return what a receiver decodes of each client's row [C, n]."""
        if self.name == "bf16":
            return rows.to(torch.bfloat16).to(rows.dtype)
        if self.name == "fp16":
            return rows.to(torch.float16).to(rows.dtype)
        if self.name == "int8":
            unit = rows.abs().amax(1, keepdim=True) / 127
            return (rows / unit.clamp(min=torch.finfo(rows.dtype).tiny)).round() * unit
        places = rows.abs().topk(self._kept(rows.shape[1]), dim=1, sorted=False).indices
        return torch.zeros_like(rows).scatter(1, places, rows.gather(1, places))

    def check(self, schedule: CommunicationSchedule, aggregation: AggregationOptions) -> None:
        """Refuse a schedule or an aggregation that this compression does not support."""
        problem = None
        if isinstance(schedule, Coins):
            problem = "the control variates of ProxSkip sum up to zero only with exact means"
        elif aggregation.participation != 1:
            problem = "a client that is not drawn would count as sent what it did not send"
        elif aggregation.on_nonfinite == "drop" and self.has_error_feedback:
            problem = "the error feedback of a dropped client would keep its NaN"
        if self.name != "none" and problem is not None:
            raise InputError(
                f"communicator.compression={self.name}: {problem}; use compression=none"
            )

    def _kept(self, n: int) -> int:
        return ceil(self.keep * n)


class Compressed(Exchanges):
    """The verbs of a communicator whose clients send through a codec.

    Coarse codecs use error feedback (Richtárik, Sokolov and Fatkhullin, EF21: A New, Simpler,
    Theoretically Better, and Practically Faster Error Feedback, NeurIPS 2021, arXiv:2106.05203):
    a client sends the compressed difference between its vector and the sum of its
    messages so far, h_i <- h_i + C(v_i - h_i), and the mean is that of the h_i. What is left out of
    one message is part of the next difference. The first message is a whole vector.

    Exchanges before the first step and those of evaluation are not compressed, nor is what the
    server sends back. Compression is simulated: the numbers are those of compressed messages and
    `bytes_up` counts their compressed size, but the sums travel uncompressed between the ranks.

    Args:
        communicator: performs the exchanges.
        codec: the encoding.

    Attributes:
        memory: the h_i [C, n] of each field, named by the exchange in the step and the field.
    """

    def __init__(self, communicator: Exchanges, codec: Codec) -> None:
        self._communicator, self._codec = communicator, codec
        self.reset({})

    def reset(self, memory: dict[str, Tensor]) -> None:
        """Continue from this memory; an empty one starts anew."""
        self.memory = memory
        self._step, self._exchange = -1, 0

    @override
    def mean(self, fields: tuple[Tensor, ...], traffic: Traffic, step: int) -> tuple[Tensor, ...]:
        if step < 0:
            return self._communicator.mean(fields, traffic, step)
        decoded, saved = self._send(fields, step)
        means = self._communicator.mean(decoded, traffic, step)
        traffic.bytes_up -= saved
        return means

    @override
    def server(
        self, function: Serve, fields: tuple[Tensor, ...], traffic: Traffic, step: int
    ) -> tuple[Tensor, ...]:
        if step < 0:
            return self._communicator.server(function, fields, traffic, step)
        decoded, saved = self._send(fields, step)
        results = self._communicator.server(function, decoded, traffic, step)
        traffic.bytes_up -= saved
        return results

    @override
    def gather(self, values: Tensor, traffic: Traffic) -> Tensor:
        return self._communicator.gather(values, traffic)  # small: not compressed

    def _send(self, fields: tuple[Tensor, ...], step: int) -> tuple[tuple[Tensor, ...], int]:
        """Return what is decoded of the clients' fields, and the bytes that a client saves."""
        self._exchange = self._exchange + 1 if step == self._step else 0
        self._step = step
        decoded, saved = [], 0
        for number, field in enumerate(fields):
            name = f"sent.{self._exchange}.{number}"
            sent = self.memory.get(name)
            rows = field.reshape(len(field), -1)
            if not self._codec.has_error_feedback:
                seen = self._codec(rows)
            elif sent is None or sent.shape != rows.shape:
                self.memory[name] = rows.clone()
                decoded.append(field)
                continue
            else:
                seen = self.memory[name] = sent + self._codec(rows - sent)
            decoded.append(seen.view(field.shape))
            saved += rows[0].nbytes - self._codec.size(rows)
        return tuple(decoded), saved
