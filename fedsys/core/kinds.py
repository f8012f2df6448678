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


_HIDDEN_BY = {"shared_bilevel": {"bilevel", "compositional"}, "bilevel": {"compositional"}}
"""Kinds whose methods an oracle of another kind happens to have, with another meaning."""


def kinds_of(oracle: Oracle) -> list[str]:
    """Return the names of the kinds that an oracle serves."""
    found = [name for name, kind in KINDS.items() if isinstance(oracle, kind)]
    hidden = set[str]().union(*(_HIDDEN_BY.get(name, ()) for name in found))
    return [name for name in found if name not in hidden]
