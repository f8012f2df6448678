"""Checkpoints: atomic, readable at any number of ranks, and with an answer when they do not fit."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any

import pytest
import torch
from support.processes import Ranks, connected
from torch import Tensor

from fedsys.core.errors import FedsysError, InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.distributed.world import World
from fedsys.training import checkpoint_files as files
from fedsys.training.checkpoint import Checkpoints, Snapshot
from fedsys.training.checkpoint_files import sealed

CLIENTS = 5
SNAPSHOT = Snapshot(7, 2.5, {"rounds": 3, "bytes_up": 24})


def everything() -> dict[str, Tensor]:
    """Fields of all clients, of several shapes and kinds."""
    numbers = torch.Generator().manual_seed(1)
    shared = torch.randn(4, generator=numbers)
    return {
        "x": torch.randn(CLIENTS, 3, generator=numbers, dtype=torch.float64),
        "shared": shared.expand(CLIENTS, 4),
        "matrix": torch.randn(CLIENTS, 2, 2, generator=numbers),
        "number": torch.randn(CLIENTS, generator=numbers),
        "count": torch.arange(CLIENTS),
        "synchronised_buffers": torch.randn(CLIENTS, 2, generator=numbers),
    }


def hosted(world: World) -> tuple[Site, dict[str, Tensor], Tensor]:
    """This rank's site, its rows of the fields, and of the synchronised_buffers."""
    site = Site(Placement(CLIENTS, world.rank, world.ranks))
    rows = {name: v[site.hosted.start : site.hosted.stop] for name, v in everything().items()}
    return site, rows, rows.pop("synchronised_buffers")


def save(folder: Path) -> None:
    with connected() as world:
        site, fields, synchronised_buffers = hosted(world)
        checkpoints = Checkpoints(folder, world)
        checkpoints.save(SNAPSHOT, fields, synchronised_buffers, site)
        checkpoints.finish()


def save_without(victim: int, folder: Path) -> tuple[str, float]:
    """One rank is killed while it writes; the error of the others, and their seconds."""
    world = World.from_environment()
    world.connect("gloo", timeout=5, startup_timeout=60)
    site, fields, synchronised_buffers = hosted(world)
    checkpoints = Checkpoints(folder, world)
    if world.rank == victim:
        files.write_rows = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    began = monotonic()
    checkpoints.save(SNAPSHOT, fields, synchronised_buffers, site)
    try:
        checkpoints.finish()
    except FedsysError as error:
        return type(error).__name__, monotonic() - began
    return "nothing happened", 0.0


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_dies_while_it_writes_does_not_keep_the_others(
    tmp_path: Path, size: int
) -> None:
    team = Ranks()
    answers = team.attempt(size, save_without, 1, tmp_path, patience=60)
    team.close()
    for rank, (answer, trace) in enumerate(answers):
        if rank != 1:
            assert not trace
            error, seconds = answer
            assert error == "LostRankError"
            assert seconds < 5 + 5
    assert not sealed(tmp_path)


def load(folder: Path) -> dict[str, Tensor]:
    with connected() as world:
        site, fields, synchronised_buffers = hosted(world)
        empty = {name: torch.zeros_like(field) for name, field in fields.items()}
        checkpoints = Checkpoints(folder, world)
        found = checkpoints.newest()
        assert found == SNAPSHOT
        synchronised_buffers = torch.zeros_like(synchronised_buffers)
        return {
            **checkpoints.load(found, empty, synchronised_buffers, site),
            "synchronised_buffers": synchronised_buffers,
        }


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (1, 3), (2, 2), (2, 5), (4, 3), (5, 1)])
def test_a_checkpoint_can_be_read_on_any_number_of_ranks_bit_for_bit(
    ranks: Ranks, tmp_path: Path, writers: int, readers: int
) -> None:
    ranks(writers, save, tmp_path)
    parts = ranks(readers, load, tmp_path)
    for name, rows in everything().items():
        assert torch.equal(torch.cat([part[name] for part in parts]), rows), name


# One process.


@pytest.fixture
def local(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", World(), every=3)


def write(checkpoints: Checkpoints, *steps: int) -> None:
    site, fields, synchronised_buffers = hosted(World())
    for step in steps:
        checkpoints.save(Snapshot(step, 0.0, {}), fields, synchronised_buffers, site)
    checkpoints.finish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_complete_one_is_found_and_the_older_ones_go(
    local: Checkpoints, tmp_path: Path
) -> None:
    assert local.newest() is None
    write(local, 3, 20, 100)
    assert local.newest() == Snapshot(100, 0.0, {})
    assert names(tmp_path) == ["step-000000020", "step-000000100"]


def test_the_configured_number_of_checkpoints_is_kept(tmp_path: Path) -> None:
    write(Checkpoints(tmp_path / "checkpoints", World(), keep=3), 1, 2, 3, 4)
    assert names(tmp_path) == [f"step-{step:09d}" for step in (2, 3, 4)]


def test_one_may_be_written_again_at_the_same_step(local: Checkpoints, tmp_path: Path) -> None:
    write(local, 5, 5)
    assert names(tmp_path) == ["step-000000005"]


def test_an_incomplete_checkpoint_is_ignored_and_removed(
    local: Checkpoints, tmp_path: Path
) -> None:
    write(local, 5)
    leftover = tmp_path / "checkpoints" / ".step-000000009.partial"
    leftover.mkdir()
    (leftover / "snapshot.json").write_text("{}")
    assert local.newest() == Snapshot(5, 0.0, {})
    write(local, 9)
    assert local.newest() == Snapshot(9, 0.0, {})
    assert not leftover.exists()


def test_no_resume_finds_nothing(local: Checkpoints, tmp_path: Path) -> None:
    write(local, 5)
    assert Checkpoints(tmp_path / "checkpoints", World(), resume=False).newest() is None


def test_one_is_due_every_so_many_rounds_or_never(tmp_path: Path) -> None:
    every = Checkpoints(tmp_path, World(), every=3)
    assert [round_ for round_ in range(1, 10) if every.is_due(round_)] == [3, 6, 9]
    never = Checkpoints(tmp_path, World(), every=0)
    assert not any(never.is_due(round_) for round_ in range(1, 10))


def test_its_files_hold_no_code(local: Checkpoints, tmp_path: Path) -> None:
    write(local, 5)
    files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}


# Answers.


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [("x", (CLIENTS, 9), "Size mismatch"), ("momentum", (CLIENTS, 3), "Missing key")],
)
def test_a_state_of_other_shapes_or_names_is_refused_in_one_line(
    local: Checkpoints, name: str, shape: tuple[int, ...], reason: str
) -> None:
    write(local, 5)
    site, fields, synchronised_buffers = hosted(World())
    found = local.newest()
    assert found is not None
    with pytest.raises(InputError, match=f"does not fit this run or is damaged .{reason}") as no:
        local.load(found, {**fields, name: torch.zeros(shape)}, synchronised_buffers, site)
    assert "\n" not in str(no.value)


DAMAGES: dict[str, Callable[[bytes, Random], bytes | None]] = {
    "a bit flips": lambda old, dice: flipped(old, dice.randrange(8 * len(old))),
    "the end is cut off": lambda old, dice: old[: dice.randrange(len(old))],
    "the file is gone": lambda old, dice: None,
    "it is garbage": lambda old, dice: dice.randbytes(len(old)),
    "something was added": lambda old, dice: old + dice.randbytes(1 + dice.randrange(9)),
    "a pickle that would run code": lambda old, dice: pickle.dumps(Bomb()),
}


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def flipped(old: bytes, bit: int) -> bytes:
    new = bytearray(old)
    new[bit // 8] ^= 1 << bit % 8
    return bytes(new)


def test_each_of_a_hundred_corrupt_checkpoints_is_skipped_and_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", World(), warn=said.append)
    write(checkpoints, 5, 9)
    newest = tmp_path / "checkpoints" / "step-000000009"
    dice = Random(0)
    for turn in range(100):
        file = dice.choice(sorted(newest.iterdir()))
        damage = dice.choice(sorted(DAMAGES))
        old = file.read_bytes()
        new = DAMAGES[damage](old, dice)
        file.unlink() if new is None else file.write_bytes(new)
        assert checkpoints.newest() == Snapshot(5, 0.0, {}), f"{damage} in {file.name}"
        assert len(said) == turn + 1
        assert str(newest) in said[-1]
        assert "\n" not in said[-1]
        file.write_bytes(old)
    assert checkpoints.newest() == Snapshot(9, 0.0, {})
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "exploded").exists()


def test_a_snapshot_that_someone_wrote_with_its_checksum_is_still_checked(
    local: Checkpoints, tmp_path: Path
) -> None:
    write(local, 5)
    file = tmp_path / "checkpoints" / "step-000000005" / "snapshot.json"
    honest = json.loads(file.read_text())
    honest.pop("checksum")
    for change in ({"step": 6}, {"step": "5"}, {"traffic": {"__class__": 1}}, {"seconds": []}):
        content = {**honest, **change}
        text = json.dumps(content, sort_keys=True).encode()
        file.write_text(json.dumps({**content, "checksum": hashlib.sha256(text).hexdigest()}))
        with pytest.raises(InputError, match=r"all checkpoints in .* are damaged"):
            local.newest()


def test_without_a_valid_checkpoint_nothing_is_started_or_removed(
    local: Checkpoints, tmp_path: Path
) -> None:
    write(local, 5)
    (tmp_path / "checkpoints" / "step-000000005" / "snapshot.json").unlink()
    with pytest.raises(InputError, match=r"all checkpoints in .* are damaged; choose another"):
        local.newest()
    assert names(tmp_path) == ["step-000000005"]


# By the clock, and while training goes on.


def minutes(folder: Path) -> list[int]:
    """The rounds after which this rank writes one, with a clock that is not the others'."""
    with connected() as world:
        checkpoints = Checkpoints(folder, world, every=0, minutes=1)
        site, fields, synchronised_buffers = hosted(world)
        due = []
        for round_ in range(1, 40):
            world.transport.all_reduce(torch.zeros(1))
            if round_ in (5 + world.rank, 20 + world.rank):
                checkpoints._saved -= 61
            if checkpoints.is_due(round_):
                due.append(round_)
                checkpoints.save(Snapshot(round_, 0.0, {}), fields, synchronised_buffers, site)
        checkpoints.finish()
        return due


def test_after_some_minutes_all_ranks_write_one_after_the_same_round(
    ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks(3, minutes, tmp_path) == 3 * [[8, 23]]
    assert [path.name for path in sealed(tmp_path)] == ["step-000000008", "step-000000023"]


def test_changes_of_the_state_during_writing_are_not_in_the_checkpoint(
    local: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = Event()
    write_rows = files.write_rows

    def slowly(*arguments: Any) -> str:
        may_write.wait(30)
        return write_rows(*arguments)

    monkeypatch.setattr(files, "write_rows", slowly)
    site, fields, synchronised_buffers = hosted(World())
    before = {name: field.clone() for name, field in fields.items()}
    local.save(Snapshot(5, 0.0, {}), fields, synchronised_buffers, site)
    assert local.newest() is None  # it is not complete, and we are not kept
    fields["x"].zero_()
    may_write.set()
    local.finish()
    assert torch.equal(
        local.load(Snapshot(5, 0.0, {}), fields, synchronised_buffers, site)["x"], before["x"]
    )


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file, not a folder")
    with pytest.raises(
        InputError, match=r"cannot write a checkpoint to .*checkpoints: File exists"
    ):
        write(Checkpoints(tmp_path / "checkpoints", World()), 5)
