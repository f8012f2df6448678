"""The loop: how long it runs, what it records, what it says of bad input, and how it goes on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import CASES, CLIENTS, SEED, Clouds
from support.processes import Ranks, connected
from support.toys import CoinToy
from torch import Tensor

import fedsys
from fedsys.algorithms import FedAvg, LocalSGDA
from fedsys.communication import AllReduce, LocalTransport
from fedsys.core.algorithm import Algorithm
from fedsys.core.errors import FedsysError, InputError, NonFiniteError
from fedsys.core.oracles import Oracle, Problem
from fedsys.core.placement import Placement
from fedsys.core.rounds import Coins, Every
from fedsys.core.site import Site
from fedsys.distributed.world import World
from fedsys.models import MLP
from fedsys.problems import Classification, MinimisationProblem, QuadraticGame, VariationalProblem
from fedsys.problems.games.operator_oracle import OperatorOracle
from fedsys.training.api import default_communicator, make_site
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.plan import Plan
from fedsys.training.runner import Runner

GAME = QuadraticGame(dim=2, samples=4, batch_size=1)
CLOCKS = ("seconds", "seconds_waited")
Record = dict[str, float]


SGDA = LocalSGDA(lr_x=0.1, lr_y=0.1, local_steps=4)


def run(algorithm: Algorithm[Any, Any], problem: Problem[Oracle] = GAME, **settings: Any) -> Any:
    settings = {"clients": CLIENTS, "dtype": "float64", **settings}
    return fedsys.run(problem, algorithm, **settings)


def column(records: list[Record], name: str) -> list[float]:
    return [record[name] for record in records]


# Steps, rounds and records.


def test_steps_count_iterations_and_the_last_one_is_always_recorded() -> None:
    records = run(SGDA, steps=10).records
    assert column(records, "step") == [0, 4, 8, 10]
    assert column(records, "round") == [0, 1, 2, 2]


def test_rounds_count_communications() -> None:
    records = run(SGDA, rounds=3).records
    assert column(records, "step") == [0, 4, 8, 12]
    assert column(records, "round") == [0, 1, 2, 3]


def test_rounds_mean_the_same_for_an_algorithm_that_flips_coins() -> None:
    records = run(CoinToy(p=0.3), rounds=5).records
    assert column(records, "round") == [0, 1, 2, 3, 4, 5]
    assert len(set(column(records, "step"))) == 6


def test_evaluate_every_leaves_out_rounds_but_not_the_last() -> None:
    records = run(SGDA, rounds=5, evaluate_every=2).records
    assert column(records, "round") == [0, 2, 4, 5]


def test_every_record_has_the_papers_axes_and_the_problems_metrics() -> None:
    records = run(SGDA, rounds=3).records
    for i, record in enumerate(records):
        assert {"step", "round", "bytes_up", "bytes_down", "seconds", "drift"} <= record.keys()
        assert {"relative_error", "operator_norm"} <= record.keys()
        assert record["bytes_up"] == record["bytes_down"] == 8 * 4 * i
    seconds = column(records, "seconds")
    assert seconds[0] == 0
    assert seconds == sorted(set(seconds))


def test_evaluation_is_not_training_time() -> None:
    def slow(x: Tensor) -> dict[str, float]:
        time.sleep(0.2)
        return {}

    problem = MinimisationProblem(
        lambda x, client, rng: x.square().sum(), torch.ones(2), metrics=slow
    )
    records = run(FedAvg(local_steps=1), problem, rounds=3, clients=2).records
    assert records[-1]["seconds"] < 0.2


def test_records_are_handed_over_as_they_are_made() -> None:
    seen: list[Record] = []
    result = run(SGDA, steps=10, on_record=seen.append)
    assert seen == result.records


TARGETS = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, -1.0]], dtype=torch.float64)
TO_TARGETS = MinimisationProblem(
    lambda x, client, rng: (x - TARGETS[client]).square().sum() / 2, torch.zeros(3)
)


def test_drift_is_the_mean_squared_distance_of_the_clients_to_their_mean() -> None:
    # After the first of two steps the clients are at (1, 2, 3)/2 and (3, 0, -1)/2, their mean is
    # (1, 0.5, 0.5), and each is at a squared distance of 0.25 + 0.25 + 1 from it.
    result = run(FedAvg(lr=0.5, local_steps=2), TO_TARGETS, rounds=1, clients=2)
    assert column(result.records, "drift") == [0, 1.5]
    assert result.variables["x"].tolist() == [1.5, 0.75, 0.75]
    # f = (|x - t0|^2 + |x - t1|^2) / 4 with distances (0.5, -1.25, -2.25) and (-1.5, 0.75, 1.75).
    assert result.records[-1]["train_loss"] == pytest.approx((6.875 + 5.875) / 4, abs=1e-12)
    assert result.records[0]["train_loss"] == pytest.approx((14 + 10) / 4, abs=1e-12)


def test_the_variables_are_the_mean_of_the_clients_by_name_also_between_rounds() -> None:
    result = run(SGDA, steps=6)
    assert result.variables.keys() == {"x", "y"}
    torch.testing.assert_close(result.variables["x"], result.state.x.mean(0))
    torch.testing.assert_close(result.variables["y"], result.state.y.mean(0))
    assert len({tuple(row) for row in result.state.x.tolist()}) == CLIENTS


def test_what_a_run_returns_can_be_differentiated_also_where_its_steps_could_not() -> None:
    result = run(SGDA, rounds=2)
    for tensor in (*result.variables.values(), *result.state.tensors().values()):
        point = tensor.requires_grad_()
        point.square().sum().backward()
        assert torch.equal(point.grad, 2 * point)


def test_weights_by_size_weigh_the_clients_by_their_data() -> None:
    problem = Classification(Clouds(), model=MLP([]), batch_size=None)
    site = Site(Placement(7), SEED, torch.float64)
    oracle = problem.oracle(site)
    assert len(set(oracle.sizes)) == 2  # 240 samples over 7 clients
    gradients = oracle.grad(oracle.x0, oracle.draw())
    shares = torch.tensor(oracle.sizes).double() / 240
    for weights, expected in (
        ("size", shares),
        ("uniform", torch.full((7,), 1 / 7, dtype=torch.float64)),
    ):
        settings = {"steps": 1, "clients": 7, "seed": SEED}
        communicator = AllReduce(weights=weights)
        result = run(FedAvg(lr=1.0, local_steps=1), problem, communicator=communicator, **settings)
        point = oracle.x0[0] - expected @ gradients
        torch.testing.assert_close(result.state.x[0], point, rtol=1e-12, atol=1e-12)


# Bad input.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give steps or rounds, one of the two; got steps=None, rounds=None"),
        ({"steps": 3, "rounds": 3}, "got steps=3, rounds=3"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"rounds": -2}, "rounds must be at least 1, got -2"),
        ({"steps": 3, "evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
        ({"steps": 3, "dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
        ({"steps": 3, "seed": -1}, "seed must not be negative, got -1"),
        ({"steps": 3, "clients": 0}, "clients must be at least 1, got 0"),
        ({"steps": 3, "device": "tpu9"}, "device must be .*, got 'tpu9'"),
    ],
)
def test_an_invalid_run_is_refused_in_one_line(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        run(SGDA, **settings)
    assert "\n" not in str(refusal.value)


def test_an_algorithm_on_a_problem_of_the_wrong_kind_is_refused_with_both_kinds() -> None:
    with pytest.raises(InputError) as refusal:
        run(FedAvg(), GAME, steps=1)
    message = str(refusal.value)
    assert message.startswith("FedAvg needs a minimisation problem; QuadraticGame is ")
    assert "variational" in message
    assert "minimax" in message


def test_the_communicator_is_chosen_by_what_the_algorithm_needs() -> None:
    assert isinstance(CoinToy().schedule, Coins)
    assert default_communicator(CoinToy()).name == "skip_coin"
    assert default_communicator(SGDA).name == "adaptive_matrix"
    with pytest.raises(InputError, match="use communicator=skip_coin"):
        run(CoinToy(), steps=1, communicator=AllReduce())


def refused(settings: dict[str, Any]) -> str:
    """What a run says on this rank instead of starting."""
    try:
        run(SGDA, **settings)
    except InputError as error:
        return error.message
    return ""


def test_fewer_clients_than_ranks_is_refused_on_every_rank(ranks: Ranks) -> None:
    answers = ranks(4, refused, {"steps": 1, "clients": 3})
    assert all("clients=3 is fewer than the 4 ranks" in answer for answer in answers)


class PickyProblem:
    """A problem that one rank cannot make."""

    def oracle(self, site: Site) -> Oracle:
        if site.placement.rank == 1:
            raise InputError("the file is missing here")
        return GAME.oracle(site)


def run_picky() -> tuple[str, int]:
    try:
        run(SGDA, PickyProblem(), steps=1)
    except InputError as error:
        return error.message, error.reporter
    return "", -1


def test_a_failure_on_one_rank_fails_on_all_and_that_rank_reports_it(ranks: Ranks) -> None:
    assert ranks(3, run_picky) == [("the file is missing here", 1)] * 3


def run_thrice() -> list[list[float]]:
    return [column(run(SGDA, steps=5).records, "relative_error") for _ in range(3)]


def test_a_script_may_run_several_times(ranks: Ranks) -> None:
    first, *others = [run for answer in ranks(2, run_thrice) for run in answer]
    assert all(other == first for other in others)


# NaN.


class BreakingOracle(OperatorOracle):
    """F(z) = z, but one client returns NaN from one iteration on."""

    def __init__(self, site: Site, client: int, from_step: int) -> None:
        super().__init__(site, torch.ones(4), split=2)
        self._broken = [client == hosted for hosted in site.hosted]
        self._from_step = from_step

    def full_operator(self, z: Tensor) -> Tensor:
        return z

    def operator(self, z: Tensor, xi: Any) -> Tensor:
        F = z.clone()
        if self.step >= self._from_step:
            F[self._broken] = torch.nan
        return F


class BreakingProblem:
    """Its oracle breaks."""

    def __init__(self, client: int, from_step: int) -> None:
        self._settings = client, from_step

    def oracle(self, site: Site) -> Oracle:
        return BreakingOracle(site, *self._settings)


NAN_ALGORITHMS = {
    "local_sgda": SGDA,
    "coins": CoinToy(p=0.3),
    "server": CASES["server-game"].algorithm,
}


def non_finite(name: str, client: int, from_step: int, evaluate_every: int) -> tuple[Any, ...]:
    problem = BreakingProblem(client, from_step)
    try:
        run(NAN_ALGORITHMS[name], problem, steps=40, evaluate_every=evaluate_every)
    except NonFiniteError as error:
        return error.step, error.client, error.reporter, error.exit_code, error.message
    return ()


@pytest.mark.parametrize("size", [1, 4], ids=["1 process", "4 processes"])
@pytest.mark.parametrize("name", list(NAN_ALGORITHMS))
def test_a_nan_ends_the_run_with_its_step_and_client(ranks: Ranks, size: int, name: str) -> None:
    host = Placement(CLIENTS, 0, size).host_of(2)
    for from_step in range(5, 10):  # local steps and communication steps
        answers = ranks(size, non_finite, name, 2, from_step, 1 + from_step % 3)
        for step, client, reporter, code, message in answers:
            assert (step, client, reporter, code) == (from_step, 2, host, 1)
            assert f"of client 2 is not finite after iteration {from_step}" in message


def test_a_start_that_is_not_finite_is_named_as_such() -> None:
    problem = VariationalProblem(lambda z, client, rng: z, torch.tensor([1.0, torch.nan]))
    with pytest.raises(InputError, match="z must be finite; it has nan or inf"):
        run(SGDA, problem, steps=3)


def test_an_infinite_value_is_found_like_a_nan() -> None:
    problem = VariationalProblem(lambda z, client, rng: -1e300 * z, torch.ones(2))
    with pytest.raises(NonFiniteError) as failure:
        run(LocalSGDA(lr_x=1.0, lr_y=1.0, local_steps=10), problem, steps=10)
    assert failure.value.step == 1  # 1e300, then 1e600


# Resuming.


def resumed(
    names: list[str], folder: Path, steps: int, every: int = 8
) -> dict[str, tuple[dict[str, Tensor], list[Record]]]:
    """Each case, from what is in its folder to so many steps: its last state and records."""
    answers = {}
    with connected() as world:
        for name in names:
            runner = prepared(name, world, folder / name, steps, every)
            result = runner.run()
            rows = dict(result.state.tensors())
            if runner._oracle.synchronised_buffers is not None:
                rows["synchronised_buffers"] = runner._oracle.synchronised_buffers
            rows = {field: row.clone() for field, row in rows.items()}
            answers[name] = (rows, result.records)
    return answers


def prepared(name: str, world: World, folder: Path, steps: int, every: int) -> Runner:
    case = CASES[name]
    site = make_site(world, CLIENTS, SEED, "float64", "cpu")
    runner = Runner(
        case.problem,
        case.algorithm,
        default_communicator(case.algorithm),
        world,
        site,
        Plan(steps=steps),
        Checkpoints(folder, world, every),
    )
    runner.prepare()
    return runner


def comparable(records: list[Record]) -> list[Record]:
    """Without clocks, and without the control bytes: a restarted server tells its shapes again.

    A drift of zero is the rounding of a mean, which is another for rows that share their memory.
    """
    left_out = (*CLOCKS, "bytes_control")
    kept = [{k: v for k, v in record.items() if k not in left_out} for record in records]
    return [{**record, "drift": max(record["drift"], 1e-25)} for record in kept]


def joined(answers: list[Any], name: str) -> dict[str, Tensor]:
    parts = [answer[name][0] for answer in answers]
    return {field: torch.cat([part[field] for part in parts]) for field in parts[0]}


STEPS = 25
STOP = 11
"""In the middle of a round of every case."""
NAMES = list(CASES)


@dataclass(frozen=True)
class Runs:
    """Every case on so many ranks: how it ends without interruption, and a folder where it stopped.

    What goes on from the folder goes on from a copy.
    """

    size: int
    whole: list[Any]
    stopped: Path


@pytest.fixture(scope="module", params=[1, 2], ids=["1 process", "2 processes"])
def runs(request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: Any) -> Runs:
    size, stopped = request.param, tmp_path_factory.mktemp("stopped")
    ranks(size, resumed, NAMES, stopped, STOP)
    whole = ranks(size, resumed, NAMES, tmp_path_factory.mktemp("whole"), STEPS)
    return Runs(size, whole, stopped)


@pytest.fixture
def folder(runs: Runs, tmp_path: Path) -> Path:
    """To go on from."""
    return Path(shutil.copytree(runs.stopped, tmp_path / "stopped"))


def test_a_run_that_is_continued_ends_bit_identical_to_one_that_was_not_interrupted(
    ranks: Ranks, runs: Runs, folder: Path
) -> None:
    answers = ranks(runs.size, resumed, NAMES, folder, STEPS)
    for name in NAMES:
        state = joined(runs.whole, name)
        for field, rows in joined(answers, name).items():
            assert torch.equal(rows, state[field]), (name, field)
        for mine, theirs in zip(answers, runs.whole, strict=True):
            tail = comparable(mine[name][1])
            assert tail
            assert tail == comparable(theirs[name][1])[-len(tail) :], name


def test_a_run_continued_at_another_world_size_ends_within_rounding(
    ranks: Ranks, runs: Runs, folder: Path
) -> None:
    other = {1: 3, 2: 1}[runs.size]
    answers = ranks(other, resumed, NAMES, folder, STEPS)
    for name in NAMES:
        state = joined(runs.whole, name)
        for field, rows in joined(answers, name).items():
            torch.testing.assert_close(rows, state[field], rtol=1e-12, atol=1e-12)


def test_a_checkpoint_that_is_not_complete_is_ignored(
    ranks: Ranks, runs: Runs, folder: Path
) -> None:
    names = NAMES[:1]
    (complete,) = sorted((folder / names[0]).glob("step-*/snapshot.json"))[-1:]
    for damaged in ("step-000000017", ".step-000000018.partial"):
        shutil.copytree(complete.parent, complete.parent.with_name(damaged))
        (complete.parent.with_name(damaged) / "snapshot.json").unlink()
    answers = ranks(runs.size, resumed, names, folder, STEPS)
    for field, rows in joined(answers, names[0]).items():
        assert torch.equal(rows, joined(runs.whole, names[0])[field])


def killed(name: str, folder: Path, at_step: int, victim: int) -> str:
    """Run until one rank kills itself, as the kernel would when memory is short."""
    with connected(timeout=10) as world:
        runner = prepared(name, world, folder, STEPS, every=1)

        def on_record(record: Record) -> None:
            if record["step"] >= at_step and world.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)

        runner.on_record = on_record
        try:
            runner.run()
        except FedsysError as error:
            return type(error).__name__
    return ""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_run_resumes_from_its_last_checkpoint_bit_for_bit(
    runs: Runs, tmp_path: Path, victim: int
) -> None:
    size = runs.size
    name = "local_sgda-game"
    team = Ranks()
    answers = team.attempt(size, killed, name, tmp_path / name, 10, min(victim, size - 1))
    assert [result for result, _ in answers].count("LostRankError") == size - 1
    found = sorted((tmp_path / name).glob("step-*/snapshot.json"))
    assert found
    assert found[-1].parent.name < "step-000000012"
    answers = team(size, resumed, [name], tmp_path, STEPS)
    team.close()
    assert answers[0][name][1][0]["step"] > 0  # it did not start again
    for field, rows in joined(answers, name).items():
        assert torch.equal(rows, joined(runs.whole, name)[field])


def test_resume_false_starts_again(tmp_path: Path) -> None:
    world = World()
    prepared("local_sgda-game", world, tmp_path, 6, every=1).run()
    runner = prepared("local_sgda-game", world, tmp_path, 6, every=1)
    runner.checkpoints = Checkpoints(tmp_path, world, resume=False)
    assert runner.run().records[0]["step"] == 0


def test_a_finished_run_that_is_started_again_has_nothing_left_to_do(tmp_path: Path) -> None:
    world = World()
    first = prepared("local_sgda-game", world, tmp_path, 6, every=1).run()
    again = prepared("local_sgda-game", world, tmp_path, 6, every=1).run()
    assert column(again.records, "step") == [6]  # its records are lost, so the last is made again
    assert torch.equal(again.state.x, first.state.x)
    assert torch.equal(again.variables["x"], first.variables["x"])


def test_a_resumed_run_continues_to_count_bytes_and_seconds(tmp_path: Path) -> None:
    world = World()
    first = prepared("local_sgda-game", world, tmp_path, 6, every=1).run()
    second = prepared("local_sgda-game", world, tmp_path, 12, every=1).run()
    assert column(second.records, "round") == [3, 4]
    assert column(second.records, "bytes_up") == [3 * 48, 4 * 48]
    assert second.records[0]["seconds"] > first.records[-1]["seconds"]


def test_opening_a_communicator_at_a_step_does_not_count_as_traffic() -> None:
    communicator = AllReduce()
    communicator.open(LocalTransport(), Placement(2), Every(3), step=9)
    assert not any(communicator.traffic.as_dict().values())
