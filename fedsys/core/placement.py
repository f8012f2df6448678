"""Placement of the clients on the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from fedsys.core.errors import InputError, require


@dataclass(frozen=True)
class Placement:
    """Clients 0..M-1 in contiguous blocks, one per rank; block sizes differ by at most one.

    Args:
        clients: M.
        rank: the rank of this process.
        ranks: the number of processes, at most M.
    """

    clients: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        require(self.clients >= 1, "placement", "clients", self.clients, "at least 1")
        if self.clients < self.ranks:
            raise InputError(
                f"clients={self.clients} is fewer than the {self.ranks} ranks; "
                f"use clients>={self.ranks} or start at most {self.clients} processes"
            )

    def block(self, rank: int) -> range:
        """Return the clients that `rank` hosts; the first ranks host one more where M is uneven."""
        share, extra = divmod(self.clients, self.ranks)
        first = rank * share + min(rank, extra)
        return range(first, first + share + (rank < extra))

    @property
    def hosted(self) -> range:
        """The clients that this rank hosts."""
        return self.block(self.rank)

    def host_of(self, client: int) -> int:
        """Return the rank that hosts `client`."""
        return next(r for r in range(self.ranks) if client in self.block(r))
