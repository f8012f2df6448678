"""What every algorithm promises; a new one is a line in cases.py."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import CASES, CLIENTS, Case, Drive
from support.counting import CountingTransport

from fedsys import algorithms
from fedsys.algorithms import Averaged
from fedsys.communication import LocalTransport
from fedsys.core.algorithm import Algorithm, State
from fedsys.core.errors import InputError
from fedsys.core.kinds import KINDS
from fedsys.core.rounds import Coins
from fedsys.distributed.world import World
from fedsys.training.checkpoint import Checkpoints, Snapshot

STEPS = 20


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def drive(case: Case, first_step: int = 0) -> Drive:
    return Drive(case, LocalTransport(), first_step=first_step)


def copy_of(state: State) -> dict[str, torch.Tensor]:
    return {name: rows.clone() for name, rows in state.tensors().items()}


def assert_identical(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, rows in expected.items():
        assert torch.equal(actual[name], rows), name


def numbers(algorithm: Algorithm[Any, Any]) -> list[str]:
    """The names of the numeric hyperparameters."""
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    return [
        name
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def test_every_algorithm_is_in_the_registry() -> None:
    exported = vars(algorithms).values()
    concrete = {c for c in exported if inspect.isclass(c) and issubclass(c, Algorithm)}
    concrete = {c for c in concrete if not inspect.isabstract(c)}
    assert concrete
    assert concrete <= {type(case.algorithm) for case in CASES.values()}


def test_the_algorithm_is_frozen_and_names_the_kind_that_its_problem_has(case: Case) -> None:
    assert is_dataclass(case.algorithm)
    with pytest.raises(FrozenInstanceError):
        case.algorithm.kind = "other"  # type: ignore[misc]
    assert isinstance(drive(case).oracle, KINDS[case.algorithm.kind])


def test_every_field_of_the_state_has_a_row_per_client_and_keeps_its_shape(case: Case) -> None:
    shapes = []
    for state in drive(case).states(STEPS):
        rows = state.tensors()
        assert rows
        assert all(len(field) == CLIENTS for field in rows.values())
        assert all(field.dtype == torch.float64 for field in rows.values())
        shapes.append({name: field.shape for name, field in rows.items()})
    assert all(shape == shapes[0] for shape in shapes)


def test_the_solution_has_the_shape_of_the_starting_point(case: Case) -> None:
    d = drive(case)
    for state in d.states(STEPS):
        assert case.algorithm.solution(state).shape == d.oracle.z0.shape


def test_the_start_makes_exactly_its_exchanges(case: Case) -> None:
    transport = CountingTransport()
    d = Drive(case, transport)
    transport.take()
    d.start()
    assert d.communicator.traffic.exchanges == case.initial
    calls = transport.take()
    assert calls["all_reduce"] + calls["reduce"] + calls["all_gather"] == case.initial


def test_a_local_step_sends_nothing_and_a_round_exactly_its_exchanges(case: Case) -> None:
    transport = CountingTransport()
    d = Drive(case, transport)
    state = d.start()
    coins = case.algorithm.schedule
    announcements = 1 + bool(coins.others) if isinstance(coins, Coins) else 0
    seen = {True: 0, False: 0}
    for step in range(2 * STEPS):
        transport.take()
        exchanges = d.communicator.traffic.exchanges
        state, sync = d.step(state, step)
        calls, exchanges = transport.take(), d.communicator.traffic.exchanges - exchanges
        seen[bool(sync)] += 1
        if not sync:
            assert not calls
            assert exchanges == 0
            continue
        assert exchanges == case.exchanges
        assert calls["all_reduce"] + calls["reduce"] + calls["all_gather"] == case.exchanges
        if seen[True] > 1:  # before that, the server also tells the shapes of what it sends
            assert calls["broadcast"] == calls["reduce"] + announcements
    assert seen[True] >= 2
    assert seen[False] >= 2 or not case.has_local_steps


def test_a_step_writes_neither_to_the_state_nor_to_the_problem(case: Case) -> None:
    d = drive(case)
    start = d.oracle.z0.clone()
    state = d.start()
    for step in range(STEPS):
        before = copy_of(state)
        new, _ = d.step(state, step)
        assert_identical(state.tensors(), before)
        state = new
    assert torch.equal(d.oracle.z0, start)


def test_a_step_takes_rows_that_share_their_memory_and_leaves_them_alone(case: Case) -> None:
    d = drive(case)
    state = list(d.states(1))[-1]
    shared = {name: rows[:1].clone().expand_as(rows) for name, rows in state.tensors().items()}
    own = {name: rows.clone() for name, rows in shared.items()}
    for step in range(1, STEPS):
        d_shared, d_own = drive(case, step), drive(case, step)
        from_shared, _ = d_shared.step(type(state)(**shared), step)
        from_own, _ = d_own.step(type(state)(**own), step)
        assert_identical(shared, own)
        assert_identical(from_shared.tensors(), from_own.tensors())


def test_the_same_input_gives_the_same_output_bit_for_bit(case: Case) -> None:
    d = drive(case)
    state = d.start()
    assert_identical(drive(case).start().tensors(), state.tensors())
    for step in range(STEPS):
        new, _ = d.step(state, step)
        if step % 5 in (0, 2):
            again, _ = drive(case, first_step=step).step(state, step)
            assert_identical(again.tensors(), new.tensors())
        state = new


def test_a_step_leaves_the_global_random_state_alone(case: Case) -> None:
    before = torch.random.get_rng_state()
    for _ in drive(case).states(STEPS):
        pass
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("value", [-1, float("nan"), "fast"])
def test_each_hyperparameter_outside_its_range_is_refused_by_name_and_value(
    case: Case, value: object
) -> None:
    algorithm = case.algorithm
    if isinstance(algorithm, Averaged):
        algorithm = algorithm.algorithm
    assert numbers(algorithm)
    for name in numbers(algorithm):
        with pytest.raises(InputError) as refusal:
            replace(algorithm, **{name: value})
        assert f"{name} must be" in str(refusal.value)
        assert str(refusal.value).endswith(f"got {value!r}")
        assert type(algorithm).__name__ in str(refusal.value)


def test_no_period_of_zero_steps() -> None:
    for case in CASES.values():
        if hasattr(case.algorithm, "local_steps"):
            with pytest.raises(InputError, match=r"local_steps must be at least 1, got 0"):
                replace(case.algorithm, local_steps=0)


def test_a_checkpoint_gives_any_state_back_bit_for_bit(case: Case, tmp_path: Path) -> None:
    d, fresh = drive(case), drive(case)
    start = fresh.start()
    checkpoints = Checkpoints(tmp_path, World())
    for step, state in enumerate(d.states(5)):  # averaged ones, whose rows share memory, too
        snapshot = Snapshot(step, 1.5, d.communicator.traffic.as_dict())
        checkpoints.save(snapshot, state.tensors(), d.oracle.synchronised_buffers, d.site)
        checkpoints.finish()
        found = checkpoints.newest()
        assert found == snapshot
        rows = checkpoints.load(
            found, start.tensors(), fresh.oracle.synchronised_buffers, fresh.site
        )
        assert_identical(rows, state.tensors())
        if d.oracle.synchronised_buffers is not None:
            assert torch.equal(fresh.oracle.synchronised_buffers, d.oracle.synchronised_buffers)


MINIMISATION = [name for name, case in CASES.items() if case.algorithm.kind == "minimisation"]


@pytest.mark.parametrize("name", MINIMISATION)
def test_a_gradient_is_its_callers_to_overwrite(name: str) -> None:
    oracle: Any = drive(CASES[name]).oracle.at(0)
    xi, x = oracle.draw(), oracle.x0
    before = oracle.grad(x, xi).clone()
    oracle.grad(x, xi).fill_(torch.nan)
    assert torch.equal(oracle.grad(x, xi), before)
