"""Every kind of setting, changed between two starts of one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Done

from fuzz.test_resume import GAME, refuses

CHANGES = {
    "participation=0.5": "participation=1.0, now 0.5",
    "communicator.weights=size": "communicator.weights=uniform, now size",
    "communicator.compression=int8": "communicator.compression=none, now int8",
    "communicator.keep=0.3": "communicator.keep=0.1, now 0.3",
    "communicator.batchnorm=local": "communicator.batchnorm=average, now local",
    "on_nonfinite=drop": "on_nonfinite=stop, now drop",
    "scale=paper": "scale=small, now paper",
    "dtype=float32": "dtype=float64, now float32",
    "clients=2": "clients=4, now 2",
    "seed=3": "seed=0, now 3",
    "algorithm.lr_x=0.25": "algorithm.lr_x=1.0, now 0.25",
    "problem.batch_size=2": "problem.batch_size=1, now 2",
    "dataset.limit=7": "dataset.limit=None, now 7",
    "partition=dirichlet": "partition._target_=fedsys.data.IID, now fedsys.data.Dirichlet",
    "model.hidden=[3]": "model.hidden=",
    "communicator=skip_coin": "communicator._target_=fedsys.communication.AllReduce, now ",
}


@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_setting_is_refused_by_name_also_without_config_yaml(
    fedsys: Callable[..., Done], tmp_path: Path, change: str, has_config: bool
) -> None:
    assert fedsys(*GAME).returncode == 0
    if not has_config:
        (tmp_path / "runs/mine/config.yaml").unlink()
    refuses(fedsys, tmp_path / "runs/mine", {change: CHANGES[change]})
