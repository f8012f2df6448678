"""Which rank hosts which clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedsys.errors import InputError, require


@dataclass(frozen=True)
class Placement:
    """M clients in contiguous blocks over the ranks, the first ranks hosting one more if needed."""

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
        """The clients hosted by a rank."""
        share, extra = divmod(self.clients, self.ranks)
        first = rank * share + min(rank, extra)
        return range(first, first + share + (rank < extra))

    @property
    def hosted(self) -> range:
        """The clients hosted here."""
        return self.block(self.rank)

    def host_of(self, client: int) -> int:
        """The rank that hosts a client."""
        return next(r for r in range(self.ranks) if client in self.block(r))
