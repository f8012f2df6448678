"""Every file in conf/ composes into a configuration, and every configuration can be built."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from fedsys.communication import Communicator
from fedsys.core.algorithm import Algorithm
from fedsys.core.site import Site
from fedsys.training import config
from fedsys.training.config import GROUPS

CONF = config.folder()


def options(group: str) -> list[str]:
    files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
    return sorted(str(file.with_suffix("")) for file in files)


OPTIONS = [(group, option) for group in GROUPS for option in options(group)]
EXPERIMENTS = options("experiment")


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def resolved(*overrides: str) -> DictConfig:
    settings = compose("config", overrides=list(overrides))
    OmegaConf.resolve(settings)
    return settings


def build_all(settings: DictConfig) -> None:
    """Build what a run builds, down to the oracle's own classes."""
    assert isinstance(instantiate(settings.algorithm), Algorithm)
    assert isinstance(instantiate(settings.communicator), Communicator)
    assert callable(instantiate(settings.problem).oracle)
    assert callable(instantiate(settings.model).build)
    assert callable(instantiate(settings.dataset).load)
    assert callable(instantiate(settings.partition).split)
    for logger in settings.logger.values():
        if logger is not None:
            made = instantiate(logger)
            assert all(callable(getattr(made, verb)) for verb in ("begin", "record", "finish"))


def test_the_folders_of_conf_are_the_groups() -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == {*GROUPS, "experiment"}
    assert all(options(folder) for folder in folders)


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes_and_builds(group: str, option: str) -> None:
    build_all(resolved(f"{group}={option}"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds(experiment: str) -> None:
    build_all(resolved(f"experiment={experiment}"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_run_of_an_experiment_has_an_algorithm_for_the_kind_of_its_problem(
    experiment: str,
) -> None:
    for swept in sweep(experiment):
        settings = resolved(f"experiment={experiment}", *swept)
        algorithm = get_class(settings.algorithm._target_)
        assert algorithm.kind in get_class(settings.problem._target_).kinds, swept


def sweep(experiment: str) -> list[list[str]]:
    """The choices of algorithm and problem that an experiment goes through."""
    whole = compose("config", overrides=[f"experiment={experiment}"], return_hydra_config=True)
    params = whole.hydra.sweeper.params or {}
    groups = [group for group in ("algorithm", "problem") if group in params]
    values = [[f"{group}={value}" for value in params[group].split(",")] for group in groups]
    return [list(choice) for choice in product(*values)]


def test_the_scale_chooses_the_size_of_an_experiment() -> None:
    small, paper = (
        resolved("experiment=localscgdam/digits", f"scale={s}") for s in ("small", "paper")
    )
    # 200 and 1000 epochs of 720 samples in batches of 32 on 4 clients.
    assert (small.steps, paper.steps) == (1125, 5625)
    assert small.problem == paper.problem


def test_an_algorithm_may_choose_its_problem_and_the_user_another() -> None:
    assert resolved("algorithm=localsgdm_rl").problem.loss == "ratio"
    assert resolved("algorithm=localsgdm_rl", "problem=binary_classification").problem.loss == (
        "cross_entropy"
    )


def test_several_loggers_can_be_chosen_at_once() -> None:
    settings = resolved("logger=[tensorboard,mlflow]")
    assert set(settings.logger) == {"tensorboard", "mlflow"}
    build_all(settings)


def test_the_default_problem_makes_the_oracle_of_a_site() -> None:
    oracle = instantiate(resolved().problem).oracle(Site())
    assert oracle.x0.shape[0] == 1


def test_the_data_folder_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDSYS_DATA", str(tmp_path))
    assert resolved().dataset.root == str(tmp_path)
    assert resolved("dataset.root=elsewhere").dataset.root == "elsewhere"


def test_the_public_options_are_there() -> None:
    settings = resolved()
    public = (
        "clients", "steps", "rounds", "seed", "dtype", "device", "run.dir", "run.name", "resume",
        "scale", "dataset.root", "communicator.timeout",
    )  # fmt: skip
    missing = object()
    absent = [
        name for name in public if OmegaConf.select(settings, name, default=missing) is missing
    ]
    assert not absent
