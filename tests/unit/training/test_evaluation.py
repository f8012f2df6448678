"""A stop during an evaluation: all ranks abandon it, or none, and no record changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import Ranks, connected

from fedsys.algorithms import FedAvg
from fedsys.clients import batches as batches_of_clients
from fedsys.clients import client_data
from fedsys.communication import AllReduce
from fedsys.core.cancellation import CancelledError, cancellable, cancelled_if
from fedsys.core.errors import InterruptedRunError
from fedsys.data import IID, Digits
from fedsys.distributed.stop_signal import StopSignal
from fedsys.models import MLP
from fedsys.problems import Classification
from fedsys.training.api import make_site
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.plan import Plan
from fedsys.training.runner import Runner


def test_work_is_abandoned_before_the_first_piece_that_is_no_longer_wanted() -> None:
    seen: list[int] = []
    with pytest.raises(CancelledError), cancelled_if(lambda: len(seen) == 3):
        list(map(seen.append, cancellable(range(100))))
    assert seen == [0, 1, 2]
    assert list(cancellable(range(5))) == [0, 1, 2, 3, 4]


def classify(
    folder: Path, victim: int | None, round_: int, piece: int
) -> tuple[list[dict[str, float]], str, bytes]:
    """Train a network; the victim gets SIGTERM at that piece of that round's evaluation."""
    batches_of_clients._PIECE_ON_CPU = 64 * 50  # 50 images at a time
    with connected() as world:
        stop = StopSignal(world)
        stop.listen()
        stop.listen_to_others()
        stop.begin()
        problem = Classification(Digits(), IID(), MLP(hidden=(8,)), batch_size=4)
        site = make_site(world, 3, 0, "float64", "cpu")
        algorithm, plan = FedAvg(lr=0.1, local_steps=2), Plan(None, 4, 1)
        runner = Runner(problem, algorithm, AllReduce(), world, site, plan)
        runner.prepare()
        runner.checkpoints = Checkpoints(folder, world, every=0)
        runner.stops_after, runner.is_asked_to_stop = stop.is_due, stop.is_asked_for
        pieces = client_data.ClientData.test_pieces
        seen = 0

        def counted(self: client_data.ClientData, rows: torch.Tensor) -> Iterator[torch.Tensor]:
            nonlocal seen
            for number, inputs in enumerate(pieces(self, rows)):
                seen = number
                if (world.rank, runner.communicator.traffic.rounds, number) == (
                    victim,
                    round_,
                    piece,
                ):
                    os.kill(os.getpid(), signal.SIGTERM)
                yield inputs

        client_data.ClientData.test_pieces = counted  # type: ignore[method-assign]
        error = ""
        try:
            final = torch.cat([v.flatten() for v in runner.run().variables.values()])
        except InterruptedRunError as interrupted:
            error, final = f"{stop.cause}: {interrupted.message} at piece {seen}", torch.empty(0)
        finally:
            client_data.ClientData.test_pieces = pieces  # type: ignore[method-assign]
            stop.let_go()
        return runner.records, error, final.numpy().tobytes()


def without_times(records: list[dict[str, float]]) -> list[dict[str, float]]:
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "seconds_waited")}
        for record in records
    ]


def in_a_world_of_its_own(
    size: int, folder: Path, victim: int | None = None, round_: int = 0
) -> list[Any]:
    """A rank that is asked to stop leaves a note in the store."""
    team = Ranks()
    try:
        return team(size, classify, folder, victim, round_, 1)
    finally:
        team.close()


@pytest.mark.parametrize(("size", "victim", "round_"), [(1, 0, 2), (2, 1, 2), (2, 0, 4)])
def test_a_stop_during_an_evaluation_abandons_it_on_all_ranks_and_changes_no_record(
    tmp_path: Path, size: int, victim: int, round_: int
) -> None:
    stopped = in_a_world_of_its_own(size, tmp_path / "run", victim, round_)
    resumed = in_a_world_of_its_own(size, tmp_path / "run")
    whole = in_a_world_of_its_own(size, tmp_path / "whole")
    to = f"SIGTERM to rank {victim}" if size > 1 else "SIGTERM"
    where = f"{to}: stopped in the evaluation after round {round_}, step {2 * round_}"
    assert [error.rpartition(" at piece ")[0] for _, error, _ in stopped] == size * [where]
    assert stopped[victim][1].endswith("at piece 1")
    assert [error for _, error, _ in resumed] == size * [""]
    before, after, expected = (without_times(runs[0][0]) for runs in (stopped, resumed, whole))
    assert [record["round"] for record in before] == list(range(round_))
    assert before + after == expected
    assert [final for *_, final in resumed] == [final for *_, final in whole]
