"""A communicator of a user: one class, one YAML."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import fedsys
from fedsys.algorithms import LSGD, AdaFGDA, ProxSkip
from fedsys.communication import (
    AdaptiveMatrix,
    AllReduce,
    Communicator,
    LocalTransport,
    SkipCoin,
)
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Coins, Every
from fedsys.problems import QuadraticGame
from fedsys.training.building import build
from fedsys.training.result import Result

OWN = """
from fedsys.communication import Communicator

class AveragedTwice(Communicator):
    def __init__(self, log=True, **options):
        super().__init__(**options)
        self.log = log
        self.means = []

    def mean(self, fields, traffic, step):
        once = super().mean(fields, traffic, step)
        twice = super().mean(once, traffic, step)
        if self.log and step >= 0:
            self.means.append((step, twice[0][0].clone()))
        return twice

class NoCommunicator:
    pass
"""
YAML = """
communicator:
  _target_: own_communicator.AveragedTwice
  log: true
  compression: {compression}
"""
GAME, ALGORITHM = QuadraticGame(dim=2), LSGD(lr=0.1, local_steps=3)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_communicator.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_communicator", raising=False)


def run(communicator: Communicator) -> Result:
    return fedsys.run(
        GAME, ALGORITHM, rounds=4, clients=4, dtype="float64", communicator=communicator
    )


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_a_communicator_of_a_user_runs_from_its_yaml_and_counts_what_it_sends(
    compression: str,
) -> None:
    made = build(OmegaConf.create(YAML.format(compression=compression)), "communicator")
    assert isinstance(made, Communicator)
    own, plain = run(made), run(AllReduce(compression=compression))
    assert [step for step, _ in made.means] == [2, 5, 8, 11]  # type: ignore[attr-defined]
    for name, rows in plain.state.tensors().items():
        torch.testing.assert_close(own.state.tensors()[name], rows, rtol=1e-12, atol=1e-12)
    theirs, expected = own.records[-1], plain.records[-1]
    assert theirs["round"] == expected["round"] == 4
    assert theirs["exchanges"] == 2 * expected["exchanges"]
    assert theirs["bytes_down"] == 2 * expected["bytes_down"]


@pytest.mark.usefixtures("own")
def test_a_class_that_is_no_communicator_is_refused_by_name() -> None:
    settings = OmegaConf.create({"communicator": {"_target_": "own_communicator.NoCommunicator"}})
    with pytest.raises(InputError, match="does not implement the interface of communicator"):
        build(settings, "communicator")


class Plain(Communicator):
    """Nothing of its own."""


def test_the_defaults_of_the_base_class_are_those_of_all_reduce() -> None:
    own, plain = run(Plain()), run(AllReduce())
    for name, rows in plain.state.tensors().items():
        assert torch.equal(own.state.tensors()[name], rows)
    for mine, theirs in zip(own.records, plain.records, strict=True):
        clocks = {"seconds", "seconds_waited"}
        assert {k: v for k, v in mine.items() if k not in clocks} == {
            k: v for k, v in theirs.items() if k not in clocks
        }


def test_a_verb_that_the_base_class_lacks_is_refused_with_the_name_of_the_class() -> None:
    with pytest.raises(InputError, match=r"communicator=Plain .*use communicator=skip_coin"):
        fedsys.run(GAME, ProxSkip(lr=0.1, p=0.5), steps=1, communicator=Plain())
    with pytest.raises(InputError, match=r"communicator=Plain .*use communicator=adaptive_matrix"):
        fedsys.run(GAME, AdaFGDA(lr_x=0.1, lr_y=0.1), steps=1, communicator=Plain())


@pytest.mark.parametrize("kind", [Communicator, AllReduce, SkipCoin, AdaptiveMatrix])
def test_a_communicator_has_at_most_twelve_public_methods(kind: type) -> None:
    public = [name for name in dir(kind) if not name.startswith("_")]
    assert len([name for name in public if name not in ("name", "has_server")]) <= 12


def test_a_communicator_that_is_opened_again_starts_with_an_empty_memory() -> None:
    communicator = AllReduce(compression="int8")
    for _ in range(2):
        communicator.open(LocalTransport(), Placement(2), Every(1))
        assert communicator.memory == {}
        communicator.at(0)(torch.ones(2, 3))
        assert list(communicator.memory) == ["sent.0.0"]


def test_skip_coin_follows_both_kinds_of_schedule() -> None:
    for schedule in (Every(2), Coins(0.5)):
        SkipCoin().accept(schedule)
