"""Schedules: their values, where they are accepted, and how a wrong one is refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest
import torch
from support.cases import CASES, Case, Drive

from fedsys.algorithms import (
    LDE,
    LESGD,
    LIPPAX,
    THEORY,
    Averaged,
    Constant,
    Cosine,
    Decreasing,
    FedAvg,
    FromTheory,
    MomentumLocalSGDA,
    ProxSkip,
    Schedule,
    Staged,
    Warmup,
)
from fedsys.communication import LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import InputError
from fedsys.core.fields import type_hints

VALUES = {
    Constant(0.3): [0.3, 0.3, 0.3, 0.3, 0.3],
    Decreasing(2.0, 1.0): [2, 1, 2 / 3, 0.5, 0.4],
    Staged(8.0, [1, 3], divide_by=2.0): [8, 4, 4, 2, 2],
    Staged(9.0, every=2, divide_by=3.0): [9, 9, 3, 3, 1],
    Cosine(1.0, steps=2, final=0.5): [1, 0.75, 0.5, 0.5, 0.5],
    Warmup(1.0, steps=4): [0.25, 0.5, 0.75, 1, 1],
    Warmup(Decreasing(2.0, 1.0), steps=2): [1, 1, 2 / 3, 0.5, 0.4],
}


@pytest.mark.parametrize("schedule", VALUES, ids=repr)
def test_a_schedule_has_the_values_of_its_formula(schedule: Schedule) -> None:
    assert [schedule.at(t) for t in range(5)] == pytest.approx(VALUES[schedule])
    assert max(VALUES[schedule]) <= schedule.highest


def test_the_stages_of_a_staged_schedule_start_where_it_says() -> None:
    given, regular = Staged(1.0, [2, 5]), Staged(1.0, every=3)
    assert [given.start_of_stage(t) for t in range(7)] == [0, 0, 2, 2, 2, 5, 5]
    assert [regular.start_of_stage(t) for t in range(7)] == [0, 0, 0, 3, 3, 3, 6]


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Constant, {"value": -1}, "Constant: value must be at least 0, got -1"),
    (Decreasing, {"scale": 0, "offset": 1}, "Decreasing: scale must be positive, got 0"),
    (Staged, {"value": 1, "starts": [3, 2]}, "Staged: starts must be increasing"),
    (Staged, {"value": 1, "starts": [3], "every": 2}, "Staged: every must be null where"),
    (Cosine, {"value": 1, "steps": 0}, "Cosine: steps must be at least 1, got 0"),
    (Cosine, {"value": 1, "steps": 5, "final": 2}, "Cosine: final must be in"),
    (Warmup, {"then": "fast", "steps": 5}, "Warmup: then must be a number or a schedule"),
]


@pytest.mark.parametrize(("made", "numbers", "line"), WRONG)
def test_a_wrong_schedule_is_refused_by_name(made: Any, numbers: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refusal:
        made(**numbers)
    assert line in str(refusal.value)


def states(algorithm: Algorithm[Any, Any], case: Case) -> list[dict[str, torch.Tensor]]:
    drive = Drive(replace(case, algorithm=algorithm), LocalTransport())
    return [state.tensors() for state in drive.states(7)]


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("averaged-game",)])
def test_every_step_size_takes_a_schedule_or_refuses_it_in_one_line(name: str) -> None:
    """A constant schedule gives the numbers of the number itself."""
    case = CASES[name]
    hints = type_hints(type(case.algorithm))
    for field in fields(case.algorithm):
        value = getattr(case.algorithm, field.name)
        if not isinstance(value, float):
            continue
        constant = {field.name: Constant(value)}
        accepted = Schedule in getattr(hints[field.name], "__args__", ())
        if not accepted or field.name in case.algorithm.constant:
            with pytest.raises(InputError, match=f"^[^\n]*{field.name} must be a number[^\n]*$"):
                replace(case.algorithm, **constant)
            continue
        scheduled = replace(case.algorithm, **constant)
        for mine, expected in zip(
            states(scheduled, case), states(case.algorithm, case), strict=True
        ):
            assert all(torch.equal(mine[key], expected[key]) for key in expected), field.name


@pytest.mark.parametrize("made", [ProxSkip, LDE])
def test_an_algorithm_that_needs_a_constant_step_size_says_why(made: Any) -> None:
    with pytest.raises(InputError, match=r"lr must be a number or theory \(.*constant step size"):
        made(lr=Decreasing(1.0, 1.0))


def test_theory_beside_a_schedule_is_refused_where_it_needs_a_number() -> None:
    with pytest.raises(InputError, match="inner_lr must be a number where lr is a schedule"):
        LIPPAX(lr=Decreasing(1.0, 1.0))
    with pytest.raises(InputError, match="beta must be a number where alpha is theory"):
        MomentumLocalSGDA(alpha="theory", beta=Decreasing(1.0, 1.0))  # type: ignore[arg-type]


def test_the_word_theory_becomes_its_type_only_where_there_is_a_theory() -> None:
    assert LESGD(lr="theory").lr is THEORY  # type: ignore[arg-type]
    assert LESGD().awaiting_theory() == ["lr"]
    assert pickle.loads(pickle.dumps(LESGD())).lr is THEORY
    with pytest.raises(InputError, match="FedAvg: lr must be a number or a schedule, got 'theory'"):
        FedAvg(lr="theory")  # type: ignore[arg-type]


def test_validation_does_not_depend_on_an_annotation_that_cannot_be_resolved() -> None:
    class Local:
        """A name that no module has."""

    @dataclass(frozen=True)
    class Mine(FedAvg):
        """An algorithm with such an annotation."""

        scale: float | FromTheory = THEORY
        other: ClassVar[Local | None] = None

    assert Mine(scale="theory").scale is THEORY  # type: ignore[arg-type]
    for name in ("lr", "scale"):
        with pytest.raises(InputError, match=f"Mine: {name} must be a number"):
            Mine(**{name: "fast"})


def test_the_state_of_an_averaged_algorithm_can_be_pickled() -> None:
    case = CASES["averaged-game"]
    assert isinstance(case.algorithm, Averaged)
    *_, state = Drive(case, LocalTransport()).states(3)
    again = pickle.loads(pickle.dumps(state))
    assert type(again) is type(state)
    assert all(torch.equal(again.tensors()[key], rows) for key, rows in state.tensors().items())
