"""Compute a user's function for all hosted clients: together where possible, else in a loop.

Axes: C hosted clients, B samples of a draw, n entries of a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsys.clients.tracing import Recorded, record
from fedsys.core.errors import InputError, debugs
from fedsys.problems.custom.client_loop import TRIAL, ClientLoop, Hosted, Rows, Xi
from fedsys.problems.custom.draws import Watch, to_indices, unused_generator
from fedsys.problems.custom.function_rows import outside_of_inference, plain, stacked
from fedsys.problems.custom.user_function import UserFunction

_CHUNK = 256
"""Samples of a finite sum that are computed at a time."""


class ClientFunction(ClientLoop):
    """The values or gradients of a user's function for the hosted clients.

    Args:
        function: the function of one client.
        hosted: the clients.
        start: rows [C, n] of each variable, at which the function is tried out.
        gradients: whether to compute gradients in all variables in place of values.
    """

    def __init__(
        self, function: UserFunction, hosted: Hosted, start: Rows, gradients: bool = False
    ) -> None:
        super().__init__(function, hosted, gradients)
        self._recorded: Recorded | None = None
        self._direct: Callable[[Rows], Rows] | None = None
        self.of_rows: Callable[[Tensor], Tensor] | None = None
        """The function of rows [C, n] where it depends on nothing else, with little around it."""
        self._data: Any = None
        self.obstacle: str | None = None
        """Why clients are computed one after another; None if they are computed together."""
        first, drew = self._try_out(start)
        if hosted.batched:
            self._prepare_batched(start)
        elif hosted.vectorize == "loop":
            self.obstacle = "vectorize='loop'"
        else:
            self._prepare_mapped(start, first, drew)
        if self.obstacle is not None:
            self._try_out_others(start)

    def __call__(self, rows: Rows, xi: Xi) -> Rows:
        """Return the values (or gradients) at a draw, each [C, ...]."""
        if self._direct is not None:
            return self._direct(rows)
        draws = self._hosted.draws
        if draws.counts is not None and draws.batch_size is None:
            return self.full(rows, xi[0])[0]
        if self._recorded is not None:
            return self._recorded(*rows, *self._indices(xi))
        with outside_of_inference():
            rows = plain(rows)
            if self.obstacle is None:
                return self._together(rows, self._indices(xi))
            pairs = enumerate(self._hosted.site.hosted)
            found = [self._alone(row, tuple(r[row] for r in rows), xi) for row, _ in pairs]
        return stacked(found)

    def full(self, rows: Rows, step: int) -> tuple[Rows, Tensor]:
        """Return the values on all data of each client, and [C, 1], where they are random."""
        hosted, C = self._hosted, len(self._hosted.site.hosted)
        count = hosted.draws.common_count
        with outside_of_inference(rows):
            rows = plain(rows)
            if self.obstacle is None and hosted.draws.counts is None:
                return self._together(rows, ()), rows[0].new_zeros(C, 1)
            if self.obstacle is None and count is not None:
                return self._all_samples(rows, count), rows[0].new_zeros(C, 1)
            found, noisy = [], []
            for row in range(C):
                value, drew = self._full_of(row, tuple(r[row] for r in rows), step)
                found.append(value)
                noisy.append([float(drew)])
        return stacked(found), rows[0].new_tensor(noisy)

    def at_samples(self, rows: Rows, picks: Sequence[int]) -> Rows:
        """Return the values at one sample of each client."""
        with outside_of_inference(rows):
            if self.obstacle is None:
                device = self._hosted.site.device
                return self._together(rows, (to_indices(picks, device)[:, None],))
            found = []
            for row, pick in enumerate(picks):
                own = tuple(r[row] for r in rows)
                with self._generators.at(self._hosted.site.hosted[row], (0, pick)):
                    found.append(self._differentiated(partial(self._chosen, row, pick), own))
        return stacked(found)

    def _chosen(self, row: int, pick: int, rows: Rows) -> Tensor:
        return self._value(row, rows, None, [pick])

    def differentiable(self, rows: Rows, xi: Xi) -> Tensor:
        """Return the values at a draw with the graph of autograd to `rows`."""
        draws = self._hosted.draws
        if draws.counts is not None and draws.batch_size is None:
            return self.full(rows, xi[0])[0][0]
        if self.obstacle is None:
            return self._together(rows, self._indices(xi))[0]
        found = []
        for row, client in enumerate(self._hosted.site.hosted):
            with self._generators.at(client, xi):
                found.append(self._value(row, tuple(r[row] for r in rows), xi))
        return torch.stack(found)

    def _indices(self, xi: Xi) -> tuple[Tensor, ...]:
        draws = self._hosted.draws
        if not draws.finite_sum:
            return ()
        return (to_indices(draws.indices(*xi), self._hosted.site.device),)

    # All clients together.

    def _together(self, rows: Rows, indices: tuple[Tensor, ...]) -> Rows:
        xi = indices[0] if indices else None
        try:
            if self._hosted.batched:
                return self._differentiated(
                    lambda leaves: self._function.batched(leaves, self._data, xi), rows
                )
            dims = ((0,) * len(rows), 0, None if xi is None else 0)
            mapped: Rows = vmap(self._single, in_dims=dims)(rows, self._data, xi)
        except InputError:
            raise
        except Exception as error:
            cause = error if debugs() else None
            raise self._function.error(error, "all clients at once") from cause
        return mapped

    def _single(self, rows: Rows, data: Any, xi: Tensor | None) -> Rows:
        if self._gradients:
            gradients: Rows = torch.func.grad(self._mean)(rows, data, xi)
            return gradients
        return (self._mean(rows, data, xi),)

    def _mean(self, rows: Rows, data: Any, xi: Tensor | None) -> Tensor:
        """Return the mean of one client's function over the samples of a draw, inside of vmap."""
        if xi is None:
            return self._function(rows, data, self._unused)
        if self._hosted.per_batch:
            return self._function(rows, data, xi)
        if xi.shape[0] == 1:
            return self._function(rows, data, xi[0])
        each = vmap(self._function, in_dims=(None, None, 0))(rows, data, xi)
        return each.mean(0)

    def _all_samples(self, rows: Rows, count: int) -> Rows:
        totals: list[Tensor] = []
        C, device = len(rows[0]), self._hosted.site.device
        size = count if self._hosted.per_batch else _CHUNK
        for first in range(0, count, size):
            chunk = torch.arange(first, min(first + size, count), device=device)
            values = self._together(rows, (chunk.expand(C, -1),))
            share = len(chunk) / count
            parts = [value * share for value in values] if share < 1 else list(values)
            totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
        return tuple(totals)

    # Before the first step.

    def _try_out(self, start: Rows) -> tuple[Rows, bool]:
        """Call the function of the first client twice; refuse what cannot work."""
        site, rows = self._hosted.site, tuple(row[0].clone() for row in start)
        if self._hosted.batched:
            return (), False
        with outside_of_inference():
            value, drew = self._full_of(0, rows, 0)
            again, _ = self._full_of(0, rows, 0)
        what, client = self._function.what, site.hosted[0]
        for one, other in zip(value, again, strict=True):
            self._check_numbers(one, f"client {client}")
            if not torch.equal(one, other):
                raise InputError(
                    f"{what} returned two values for the same arguments (client {client}): it "
                    "keeps state, or draws random numbers that are not from rng"
                )
        return value, drew

    def _try_out_others(self, start: Rows) -> None:
        """Call the function of the other hosted clients once; refuse what is not finite."""
        with outside_of_inference():
            for row, client in enumerate(self._hosted.site.hosted[1:], start=1):
                found, _ = self._full_of(row, tuple(one[row].clone() for one in start), 0)
                for value in found:
                    self._check_numbers(value, f"client {client}")

    def _check_numbers(self, value: Tensor, where: str) -> None:
        site, what = self._hosted.site, self._function.what
        if value.dtype != site.dtype:
            raise InputError(
                f"{what} returned {value.dtype} for {where}, and the run has {site.dtype}; convert "
                f"its data, or give dtype={str(value.dtype).removeprefix('torch.')!r}"
            )
        if value.device.type != site.device.type:
            raise InputError(f"{what} returned a tensor on {value.device}, not on {site.device}")
        if not bool(value.isfinite().all()):
            raise InputError(f"{what} returned nan or inf at the starting point of {where}")

    def _prepare_batched(self, start: Rows) -> None:
        data, reason = self._hosted.data.stacked()
        self._data = self._hosted.data.of_client if reason else data
        if self._function.takes_draw and self._hosted.draws.counts is None:
            raise InputError(
                f"{self._function.what} is batched and takes rng; a generator belongs to one "
                "client: declare samples=, or use batched=False"
            )
        with outside_of_inference():
            first, again = self._batched_trial(start), self._batched_trial(start)
        for one, other in zip(first, again, strict=True):
            self._check_numbers(one, "all clients")
            if not torch.equal(one, other):
                raise InputError(
                    f"{self._function.what} is batched and returned two values for the same "
                    "arguments: it keeps state, or draws random numbers; draw them from rng with "
                    "batched=False, or declare samples= and compute with the given ones"
                )
        is_exact = self._hosted.draws.counts is None
        if is_exact and not self._gradients and self._works_in_inference_mode(start):
            self.of_rows = self._function.of_rows(self._data, start[0])
            self._direct = lambda rows: (self._function.batched(rows, self._data, None),)

    def _batched_trial(self, start: Rows) -> Rows:
        """Return the values of a batched function at the start: of a draw, or of all data."""
        draws = self._hosted.draws
        if draws.counts is not None and not draws.finite_sum:
            return self.full(start, 0)[0]
        return self._together(start, self._indices(TRIAL))

    def _works_in_inference_mode(self, start: Rows) -> bool:
        """Return whether a batched function works in the mode that steps run in."""
        try:
            with torch.inference_mode():
                self._function.batched(tuple(row.clone() for row in start), self._data, None)
        except Exception:  # it differentiates by itself, for example
            return False
        return True

    def _prepare_mapped(self, start: Rows, first: Rows, drew: bool) -> None:
        """Map the function over clients if that gives the same values as the loop."""
        self._data, reason = self._hosted.data.stacked()
        if drew:
            reason = "it draws random numbers, each client from its own generator"
        if reason is None:
            reason = self._mapping_fails(start, first)
        if reason is not None:
            self.obstacle, self._data = reason, None
            if self._hosted.vectorize == "vmap":
                raise InputError(
                    f"{self._function.what}: vectorize='vmap' is not possible: {reason}"
                )

    def _mapping_fails(self, start: Rows, first: Rows) -> str | None:
        draws, site = self._hosted.draws, self._hosted.site
        self._unused = unused_generator(self._rng)
        watch = Watch(self._unused)
        try:
            with outside_of_inference():
                mapped, _ = self.full(start, 0)
        except Exception as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        tolerance = 1e3 * torch.finfo(site.dtype).eps
        for one, other in zip(mapped, first, strict=True):
            if one.shape[1:] != other.shape or not torch.allclose(
                one[0], other, rtol=tolerance, atol=tolerance
            ):
                return "mapped over clients it returns other values"
            for client, value in zip(site.hosted, one, strict=True):
                self._check_numbers(value, f"client {client}")
        if watch.drew:
            return "it draws random numbers, each client from its own generator"
        examples = start
        if draws.finite_sum:
            examples = (*start, *self._indices(TRIAL))
        count = len(start)
        if draws.counts is None or draws.finite_sum:
            self._recorded = record(
                lambda *given: self._together(given[:count], given[count:]), *examples
            )
        return None
