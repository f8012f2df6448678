"""Read the files of a run directory: every value is checked, and unreadable content is reported.

Run directories are copied, edited by hand, truncated by crashes and received from other people.
Every reader (resume, report, table, reproduce) uses this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from fedsys.core.metrics import BOOKKEEPING, Record
from fedsys.training.redaction import redacted

METRICS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.yaml"
FINAL, CHECKPOINTS = "final.safetensors", "checkpoints"
_LARGEST_SETTINGS = 4_000_000
"""In bytes; a config.yaml has a few thousand."""
_SHOWN_LINES = 5


class UnreadableError(Exception):
    """A file exists but cannot be read as what it should be; the message names it and says why."""


@dataclass(frozen=True)
class Metrics:
    """The valid records of a metrics.jsonl, and the numbers of the invalid lines, from 1."""

    records: list[Record]
    lines: list[bytes]
    """The lines of the records, without their line breaks."""
    unread: list[int]
    is_cut: bool
    """Whether the last line is invalid and has no line break, as after a crash."""

    def lost(self) -> list[int]:
        """Return the unreadable lines, without the one that a crash truncated."""
        return self.unread[:-1] if self.is_cut and self.unread else self.unread


def read_metrics(path: Path) -> Metrics:
    """Read a metrics.jsonl; a file that does not exist has no records."""
    content = read_bytes(path) or b""
    records: list[Record] = []
    kept: list[bytes] = []
    unread: list[int] = []
    *lines, rest = content.split(b"\n")
    for number, line in enumerate([*lines, rest] if rest else lines, start=1):
        try:
            records.append(record_of(json.loads(line.decode())))
            kept.append(line)
        except (ValueError, RecursionError):
            unread.append(number)
    return Metrics(records, kept, unread, bool(rest) and unread[-1:] == [len(lines) + 1])


def named_lines(numbers: list[int]) -> str:
    """Return line numbers as text: `line 3`, or `lines 3, 4, 5, 6, 7 and 12 more`."""
    shown = ", ".join(map(str, numbers[:_SHOWN_LINES]))
    more = f" and {len(numbers) - _SHOWN_LINES} more" if len(numbers) > _SHOWN_LINES else ""
    return f"line{'' if len(numbers) == 1 else 's'} {shown}{more}"


def record_of(content: object) -> Record:
    """Return the content if it is a record: values by name, with its step and round."""
    record = values_of(content)
    for name in _PLACE:
        value = record.get(name, -1)
        if not is_number(value) or not isfinite(value) or value < 0:
            raise ValueError("a record has a step and a round")
    return record


_PLACE = ("step", "round")


def stopped_early(summary: Mapping[str, Any], patience: int | None) -> bool:
    """Return whether a run was ended by early stopping, and would be with this patience too."""
    waited = summary.get("records_without_improvement")
    return patience is not None and is_number(waited) and waited >= patience  # type: ignore[operator]


def values_of(content: object) -> Record:
    """Return the content if it is a dictionary of numbers, or of lists of numbers, by name.

    Lists are for metrics of each client, and have null for a client without a value. The columns
    that say where in the run a record is, and what it has cost, are numbers.
    """
    if not isinstance(content, dict):
        raise ValueError("not values by name")
    for name, value in content.items():
        if not (is_number(value) or (name not in BOOKKEEPING and _is_list_of_clients(value))):
            raise ValueError("not values by name")
    return content


def _is_list_of_clients(value: object) -> bool:
    return isinstance(value, list) and all(one is None or is_number(one) for one in value)


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number in the range of a float; NaN and infinity are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a regular file, None if the path does not exist."""
    try:
        if path.is_file():
            return path.read_bytes()
        if path.is_symlink() or path.exists():
            what = "a folder" if path.is_dir() else "not a regular file"
            raise UnreadableError(f"{path} is {what}")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror or error})") from error
    return None


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file, None if there is no such file."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path} cannot be read (not JSON)") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"{path} cannot be read (not an object)")
    return found


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of a config.yaml without secrets, None if there is no such file.

    The file is parsed as plain YAML without interpolation. Aliases are refused: with a few of them
    a small file expands to gigabytes.
    """
    content = read_bytes(path)
    if content is None:
        return None
    from yaml import YAMLError

    try:
        if len(content) > _LARGEST_SETTINGS:
            raise ValueError("it is too large")
        found = _plain_yaml(content.decode())
    except (YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise UnreadableError(f"{path} cannot be read (not YAML)") from error
    if not isinstance(found, dict) or not found:
        raise UnreadableError(f"{path} cannot be read (not settings by name)")
    return {str(name): value for name, value in redacted(found).items()}


def _plain_yaml(text: str) -> Any:
    from yaml import SafeLoader, load, nodes
    from yaml.composer import ComposerError
    from yaml.events import AliasEvent

    class Loader(SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: nodes.Node, index: int) -> nodes.Node:
            if self.check_event(AliasEvent):
                raise ComposerError(None, None, "an alias", self.peek_event().start_mark)
            return super().compose_node(parent, index)

    return load(text, Loader)


def read_summary(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a summary without the entries of a wrong type, and a line about those."""
    try:
        found = read_object(path)
    except UnreadableError as error:
        return {}, [f"{error} and is left out"]
    if found is None:
        return {}, []
    wrong = [name for name, value in found.items() if not _fits(name, value)]
    kept = {name: value for name, value in found.items() if name not in wrong}
    problems = [f"{path}: {', '.join(map(repr, wrong))} cannot be read and is left out"]
    return redacted(kept), problems if wrong else []


def _fits(name: str, value: Any) -> bool:
    """Return whether an entry of a summary has the type that its readers expect."""
    if name == "final":
        return bool(value) and _is_values(value)
    if name == "choices":
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    if name == "seconds_waited_by_rank":
        return isinstance(value, list) and all(is_number(v) and isfinite(v) for v in value)
    if name == "theory":
        return value is None or _is_theory(value)
    return name != "hyperparameters" or isinstance(value, dict)


def _is_values(value: Any) -> bool:
    try:
        return bool(values_of(value))
    except ValueError:
        return False


def _is_theory(value: Any) -> bool:
    bound = value.get("bound") if isinstance(value, dict) else 0
    if bound is None:
        return True
    return isinstance(bound, Mapping) and is_number(bound.get("at_most", 0.0))


def keep_damaged(path: Path) -> Path:
    """Rename a damaged file, so that a new one can be written; return the new path."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept
