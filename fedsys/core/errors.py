"""Errors: one line that states what was given, what is allowed and what to do."""

from __future__ import annotations

import errno
import os
import sys
import traceback


class FedsysError(Exception):
    """An error that ends the run and is printed in one line, by one rank.

    `reporter` is the rank that prints the line; the other ranks exit without output.
    """

    exit_code = 1
    is_on_all_ranks = False
    """Whether the ranks have exchanged the error, so that all of them raise it."""

    def __init__(self, message: str, reporter: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.reporter = reporter


class InputError(FedsysError, ValueError):
    """The configuration, a file or an argument is invalid."""

    exit_code = 2


class NonFiniteError(FedsysError, ArithmeticError):
    """A client's variables became NaN or infinite."""

    def __init__(self, step: int, client: int, variable: str, reporter: int = 0) -> None:
        when, remedy = "at the start", "check the starting point"
        if step >= 0:
            when = f"after iteration {step}"
            remedy = "try a smaller step size (algorithm.lr...) or dtype=float64"
        super().__init__(f"{variable} of client {client} is not finite {when}; {remedy}", reporter)
        self.step, self.client, self.variable = step, client, variable


class InterruptedRunError(FedsysError):
    """A signal stopped the run; its state is kept, and the run can be resumed."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again later. Launchers requeue by it."""

    exit_code_of_ctrl_c = 130
    """128 + SIGINT, the code of shells for Ctrl-C; launchers do not requeue it."""

    def __init__(self, message: str, by_ctrl_c: bool = False) -> None:
        super().__init__(message)
        if by_ctrl_c:
            self.exit_code = self.exit_code_of_ctrl_c


class StorageError(FedsysError, OSError):
    """A file could not be written: the disk is full, or the folder was removed during the run."""

    @classmethod
    def of(cls, error: OSError, what: str, advice: str) -> FedsysError:
        """Return the error to raise if writing fails before the run starts.

        A folder that is not writable is an invalid setting (`InputError`); a full disk is not.
        """
        kind = InputError if error.errno in _WRONG_PLACE else cls
        return kind(f"{what}: {error.strerror or error}; {advice}")


_WRONG_PLACE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
    }
)


class LostRankError(FedsysError, ConnectionError):
    """A collective failed because another rank is gone or silent."""


class UnforeseenError(FedsysError):
    """An exception that no code expects: a defect of fedsys or of a user's own class."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return next(iter(str(error).strip().splitlines()), "")


def unforeseen(error: BaseException, traceback_file: object = None) -> UnforeseenError:
    """Return the one line for an unexpected exception, and where its traceback is."""
    where = (
        f"the traceback is in {traceback_file}"
        if traceback_file
        else "FEDSYS_DEBUG=1 prints the traceback"
    )
    return UnforeseenError(f"unexpected {type(error).__name__}: {first_line(error)}; {where}")


def debugs() -> bool:
    """Whether FEDSYS_DEBUG asks for the tracebacks of unexpected exceptions."""
    return os.environ.get("FEDSYS_DEBUG", "0") not in ("", "0")


def print_command_error(command: str, error: Exception) -> int:
    """Print the one line of an error that ended a command of one process; return its exit code."""
    shown = error if isinstance(error, FedsysError) else unforeseen(error)
    if shown is not error and debugs():
        traceback.print_exception(error)
    print(f"{command}: {' '.join(shown.message.split())}", file=sys.stderr, flush=True)
    return shown.exit_code


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


class TermError(InputError):
    """An algorithm on a problem with a composite term or constraint that it would not apply."""

    def __init__(
        self,
        algorithm: object,
        problem: object,
        terms: str,
        maps: frozenset[str],
        others: list[str],
    ) -> None:
        self.terms, self.maps = terms, maps
        advice = f"; use {' or '.join(others)}" if others else ""
        super().__init__(
            f"{type(algorithm).__name__} does not support the composite term or constraint of "
            f"{type(problem).__name__} ({terms}){advice}"
        )


def print_error(message: str) -> None:
    """Print an error on stderr, in one line."""
    print(f"fedsys: {' '.join(message.split())}", file=sys.stderr, flush=True)
