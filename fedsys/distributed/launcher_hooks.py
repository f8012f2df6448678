"""The interface between the launcher and torchrun, independent of torch's classes.

`fedsys.distributed.torch_internals` connects these hooks to torchrun.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist


class RankFailedError(Exception):
    """A rank of this host failed first, with this exit code (negative: minus a signal)."""

    def __init__(self, rank: int, exit_code: int) -> None:
        super().__init__(rank, exit_code)
        self.rank, self.exit_code = rank, exit_code


class LauncherStoppedError(Exception):
    """A signal stopped the launcher."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class RendezvousFailedError(Exception):
    """The launchers did not meet; the message is torch's, one line."""


class LauncherHooks(Protocol):
    """The actions of fedsys at the steps of torchrun's agent, which runs the ranks of one host."""

    seconds_to_checkpoint: int
    """Time that ranks have to end when another host joins."""

    def on_rendezvous(self, number: int) -> None:
        """Note the number of this rendezvous, which is the same on all hosts."""

    def starting(
        self, ranks: int, process_ids: Callable[[], Iterable[int]]
    ) -> AbstractContextManager[None]:
        """Return the context in which the ranks of this host are started.

        Args:
            ranks: number of ranks on all hosts.
            process_ids: returns the process ids of this host's ranks that were started.
        """

    def closing(
        self, exit_codes: Sequence[int], is_one_host: bool, number: signal.Signals, seconds: int
    ) -> tuple[signal.Signals, int]:
        """Return the signal that ends the remaining ranks, and the seconds until SIGKILL.

        Args:
            exit_codes: of the ranks that failed.
            is_one_host: whether all ranks are on this host.
            number: the signal that torchrun would send.
            seconds: the time that torchrun would wait.
        """

    def may_restart(self, exit_codes: Sequence[int]) -> bool:
        """Return whether ranks that ended with these codes may be started again."""


@dataclass(frozen=True)
class Meeting:
    """The result of a rendezvous for one launcher.

    Attributes:
        store: shared by the launchers.
        host: number of this host.
        hosts: number of hosts.
        port: of the ranks' store, on the loopback interface of this host.
    """

    store: dist.Store
    host: int
    hosts: int
    port: int


class ElasticMeeting(Protocol):
    """The store of the ranks in a run whose hosts may leave and return."""

    launchers: dist.Store
    """The store where the launchers meet."""

    def close(self) -> None:
        """Close the ranks' store of the rendezvous before, if there was one."""

    def host(self, address: str) -> Any:
        """Host a store for the ranks; return an object with the `port` for the other hosts."""

    def port_of(self, address: str, port: int) -> int:
        """Return the port on the loopback interface that leads to the hosted store."""
