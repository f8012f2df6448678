"""Checkpoints: atomic, readable at any number of ranks, and with an answer when they do not fit."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from processes import Ranks, connected
from torch import Tensor

from fedsys.communication import Placement
from fedsys.errors import InputError
from fedsys.problems import Site
from fedsys.runtime.checkpoint import Checkpoints, Snapshot
from fedsys.runtime.world import World

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
        "rider": torch.randn(CLIENTS, 2, generator=numbers),
    }


def hosted(world: World) -> tuple[Site, dict[str, Tensor], Tensor]:
    """This rank's site, its rows of the fields, and of the rider."""
    site = Site(Placement(CLIENTS, world.rank, world.ranks))
    rows = {name: v[site.hosted.start : site.hosted.stop] for name, v in everything().items()}
    return site, rows, rows.pop("rider")


def save(folder: Path) -> None:
    with connected() as world:
        site, fields, rider = hosted(world)
        Checkpoints(folder, world).save(SNAPSHOT, fields, rider, site)


def load(folder: Path) -> dict[str, Tensor]:
    with connected() as world:
        site, fields, rider = hosted(world)
        empty = {name: torch.zeros_like(field) for name, field in fields.items()}
        checkpoints = Checkpoints(folder, world)
        found = checkpoints.newest()
        assert found == SNAPSHOT
        rider = torch.zeros_like(rider)
        return {**checkpoints.load(found, empty, rider, site), "rider": rider}


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (1, 3), (2, 2), (2, 5), (4, 3), (5, 1)])
def test_what_some_ranks_wrote_any_number_of_ranks_can_read_bit_for_bit(
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
    site, fields, rider = hosted(World())
    for step in steps:
        checkpoints.save(Snapshot(step, 0.0, {}), fields, rider, site)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_complete_one_is_found_and_the_older_ones_go(
    local: Checkpoints, tmp_path: Path
) -> None:
    assert local.newest() is None
    write(local, 3, 20, 100)
    assert local.newest() == Snapshot(100, 0.0, {})
    assert names(tmp_path) == ["step-000000020", "step-000000100"]


def test_as_many_are_kept_as_was_said(tmp_path: Path) -> None:
    write(Checkpoints(tmp_path / "checkpoints", World(), keep=3), 1, 2, 3, 4)
    assert names(tmp_path) == [f"step-{step:09d}" for step in (2, 3, 4)]


def test_one_may_be_written_again_at_the_same_step(local: Checkpoints, tmp_path: Path) -> None:
    write(local, 5, 5)
    assert names(tmp_path) == ["step-000000005"]


def test_a_folder_without_its_snapshot_is_ignored_and_overwritten(
    local: Checkpoints, tmp_path: Path
) -> None:
    write(local, 5, 9)
    (tmp_path / "checkpoints" / "step-000000009" / "snapshot.json").unlink()
    assert local.newest() == Snapshot(5, 0.0, {})
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
    site, fields, rider = hosted(World())
    found = local.newest()
    assert found is not None
    with pytest.raises(InputError, match=f"does not fit this run or is damaged .{reason}") as no:
        local.load(found, {**fields, name: torch.zeros(shape)}, rider, site)
    assert "\n" not in str(no.value)


def test_a_damaged_file_is_refused_in_one_line_and_nothing_else_is_said(
    local: Checkpoints,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(local, 5)
    caplog.set_level(logging.WARNING)
    (file,) = (tmp_path / "checkpoints").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    site, fields, rider = hosted(World())
    found = local.newest()
    assert found is not None
    with pytest.raises(InputError, match="does not fit this run or is damaged") as no:
        local.load(found, fields, rider, site)
    assert "\n" not in str(no.value)
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot write a checkpoint: .*checkpoints"):
        write(Checkpoints(tmp_path / "checkpoints", World()), 5)
