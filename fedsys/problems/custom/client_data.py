"""What each hosted client's functions receive as `data`, alone and stacked over the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import InputError
from fedsys.core.site import Site

ClientData = Callable[[int], Any] | Sequence[Any] | None
"""A function of the client's number, which is called for hosted clients only, or a list of all."""


class HostedData:
    """The data of the hosted clients; by default a client's data is its number.

    Arrays become tensors. Floating-point numbers get the dtype of the run, and all tensors its
    device.

    Args:
        owner: the problem's name, for error messages.
        site: the hosted clients.
        given: the user's `client_data`.
    """

    def __init__(self, owner: str, site: Site, given: ClientData) -> None:
        self._site = site
        if given is None:
            self.of_client: list[Any] = list(site.hosted)
            return
        if not callable(given):
            clients = site.placement.clients
            if not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
                raise InputError(
                    f"{owner}: client_data must be a function of the client's number or a list, "
                    f"got a {type(given).__name__}"
                )
            if len(given) != clients:
                raise InputError(
                    f"{owner}: client_data has {len(given)} entries for clients={clients}"
                )
        self.of_client = [
            _map(self._convert, given(client) if callable(given) else given[client])
            for client in site.hosted
        ]

    def stacked(self) -> tuple[Any, str | None]:
        """Return the data with the clients as the first axis of every tensor.

        The second value says why that is impossible, or is None.
        """
        try:
            return _stack(self.of_client, self._site.device), None
        except _DifferentError as error:
            return None, str(error)

    def _convert(self, leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub":
            leaf = torch.from_numpy(leaf)
        if not isinstance(leaf, Tensor):
            return leaf
        dtype = self._site.dtype if leaf.is_floating_point() else leaf.dtype
        return leaf.to(device=self._site.device, dtype=dtype)


class _DifferentError(Exception):
    """The data of the clients cannot be stacked, and why."""


def _map(function: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to the leaves of nested dictionaries, lists and tuples."""
    if isinstance(data, dict):
        return {key: _map(function, value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return _rebuilt(data, [_map(function, value) for value in data])
    return function(data)


def _rebuilt(like: list[Any] | tuple[Any, ...], values: list[Any]) -> Any:
    is_named = isinstance(like, tuple) and hasattr(like, "_fields")
    return type(like)(*values) if is_named else type(like)(values)


def _stack(values: Sequence[Any], device: torch.device) -> Any:
    """Stack the leaves of several clients' data."""
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise _DifferentError("the clients' data have different types")
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise _DifferentError("the clients' data have different keys")
        return {key: _stack([value[key] for value in values], device) for key in first}
    if isinstance(first, list | tuple):
        if any(len(value) != len(first) for value in values):
            raise _DifferentError("the clients' data have different lengths")
        return _rebuilt(first, [_stack(column, device) for column in zip(*values, strict=True)])
    if isinstance(first, bool | int | float | np.number):
        return torch.tensor([*values], device=device)
    if not isinstance(first, Tensor):
        raise _DifferentError(f"the clients' data contain a {type(first).__name__}")
    if any(value.shape != first.shape or value.dtype != first.dtype for value in values):
        raise _DifferentError("the clients' data have different shapes")
    return torch.stack([*values])
