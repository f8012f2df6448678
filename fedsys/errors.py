"""Errors that are answers: one line that says what was given, what is allowed and what to do."""

from __future__ import annotations

import sys


class FedsysError(Exception):
    """An end of the run that the user is told about in one line, by one rank.

    `reporter` is the rank that prints the line; every other rank leaves without a word.
    """

    exit_code = 1

    def __init__(self, message: str, reporter: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.reporter = reporter


class InputError(FedsysError, ValueError):
    """The user asked for something that cannot be done as asked."""

    exit_code = 2


class NonFiniteError(FedsysError, ArithmeticError):
    """A client's variables became NaN or infinite."""

    def __init__(self, step: int, client: int, variable: str, reporter: int = 0) -> None:
        when = f"after iteration {step}" if step >= 0 else "at the start"
        super().__init__(
            f"{variable} of client {client} is not finite {when}; "
            "try a smaller step size (algorithm.lr...) or dtype=float64",
            reporter,
        )
        self.step, self.client, self.variable = step, client, variable


class InterruptedRunError(FedsysError):
    """The run was asked to stop, kept its state and can go on later."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again later. Launchers requeue by it."""


class LostRankError(FedsysError, ConnectionError):
    """A collective failed because another rank is gone or silent."""


def require(condition: bool, owner: str, name: str, value: object, rule: str) -> None:
    """Raise `owner: name must be rule, got value` unless the condition holds."""
    if not condition:
        raise InputError(f"{owner}: {name} must be {rule}, got {value!r}")


class KindError(InputError):
    """An algorithm on a problem of the wrong kind."""

    def __init__(self, algorithm: object, problem: object, kinds: list[str]) -> None:
        self.kinds = kinds
        needs = getattr(algorithm, "kind", "?")
        super().__init__(
            f"{type(algorithm).__name__} needs a {needs} problem; "
            f"{type(problem).__name__} is {' and '.join(kinds) or 'of no known kind'}"
        )


def tell(message: str) -> None:
    """The one line that the user gets."""
    print(f"fedsys: {' '.join(message.split())}", file=sys.stderr, flush=True)
