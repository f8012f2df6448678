"""How ranks agree on a round to do something after, without a collective."""

from __future__ import annotations

from fedsys.core.errors import LostRankError
from fedsys.distributed.world import World


class Agreement:
    """Something that all ranks want sooner or later, and do after the same round.

    A rank that wants it leaves a note in the store at its next round's end and goes on. A rank can
    end a round only after all have ended the one before it, so the first round after the latest of
    those notes ends with all of them in everybody's sight: that one it is.

    Args:
        world: the ranks.
        topic: what they agree on, once or several times.
    """

    def __init__(self, world: World, topic: str) -> None:
        self._world, self._topic = world, topic
        self._times = 0
        self._has_left_note = False

    def holds(self, rounds: int) -> bool:
        """Whether this is the round; a rank that wants it asks at the end of every one."""
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
        """It was done, on all ranks; what they want from now on is the next time."""
        self._times += 1
        self._has_left_note = False

    def _note(self, rank: int) -> str:
        return f"{self._topic}, time {self._times}, rank {rank}"
