"""What clients must agree on before training: a schema, exchanged as JSON."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedsys.communication.values import integer, text
from fedsys.core.errors import InputError
from fedsys.core.site import Site

NUMBER, TEXT = "number", "text"


@dataclass(frozen=True)
class Schema:
    """The form of one client's samples.

    Attributes:
        shape: the shape of an input; None where it follows from the columns.
        dtype: the type of the inputs.
        columns: the kind of each column of a table, "number" or "text", in order.
        classes: the number of classes, from the labels that the client has.
        values: the distinct values of text columns, if the user allows that they are shared.
        what: what a column is, in errors.
    """

    shape: tuple[int, ...] | None = None
    dtype: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    classes: int = 0
    values: dict[str, list[str]] = field(default_factory=dict)
    what: str = "column"

    def as_json(self) -> dict[str, Any]:
        """Return the schema as plain values."""
        return {
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "columns": [[name, kind] for name, kind in self.columns.items()],
            "classes": self.classes,
            "values": self.values,
            "what": self.what,
        }

    @classmethod
    def parse(cls, value: Any) -> Schema:
        """Return the schema of plain values; raise TypeError or ValueError for others."""
        shape = value["shape"]
        return cls(
            None if shape is None else tuple(integer(size) for size in shape),
            text(value["dtype"]),
            {text(name): text(kind) for name, kind in value["columns"]},
            integer(value["classes"]),
            {text(n): [text(one) for one in found] for n, found in value["values"].items()},
            text(value["what"]),
        )


def agreed(owner: str, schemas: Mapping[int, Schema], site: Site) -> Schema:
    """Return the schema of all clients; name the first client that differs, and how.

    The number of classes is the largest, and values are the union over the clients.

    Args:
        owner: the name of the data set, for errors.
        schemas: the schemas of the hosted clients.
        site: the site that hosts them.
    """
    mine = [[client, socket.gethostname(), one.as_json()] for client, one in schemas.items()]
    ranks = site.peers.gather(mine, _parse_clients)
    every = sorted((one for rank in ranks for one in rank), key=lambda one: one[0])
    first_client, _, first = every[0]
    for client, host, schema in every[1:]:
        difference = _difference(schema, first, first_client)
        if difference is not None:
            where = f" (host {host})" if site.placement.ranks > 1 else ""
            raise InputError(f"{owner}: client {client}{where}: {difference}")
    names = {name: None for _, _, schema in every for name in schema.values}
    union = {n: sorted({v for _, _, s in every for v in s.values.get(n, ())}) for n in names}
    return replace(first, classes=max(s.classes for _, _, s in every), values=union)


def named_client(client: int, site: Site) -> str:
    """Return the name of a client in errors, with its host if there are several ranks."""
    where = f" (host {socket.gethostname()})" if site.placement.ranks > 1 else ""
    return f"client {client}{where}"


def _difference(schema: Schema, first: Schema, client: int) -> str | None:
    """Return how a schema differs from that of the first client; None if it does not."""
    there = f"at client {client}"
    for name, kind in first.columns.items():
        if name not in schema.columns:
            return f"{schema.what} {name!r} is missing"
        if schema.columns[name] != kind:
            return f"column {name!r} is {_kind(schema.columns[name])}, and {_kind(kind)} {there}"
    for name in schema.columns:
        if name not in first.columns:
            return f"{schema.what} {name!r} is not {there}"
    if schema.shape != first.shape:
        return f"inputs have shape {_shape(schema.shape)}, and {_shape(first.shape)} {there}"
    if schema.dtype != first.dtype:
        return f"inputs are {schema.dtype}, and {first.dtype} {there}"
    return None


def _kind(kind: str) -> str:
    return "text" if kind == TEXT else "a number"


def _shape(shape: Sequence[int] | None) -> str:
    return str(list(shape or ()))


def _parse_clients(value: Any) -> list[tuple[int, str, Schema]]:
    return [(integer(c), text(host), Schema.parse(schema)) for c, host, schema in value]
