"""The kinds of problems, each with the protocol that its oracles satisfy."""

from __future__ import annotations

from fedsys.core.oracles import (
    Bilevel,
    Compositional,
    Grouped,
    Minimax,
    Minimisation,
    Monitored,
    Oracle,
    SharedBilevel,
    Variational,
)

KINDS: dict[str, type] = {
    "variational": Variational,
    "minimax": Minimax,
    "minimisation": Minimisation,
    "compositional": Compositional,
    "bilevel": Bilevel,
    "shared_bilevel": SharedBilevel,
    "grouped": Grouped,
    "monitored": Monitored,
}
"""The protocol of each kind of problem, by the name that `Algorithm.kind` and errors use."""


def kinds_of(oracle: Oracle) -> list[str]:
    """Return the names of the kinds that an oracle serves."""
    found = [name for name, kind in KINDS.items() if isinstance(oracle, kind)]
    return [name for name in found if name != "bilevel" or "shared_bilevel" not in found]
