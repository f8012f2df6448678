"""Ways to damage a run directory, and what a report and a resume have to make of it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Damage = Callable[[Path], Any]
METRICS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.yaml"


@dataclass(frozen=True)
class Case:
    """A damage, the exit codes of the report and the resume, and what both have to name."""

    damage: Damage
    report: int = 0
    resume: int = 0
    names: str = ""


def replaced(name: str, content: bytes | str) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda run: (run / name).write_bytes(data)


def line(content: bytes | str) -> Damage:
    """The second of the records is this line instead."""
    data = content.encode() if isinstance(content, str) else content

    def damage(run: Path) -> None:
        lines = (run / METRICS).read_bytes().split(b"\n")
        (run / METRICS).write_bytes(b"\n".join([lines[0], data, *lines[2:]]))

    return damage


def instead(name: str, make: Callable[[Path], Any]) -> Damage:
    """Something else of that name."""

    def damage(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return damage


def gone(*names: str) -> Damage:
    def damage(run: Path) -> None:
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def summary(**changes: Any) -> Damage:
    def damage(run: Path) -> None:
        content = json.loads((run / SUMMARY).read_text())
        (run / SUMMARY).write_text(json.dumps({**content, **changes}))

    return damage


def forged(**changes: Any) -> Damage:
    """The snapshot of every checkpoint says something else, with a checksum that fits."""

    def damage(run: Path) -> None:
        for path in (run / "checkpoints").glob("step-*/snapshot.json"):
            content = json.loads(path.read_text())
            del content["checksum"]
            for name, value in changes.items():
                old = content.get(name)
                content[name] = {**old, **value} if isinstance(value, dict) and old else value
            text = json.dumps(content, sort_keys=True).encode()
            path.write_text(json.dumps({**content, "checksum": hashlib.sha256(text).hexdigest()}))

    return damage


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def in_newest(name: str, make: Callable[[Path], Any]) -> Damage:
    def damage(run: Path) -> None:
        (newest(run) / name).unlink()
        make(newest(run) / name)

    return damage


def edited(old: str, new: str) -> Damage:
    def damage(run: Path) -> None:
        text = (run / CONFIG).read_text()
        assert old in text
        (run / CONFIG).write_text(text.replace(old, new))

    return damage


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def bomb(path: Path) -> None:
    np.savez(path, client=np.array([Bomb()], dtype=object), classes=np.array([1]))


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
SNAPSHOT, ROWS = "snapshot.json", "rank-00000.safetensors"

CASES = {
    # metrics.jsonl
    "a number for a record": Case(line("42"), names="line 2"),
    "an empty record": Case(line("{}"), names="line 2"),
    "null": Case(line("null"), names="line 2"),
    "a list": Case(line("[1, 2]"), names="line 2"),
    "a text": Case(line('"step"'), names="line 2"),
    "a line that is cut": Case(line('{"step": 5, "rou'), names="line 2"),
    "a line that is not UTF-8": Case(
        line(b'{"step": 5, "round": 1, "\xff\xfe": 1}'), names="line 2"
    ),
    "a line of zeros": Case(line(b"\0" * 512), names="line 2"),
    "a blank line": Case(line(""), names="line 2"),
    "a text for a number": Case(line('{"step": 5, "round": 1, "gap": "x"}'), names="line 2"),
    "true for a number": Case(line('{"step": 5, "round": true}'), names="line 2"),
    "a record within a record": Case(line('{"step": 5, "round": {"a": 1}}'), names="line 2"),
    "no step": Case(line('{"round": 1, "gap": 1}'), names="line 2"),
    "a step below 0": Case(line('{"step": -5, "round": 1}'), names="line 2"),
    "a step that is NaN": Case(line('{"step": NaN, "round": 1}'), names="line 2"),
    "a number of 400 digits": Case(
        line('{"step": 5, "round": 1, "a": 1%s}' % ("0" * 400)), names="line 2"
    ),
    "a hundred thousand brackets": Case(line("[" * 100_000), names="line 2"),
    "a metric that is a path": Case(
        line('{"step": 5, "round": 1, "../../x": 1, "/tmp/fedsys-x": 1}')
    ),
    "a metric with a formula": Case(line(r'{"step": 5, "round": 1, "$\\frac{": 1, "[/red]": 2}')),
    "a metric with HTML": Case(line('{"step": 5, "round": 1, "</script><b>{{data}}": 1}')),
    "the last line is cut": Case(lambda run: cut(run / METRICS, 9)),
    "metrics.jsonl is empty": Case(replaced(METRICS, "")),
    "metrics.jsonl is gone": Case(gone(METRICS)),
    "metrics.jsonl is a folder": Case(instead(METRICS, Path.mkdir), names="is a folder"),
    "metrics.jsonl is a pipe": Case(instead(METRICS, os.mkfifo), names="not a regular file"),
    "metrics.jsonl leads nowhere": Case(
        instead(METRICS, lambda p: p.symlink_to("x")), names="not a regular file"
    ),
    "metrics.jsonl leads to itself": Case(
        instead(METRICS, lambda p: p.symlink_to(p)), names=METRICS
    ),
    "metrics.jsonl is an image": Case(replaced(METRICS, b"\x89PNG\r\n\x1a\n\0\xff"), names="line"),
    # config.yaml
    "config.yaml is {{{": Case(replaced(CONFIG, "{{{"), names=CONFIG),
    "config.yaml is a list": Case(replaced(CONFIG, "- 1\n- 2\n"), names=CONFIG),
    "config.yaml is a number": Case(replaced(CONFIG, "42"), names=CONFIG),
    "config.yaml is binary": Case(replaced(CONFIG, b"\0\xff\xfe\x01" * 99), names=CONFIG),
    "config.yaml is empty": Case(replaced(CONFIG, ""), names=CONFIG),
    "config.yaml is gone": Case(gone(CONFIG), names=CONFIG),
    "config.yaml is a folder": Case(instead(CONFIG, Path.mkdir), names="is a folder"),
    "config.yaml is UTF-16": Case(replaced(CONFIG, "seed: 0".encode("utf-16")), names=CONFIG),
    "config.yaml would run code": Case(
        replaced(CONFIG, "a: !!python/object/apply:os.mkdir [exploded]"), names=CONFIG
    ),
    "config.yaml would fill the memory": Case(replaced(CONFIG, ALIASES), names=CONFIG),
    "config.yaml is too deep": Case(replaced(CONFIG, "[" * 50_000), names=CONFIG),
    "config.yaml is too large": Case(replaced(CONFIG, "a: " + "x" * 5_000_000), names=CONFIG),
    "config.yaml is cut in a word": Case(lambda run: cut(run / CONFIG, 9)),
    "config.yaml has another seed": Case(edited("seed: 0", "seed: 9"), resume=2),
    "config.yaml has half an interpolation": Case(edited("seed: 0", "seed: '${'"), resume=2),
    "no config.yaml and no checkpoint": Case(gone(CONFIG, "checkpoints"), resume=2, names=CONFIG),
    "no config.yaml and no settings": Case(
        lambda run: [gone(CONFIG)(run), forged(settings=None)(run)], resume=2, names=CONFIG
    ),
    # summary.json
    "summary.json is cut": Case(replaced(SUMMARY, '{"final": '), names=SUMMARY),
    "summary.json is a list": Case(replaced(SUMMARY, "[]"), names=SUMMARY),
    "summary.json is binary": Case(replaced(SUMMARY, b"\xff\0"), names=SUMMARY),
    "summary.json is a folder": Case(instead(SUMMARY, Path.mkdir), names="is a folder"),
    "summary.json is gone": Case(gone(SUMMARY)),
    "the last record is a number": Case(summary(final=42), names="'final'"),
    "the last record is empty": Case(summary(final={}), names="'final'"),
    "the last record has a text": Case(summary(final={"step": "x"}), names="'final'"),
    "the choices are a number": Case(summary(choices=42), names="'choices'"),
    "a choice is a number": Case(summary(choices={"algorithm": 3}), names="'choices'"),
    "the waits are a text": Case(
        summary(seconds_waited_by_rank="abc"), names="'seconds_waited_by_rank'"
    ),
    "a wait is NaN": Case(
        summary(seconds_waited_by_rank=[1.0, float("nan")]), names="'seconds_waited_by_rank'"
    ),
    "the theory is a number": Case(summary(theory=5), names="'theory'"),
    "the bound is a text": Case(summary(theory={"bound": {"at_most": "x"}}), names="'theory'"),
    "no metrics and no summary": Case(gone(METRICS, SUMMARY), report=2),
    "a finished run without metrics": Case(gone(METRICS)),
    # other files
    "final.safetensors is garbage": Case(replaced("final.safetensors", b"\xff" * 99)),
    "final.safetensors is gone": Case(gone("final.safetensors")),
    "partition.npz is garbage": Case(replaced("partition.npz", b"PK\3\4\xff")),
    "partition.npz would run code": Case(lambda run: bomb(run / "partition.npz")),
    "partition.npz is a pickle": Case(
        lambda run: (run / "partition.npz").write_bytes(pickle.dumps(Bomb()))
    ),
    "partition.npz has a billion clients": Case(
        lambda run: np.savez(run / "partition.npz", client=np.array([10**9]), classes=np.array([1]))
    ),
    "partition.npz is for nobody": Case(
        lambda run: np.savez(run / "partition.npz", client=np.zeros(0), classes=np.zeros(0))
    ),
    # checkpoints
    "checkpoints are gone": Case(gone("checkpoints")),
    "checkpoints is a file": Case(instead("checkpoints", Path.touch), resume=2),
    "the newest snapshot is gone": Case(in_newest(SNAPSHOT, lambda p: None)),
    "the newest snapshot is {}": Case(in_newest(SNAPSHOT, lambda p: p.write_text("{}"))),
    "the newest snapshot is 42": Case(in_newest(SNAPSHOT, lambda p: p.write_text("42"))),
    "the newest snapshot is binary": Case(in_newest(SNAPSHOT, lambda p: p.write_bytes(b"\xff\0"))),
    "the newest snapshot is a pipe": Case(in_newest(SNAPSHOT, os.mkfifo)),
    "the newest snapshot is a folder": Case(in_newest(SNAPSHOT, Path.mkdir)),
    "the newest rows are gone": Case(in_newest(ROWS, lambda p: None)),
    "the newest rows are empty": Case(in_newest(ROWS, Path.touch)),
    "the newest rows are a pipe": Case(in_newest(ROWS, os.mkfifo)),
    "the newest rows lead elsewhere": Case(in_newest(ROWS, lambda p: p.symlink_to("/dev/zero"))),
    "a forged step below 0": Case(forged(step=-5), resume=2),
    "a step that is true": Case(forged(step=True), resume=2),
    "a step that is a text": Case(forged(step="20"), resume=2),
    "a step of 30 digits": Case(forged(step=10**30), resume=2),
    "a step of another checkpoint": Case(forged(step=7), resume=2),
    "seconds that are NaN": Case(forged(seconds=float("nan")), resume=2),
    "seconds below 0": Case(forged(seconds=-1), resume=2),
    "seconds that are a list": Case(forged(seconds=[]), resume=2),
    "traffic that is a list": Case(forged(traffic=[]), resume=2),
    "rounds below 0": Case(forged(traffic={"rounds": -1}), resume=2),
    "more rounds than steps": Case(forged(traffic={"rounds": 10**9}), resume=2),
    "half a round": Case(forged(traffic={"rounds": 1.5}), resume=2),
    "bytes without end": Case(forged(traffic={"bytes_up": 10**40}), resume=2),
    "a count of nothing": Case(forged(traffic={"__class__": 1}), resume=2),
    "a memory of petabytes": Case(forged(memory={"sent.0.0": 10**15}), resume=2),
    "a memory below 0": Case(forged(memory={"sent.0.0": -1}), resume=2),
    "a memory named like a path": Case(forged(memory={"../../x": 3}), resume=2),
    "a memory named like a variable": Case(forged(memory={"x": 3}), resume=2),
    "settings that are a number": Case(forged(settings=42), resume=2),
    "settings of another run": Case(forged(settings={"seed": 9}), resume=2),
    "a checksum of a path": Case(forged(checksums={"../../x": "0"}), resume=2),
    "checksums that are a list": Case(forged(checksums=[1]), resume=2),
    "an entry that no snapshot has": Case(forged(code="import os"), resume=2),
}
