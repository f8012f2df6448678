"""Agree on the round after which all ranks do something, without a collective."""

from __future__ import annotations

from fedsys.core.errors import LostRankError
from fedsys.distributed.world import World


class Agreement:
    """An action that every rank requests eventually, and that all ranks take after the same round.

    A rank that requests the action writes the number of its round to the store at the end of that
    round and continues. A rank can end a round only after all ranks have ended the previous one.
    At the end of the first round after the latest number, all ranks therefore see all numbers, and
    take the action.

    Args:
        world: the ranks.
        topic: what they agree on, once or several times.
    """

    def __init__(self, world: World, topic: str) -> None:
        self._world, self._topic = world, topic
        self._times = 0
        self._has_left_note = False

    def holds(self, rounds: int) -> bool:
        """Return whether this is the round; call it after every round once the action is wanted."""
        if self._world.ranks == 1:
            return True
        try:
            return self._all_agree(rounds)
        except RuntimeError as error:
            raise LostRankError("the store of the ranks is gone") from error

    def _all_agree(self, rounds: int) -> bool:
        here, store = (self._world.meetings, rounds), self._world.store
        if not self._has_left_note:
            self._has_left_note = True
            store.set(self._note(self._world.rank), " ".join(map(str, here)))
        notes = [self._note(rank) for rank in range(self._world.ranks)]
        if not store.check(notes):
            return False
        return here > max(tuple(map(int, store.get(note).split())) for note in notes)

    def begin_again(self) -> None:
        """Start the next agreement, after all ranks have taken the action."""
        self._times += 1
        self._has_left_note = False

    def _note(self, rank: int) -> str:
        return f"{self._topic}, time {self._times}, rank {rank}"
