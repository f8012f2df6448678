"""A run is continued with the settings it was started with, or refused; a finished one is left."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import load_file
from support.processes import Done, command

from fedsys.core.errors import InputError
from fedsys.training import config
from fedsys.training.checkpoint_files import sealed, verified
from fedsys.training.compared_settings import AS_USED, compared_settings, differences
from fedsys.training.file_names import check_run_name
from fedsys.training.run_files import read_settings

Command = Callable[..., Done]

GAME = (
    "algorithm=local_sgda",
    "problem=quadratic_game",
    "problem.dim=3",
    "problem.samples=4",
    "problem.batch_size=1",
    "algorithm.local_steps=5",
    "clients=4",
    "dtype=float64",
    "rounds=4",
    "checkpoint.every=2",
    "run.name=mine",
)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


CHANGES = {
    "participation=0.5": "participation=1.0, now 0.5",
    "communicator.batchnorm=local": "communicator.batchnorm=average, now local",
    "algorithm.lr_x=0.25": "algorithm.lr_x=1.0, now 0.25",
}


def test_a_setting_that_can_change_a_number_is_compared_also_without_config_yaml(
    fedsys: Command, tmp_path: Path
) -> None:
    assert fedsys(*GAME).returncode == 0
    refuses(fedsys, tmp_path / "runs/mine", CHANGES)
    (tmp_path / "runs/mine/config.yaml").unlink()
    refuses(fedsys, tmp_path / "runs/mine", CHANGES)


def refuses(fedsys: Command, run: Path, changes: Mapping[str, str]) -> None:
    """Each change is refused in one line that names it, and leaves all files as they are."""
    before = files_of(run)
    for change, said in changes.items():
        done = fedsys(*GAME, "rounds=6", change)
        assert done.returncode == 2, change
        line = done.stderr.splitlines()[-1]
        assert f"was run with {said}" in line, line
        assert "{" not in line, "names of settings, not whole dictionaries"
        assert files_of(run) == before, change


def test_everything_is_compared_but_a_short_list() -> None:
    config.register()
    with initialize_config_dir(str(config.folder()), version_base="1.3"):
        whole = compose("config", ["algorithm=local_sgda", "problem=auc"])
    names = set(compared_settings(OmegaConf.to_container(whole, resolve=True)))
    expected = {
        *("clients", "seed", "dtype", "scale", "participation", "on_nonfinite"),
        *("communicator._target_", "communicator.weights", "communicator.batchnorm"),
        *("communicator.compression", "communicator.keep", "algorithm.lr_x", "algorithm._target_"),
        *("dataset.limit", "dataset.root", "model.hidden", "partition._target_"),
        *("problem.batch_size", "problem.dataset.limit", "problem.model.hidden"),
    }
    assert expected <= names
    groups = ("run", "checkpoint", "logger", "resume", "rounds", "steps", "device")
    assert not [name for name in names if name.partition(".")[0] in groups]
    assert not [name for name in names if name.endswith(("timeout", "backend", "download"))]


def test_settings_that_cannot_change_a_number_may_change(fedsys: Command, tmp_path: Path) -> None:
    assert fedsys(*GAME).returncode == 0
    changed = ("rounds=6", "evaluate_every=1", "checkpoint.keep=1", "device=cpu", "resume=true")
    changed += ("communicator.timeout=50", "communicator.shared_memory=false", "objective=drift")
    done = fedsys(*GAME, *changed)
    assert done.returncode == 0, done.stderr
    assert "continued from step 20" in done.stdout
    assert read_settings(tmp_path / "runs/mine/config.yaml")["rounds"] == 6


THEORY = (
    *("algorithm=momentum_local_sgda", "algorithm.alpha=theory", "problem=quadratic_game"),
    "problem.dim=3",
    *("problem.samples=4", "clients=2", "dtype=float64", "run.name=mine"),
)


STAGES = (
    *("algorithm=localsgdm", "problem=classification", "algorithm.decay_at=[0.5]", "clients=2"),
    *("dataset.limit=50", "run.name=mine"),
)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (THEORY, f"{AS_USED}.alpha="),
        (STAGES, f"{AS_USED}.total_steps="),
    ],
    ids=["a step size of a theorem", "stages"],
)
def test_a_run_whose_hyperparameters_depend_on_its_length_is_not_continued_to_another_length(
    fedsys: Command, tmp_path: Path, settings: tuple[str, ...], named: str
) -> None:
    assert fedsys(*settings, "rounds=2").returncode == 0
    before = files_of(tmp_path / "runs/mine")
    done = fedsys(*settings, "rounds=4")
    assert done.returncode == 2, done.stdout
    assert f"was run with {named}" in done.stderr
    assert "these depend on the length of the run" in done.stderr
    assert files_of(tmp_path / "runs/mine") == before


def test_a_checkpoint_without_settings_needs_its_config_yaml(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("fedsys.training.recorded_run.compared_settings", lambda *_: None)
        assert fedsys(*GAME).returncode == 0
    run = tmp_path / "runs/mine"
    assert verified(sealed(run / "checkpoints")[-1]).settings == {}
    before = files_of(run)
    (run / "config.yaml").rename(tmp_path / "config.yaml")
    done = fedsys(*GAME, "rounds=6")
    assert done.returncode == 2
    assert "does not say which settings it was written with" in done.stderr
    (tmp_path / "config.yaml").rename(run / "config.yaml")
    assert files_of(run) == before
    done = fedsys(*GAME, "rounds=6")
    assert done.returncode == 0, done.stderr
    assert "continued from step 20" in done.stdout


def test_a_finished_run_that_is_started_again_is_left_as_it_is_and_says_so(tmp_path: Path) -> None:
    first = command(tmp_path, 2, *GAME)
    run = tmp_path / "runs/mine"
    before = files_of(run)
    assert len(json.loads(before["summary.json"])["seconds_waited_by_rank"]) == 2
    again = command(tmp_path, 2, *GAME)
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert "this run is finished (step 20, round 4)" in again.stdout
    assert "continued" not in again.stdout
    assert "waited: rank" in again.stdout
    assert again.stderr == ""
    assert files_of(run) == before
    shutil.rmtree(run / "checkpoints")
    before = files_of(run)
    again = command(tmp_path, 1, *GAME)
    assert "this run is finished" in again.stdout
    assert files_of(run) == before


def test_a_run_that_ended_without_a_summary_or_records_is_evaluated_again(
    fedsys: Command, tmp_path: Path
) -> None:
    assert fedsys(*GAME).returncode == 0
    run = tmp_path / "runs/mine"
    before = json.loads((run / "summary.json").read_text())["final"]
    variables = load_file(run / "final.safetensors")
    for name in ("summary.json", "metrics.jsonl"):
        (run / name).unlink()
    done = fedsys(*GAME)
    assert done.returncode == 0, done.stderr
    after = json.loads((run / "summary.json").read_text())["final"]
    assert after["relative_error"] == before["relative_error"]
    assert "drift" not in after, "it is of the state before the last step, which is lost"
    again = load_file(run / "final.safetensors")
    assert all((again[name] == variables[name]).all() for name in variables)


def test_a_run_name_that_leaves_the_root_is_refused(fedsys: Command, tmp_path: Path) -> None:
    done = fedsys(*GAME[:-1], "run.name=../../x")
    assert done.returncode == 2
    assert "run.name must be the name of a folder in run.root, got '../../x'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    for name in ("/tmp/x", "..", ".", "", "a/../../x", "a\tb", "a\0b", "./", "//x"):
        with pytest.raises(InputError, match=r"use run.dir to write elsewhere"):
            check_run_name(name)
    for name in ("a", "a/b", "...", "a..b", ".hidden", "$x"):
        check_run_name(name)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_every_file_of_a_run_follows_the_umask(fedsys: Command, tmp_path: Path) -> None:
    with umask(0o027):
        assert fedsys(*GAME, "rounds=2", "run.name=private").returncode == 0
    run = tmp_path / "runs/private"
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in run.rglob("*") if p.is_file()}
    assert {name: oct(found) for name, found in modes.items() if found != 0o640} == {}


def test_secrets_in_options_reach_no_file_not_even_of_a_sweep(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def instantiate(config: object) -> object:
        seen.append(str(config))
        return quiet_logger()

    from fedsys.training import building

    real = building.instantiate
    monkeypatch.setattr(
        building, "instantiate", lambda c: instantiate(c) if "Secretive" in str(c) else real(c)
    )
    secret = "+logger.mine={_target_: Secretive, password: hush-1234, hub: {token: hush-1234}, "
    secret += "uri: 'https://a:b-999@h/x'}"
    assert fedsys(*GAME, secret).returncode == 0
    assert fedsys("--multirun", *GAME[:-1], secret, "seed=0").returncode == 0
    assert "hush-1234" in seen[0], "the logger itself gets it"
    every = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "multirun.yaml" for path in every)
    for path, content in every.items():
        assert b"hush-1234" not in content, path
        assert b"b-999" not in content, path
    assert b"password: <not kept>" in every[tmp_path / "runs/mine/config.yaml"]


class quiet_logger:  # noqa: N801
    """A logger that does nothing."""

    def begin(self, folder: Path, config: dict[str, object]) -> None:
        assert "hush" not in str(config)

    def record(self, record: dict[str, float]) -> None: ...

    def finish(self) -> None: ...


def test_differences_name_the_setting_that_a_user_can_give() -> None:
    def settings(limit: int, lr: float) -> dict[str, object]:
        data = {"limit": limit}
        config = {"dataset": data, "problem": {"dataset": data, "dim": 3}}
        return compared_settings(config, {"lr": lr})

    assert differences(settings(1, 0.1), settings(2, 0.2)) == ["dataset.limit=1, now 2"]
    assert differences(settings(1, 0.1), settings(1, 0.2)) == [f"{AS_USED}.lr=0.1, now 0.2"]
    assert differences(settings(1, 0.1), settings(1, 0.1 * (1 + 1e-15))) == []


def test_a_run_directory_or_its_checkpoints_removed_in_mid_run_end_it_with_1(
    fedsys: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsys.training.job import RunDirectory

    record = RunDirectory.record

    def remove_then_record(what: str) -> Callable[[RunDirectory, dict[str, float]], None]:
        def hook(self: RunDirectory, values: dict[str, float]) -> None:
            path = self.path / what
            if values["round"] == 6 and path.exists():
                path.rename(tmp_path / f"removed{number}")
            record(self, values)

        return hook

    for number, what in enumerate(("", "metrics.jsonl", "checkpoints")):
        name = f"run.name=run{number}"
        monkeypatch.setattr(RunDirectory, "record", remove_then_record(what))
        done = fedsys(*GAME, "rounds=9", "evaluate_every=3", name)
        assert done.returncode == 1, (what, done.stderr)
        assert len(done.stderr.splitlines()) == 1
        gone = tmp_path / "runs" / f"run{number}" / what
        assert f"{gone}" in done.stderr
        assert "was removed" in done.stderr
        monkeypatch.setattr(RunDirectory, "record", record)
        assert fedsys(*GAME, "rounds=9", "evaluate_every=3", name).returncode == 0
