"""A user's function of one client: its signature, its calls, and errors in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsys.core.errors import InputError, debugs
from fedsys.problems.custom.variables import Variable, as_tensor, kind_of


class Returned(Protocol):
    """What a function has to return, and how it becomes a row."""

    def flatten(self, value: Any, lead: tuple[int, ...], what: str) -> Tensor:
        """Return the value as a tensor [*lead, n], or [*lead] of a scalar; refuse another one."""


class Scalar:
    """One number, computed from the variables."""

    def flatten(self, value: Any, lead: tuple[int, ...], what: str) -> Tensor:
        """Return a tensor of shape `lead`; one entry more is accepted."""
        if isinstance(value, Tensor):
            if value.shape == lead:
                return value
            if value.shape == (*lead, 1):
                return value.squeeze(-1)
        shape = f"of shape {list(lead)}" if lead else "with one number"
        hint = "; take its sum or mean" if isinstance(value, Tensor) and value.numel() > 1 else ""
        raise InputError(f"{what} returned {kind_of(value)}; expected a tensor {shape}{hint}")


class Vector:
    """A vector of any length."""

    def flatten(self, value: Any, lead: tuple[int, ...], what: str) -> Tensor:
        """Return a tensor [*lead, n]."""
        tensor = as_tensor(value)
        if tensor is None or tensor.dim() < len(lead):
            raise InputError(f"{what} returned {kind_of(value)}; expected a tensor")
        return tensor.reshape((*lead, -1))


class UserFunction:
    """A function(*variables, data), function(*variables, data, rng) or (..., data, sample).

    Args:
        owner: the problem's name, for error messages.
        name: the name of the argument that the function was given as, such as "loss".
        function: the user's function.
        variables: its variables, in order.
        returned: what it has to return.
        drawn: the name of its last argument, "rng" or "sample".
    """

    def __init__(
        self,
        owner: str,
        name: str,
        function: Callable[..., Any],
        variables: Sequence[Variable],
        returned: Returned,
        drawn: str,
    ) -> None:
        self._function, self._variables, self._returned = function, tuple(variables), returned
        if not callable(function):
            raise InputError(f"{owner}: {name} must be a function, got {kind_of(function)}")
        names = ", ".join(variable.name for variable in variables)
        self.what = f"{owner}: {name}({names}, ...)"
        self._refuse_gradients(owner, name)
        self.takes_draw = self._last_argument(f"{owner}: {name}", names, drawn)
        one_vector = len(self._variables) == 1 and self._variables[0].is_vector
        self._is_plain = one_vector and not self.takes_draw  # the fastest way to call it
        annotation = self._annotation()
        self.wants_torch = annotation is torch.Generator or annotation == "torch.Generator"

    def __call__(self, rows: Sequence[Tensor], data: Any, xi: Any) -> Tensor:
        """Return the value of one client at rows [n] of its variables, as a row."""
        return self._call(rows, data, xi, ())

    def batched(self, rows: Sequence[Tensor], data: Any, xi: Any) -> Tensor:
        """Return the values of all hosted clients, [C, ...], of a function that takes them all."""
        return self._call(rows, data, xi, (len(rows[0]),))

    def of_rows(self, data: Any, start: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return the batched function of rows shaped as `start`, with little around it.

        None if it takes something other than one vector and the data.
        """
        if not self._is_plain:
            return None
        function, returned, what, shape = self._function, self._returned, self.what, start.shape

        def call(z: Tensor) -> Tensor:
            value = function(z, data)
            if isinstance(value, Tensor) and value.shape == shape:
                return value
            return returned.flatten(value, (len(z),), what)

        return call

    def named(self, rows: Sequence[Tensor], data: Any, xi: Any, client: int) -> Tensor:
        """Return the value of one client; an exception becomes one line that names the client.

        FEDSYS_DEBUG=1 shows where it was raised.
        """
        try:
            return self(rows, data, xi)
        except InputError:
            raise
        except Exception as error:
            raise self.error(error, f"client {client}") from (error if debugs() else None)

    def error(self, error: Exception, where: str) -> InputError:
        """Return an exception of the function as an error of one line."""
        text = (str(error).strip().splitlines() or ["no message"])[0]
        return InputError(
            f"{self.what} raised {type(error).__name__} for {where}: {text} "
            "(FEDSYS_DEBUG=1 shows the traceback)"
        )

    def _call(self, rows: Sequence[Tensor], data: Any, xi: Any, lead: tuple[int, ...]) -> Tensor:
        if self._is_plain:
            value = self._function(rows[0], data)
        else:
            pairs = zip(self._variables, rows, strict=True)
            forms = [variable.form(row) for variable, row in pairs]
            drawn = (xi,) if self.takes_draw else ()
            value = self._function(*forms, data, *drawn)
        return self._returned.flatten(value, lead, self.what)

    def _last_argument(self, what: str, names: str, drawn: str) -> bool:
        """Return whether the function takes a draw after the data; refuse another signature."""
        wanted = len(self._variables) + 1
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # a builtin without a signature
            return drawn == "sample"
        parameters = list(signature.parameters.values())
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [one for one in parameters if one.kind in positional]
        rest = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
        required = sum(one.default is inspect.Parameter.empty for one in taken)
        if required > wanted + 1 or (len(taken) < wanted and not rest):
            given = ", ".join(one.name for one in taken)
            raise InputError(
                f"{what} must take ({names}, data) or ({names}, data, {drawn}), got ({given})"
            )
        if drawn == "sample" and len(taken) == wanted and not rest:
            raise InputError(
                f"{what} must take ({names}, data, sample), because samples= declares a finite sum"
            )
        self._drawn_parameter = taken[wanted] if len(taken) > wanted else None
        return rest or required > wanted or len(taken) > wanted

    def _annotation(self) -> Any:
        parameter = getattr(self, "_drawn_parameter", None)
        return parameter.annotation if parameter is not None else None

    def _refuse_gradients(self, owner: str, name: str) -> None:
        if isinstance(self._function, torch.nn.Module):
            raise InputError(
                f"{owner}: {name} is an nn.Module; give the module as a variable (x=module) and a "
                "function of it, such as loss(net, data)"
            )
