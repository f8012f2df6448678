"""Compression: decoded values, message sizes, error feedback and resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.cases import CASES, CLIENTS, SEED, Drive
from support.processes import Ranks, connected
from torch import Tensor

from fedsys.algorithms import LSGD, FedAvg, ProxSkip
from fedsys.communication import (
    AdaptiveMatrix,
    AllReduce,
    Codec,
    Communicator,
    LocalTransport,
    SkipCoin,
    Transport,
)
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Coins, Every
from fedsys.core.site import Site
from fedsys.core.sync import Sync
from fedsys.distributed.world import World
from fedsys.problems import Classification, QuadraticGame
from fedsys.training.checkpoint import Checkpoints
from fedsys.training.plan import Plan
from fedsys.training.result import Result
from fedsys.training.runner import Runner

COARSE = ["int8", "top_k"]
ALL = ["bf16", "fp16", *COARSE]


def opened(compression: str, clients: int = 3, **given: Any) -> AllReduce:
    communicator = AllReduce(compression=compression, **given)
    communicator.open(LocalTransport(), Placement(clients), Every(1))
    return communicator


# Codecs, with numbers computed by hand.


def test_int8_is_the_nearest_multiple_of_the_largest_number_over_127() -> None:
    rows = torch.tensor([[254.0, -126.7, 0.9, -3.0], [0.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[254.0, -126.0, 0.0, -4.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(Codec("int8")(rows), expected)  # -3 / 2 is rounded to even, -2


def test_top_k_keeps_the_numbers_of_largest_magnitude_with_their_sign() -> None:
    rows = torch.tensor([[1.0, -5.0, 3.0, 0.5, 2.0], [0.0, 0.1, 0.0, 0.0, -0.3]])
    expected = torch.tensor([[0.0, -5.0, 3.0, 0.0, 0.0], [0.0, 0.1, 0.0, 0.0, -0.3]])
    assert torch.equal(Codec("top_k", keep=0.4)(rows), expected)


def test_bf16_and_fp16_round_to_the_precision_of_their_formats() -> None:
    rows = torch.tensor([[1 + 2.0**-8, 1 + 2.0**-11, 3.0]], dtype=torch.float64)
    assert Codec("bf16")(rows).tolist() == [[1.0, 1.0, 3.0]]
    assert Codec("fp16")(rows).tolist() == [[1 + 2.0**-8, 1.0, 3.0]]


@pytest.mark.parametrize(
    ("codec", "first", "later"),
    [
        ("bf16", 2 * 1000, 2 * 1000),
        ("fp16", 2 * 1000, 2 * 1000),
        ("int8", 4 * 1000, 1000 + 4),
        ("top_k", 4 * 1000, 20 * (4 + 4)),
    ],
)
def test_the_bytes_of_a_client_are_those_of_its_messages(
    codec: str, first: int, later: int
) -> None:
    communicator = opened(codec, keep=0.02)
    for step in range(3):
        communicator.at(step)(torch.randn(3, 1000))
        assert communicator.traffic.bytes_up == first + step * later
        assert communicator.traffic.bytes_down == (step + 1) * 4000


def test_exchanges_before_the_first_step_and_of_evaluation_are_exact() -> None:
    communicator, x = opened("top_k"), torch.randn(3, 50)
    exact = opened("none").unmetered()(x)
    for sync in (communicator.initial(), communicator.unmetered()):
        assert torch.equal(sync(x), exact)
    assert communicator.memory == {}
    assert communicator.traffic.bytes_up == 200


# Error feedback.


@pytest.mark.parametrize("codec", COARSE)
def test_the_memory_is_the_sum_of_a_clients_messages_and_the_mean_is_that_of_the_memories(
    codec: str,
) -> None:
    communicator = opened(codec, keep=0.1)
    noise = torch.Generator().manual_seed(0)
    sent = torch.zeros(3, 40, dtype=torch.float64)
    for step in range(6):
        x = torch.randn(3, 40, dtype=torch.float64, generator=noise)
        message = x if step == 0 else Codec(codec, 0.1)(x - sent)
        sent = sent + message
        mean = communicator.at(step)(x)
        (memory,) = communicator.memory.values()
        torch.testing.assert_close(memory, sent, rtol=0, atol=1e-14)
        torch.testing.assert_close(mean[0], sent.mean(0), rtol=0, atol=1e-14)
        assert step == 0 or (mean[0] - x.mean(0)).abs().max() > 1e-4


def test_error_feedback_sends_omitted_values_in_later_messages() -> None:
    communicator = opened("top_k", keep=0.25)
    communicator.at(0)(torch.zeros(3, 8, dtype=torch.float64))
    x = torch.arange(1.0, 25.0, dtype=torch.float64).view(3, 8)
    missing = [float((communicator.at(step)(x)[0] - x.mean(0)).norm()) for step in range(1, 6)]
    assert missing[:4] == sorted(missing[:4], reverse=True)
    assert missing[2] > 1
    assert missing[3] < 1e-13
    assert missing[4] < 1e-13


def test_each_exchange_of_a_step_and_each_field_has_a_memory_of_its_own() -> None:
    communicator = opened("int8")
    for step in range(2):
        sync: Sync = communicator.at(step)
        sync(torch.ones(3, 2), torch.full((3, 4), 2.0))
        sync(torch.full((3, 5), 3.0))
    shapes = {name: tuple(rows.shape) for name, rows in communicator.memory.items()}
    assert shapes == {"sent.0.0": (3, 2), "sent.0.1": (3, 4), "sent.1.0": (3, 5)}


def test_the_server_computes_from_the_decoded_messages() -> None:
    communicator = AdaptiveMatrix(compression="top_k", keep=0.5)
    communicator.open(LocalTransport(), Placement(1), Every(1))
    communicator.at(0).server(lambda x: 2 * x, torch.zeros(1, 4))
    (doubled,) = communicator.at(1).server(lambda x: 2 * x, torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    assert doubled.tolist() == [[8.0, 6.0, 0.0, 0.0]]
    assert communicator.traffic.bytes_up == 16 + 2 * (4 + 4)


@pytest.mark.parametrize("codec", COARSE)
def test_an_algorithm_still_reaches_the_solution(codec: str) -> None:
    def error(compression: str) -> float:
        communicator = AllReduce(compression=compression, keep=0.3)
        result = run(LSGD(lr=0.05, local_steps=1), QuadraticGame(dim=3), communicator, 600)
        return result.records[-1]["relative_error"]

    assert error(codec) < 1e-6


# Placement and resumption.


def walk(name: str, compression: str, transport: Transport) -> dict[str, Tensor]:
    made = AdaptiveMatrix(compression=compression, keep=0.2)
    drive = Drive(CASES[name], transport, communicator=made)
    *_, last = drive.states(12)
    return {**last.tensors(), **made.memory}


def walks(names: list[str]) -> dict[tuple[str, str], dict[str, Tensor]]:
    with connected() as world:
        return {(n, c): walk(n, c, world.transport) for n in names for c in ALL}


def test_placement_does_not_matter(ranks: Ranks) -> None:
    names = ["fedavg-classes", "local_sgda-auc"]
    (alone,) = ranks(1, walks, names)
    parts = ranks(3, walks, names)
    for key, fields in alone.items():
        for name, rows in fields.items():
            found = torch.cat([part[key][name] for part in parts])
            torch.testing.assert_close(found, rows, rtol=1e-12, atol=1e-12)


def run(
    algorithm: Any,
    problem: Any,
    communicator: Communicator,
    rounds: int,
    folder: Path | None = None,
) -> Result:
    world = World()
    site = Site(Placement(CLIENTS), SEED, torch.float64)
    plan = Plan(rounds=rounds, evaluate_every=rounds)
    runner = Runner(problem, algorithm, communicator, world, site, plan)
    runner.prepare()
    if folder is not None:
        runner.checkpoints = Checkpoints(folder, world, every=4)
    return runner.run()


@pytest.mark.parametrize("codec", COARSE)
def test_a_run_that_resumes_from_a_checkpoint_ends_like_an_uninterrupted_one(
    codec: str, tmp_path: Path
) -> None:
    def go(rounds: int, folder: Path) -> Result:
        algorithm, problem = FedAvg(lr=0.1, local_steps=2), Classification(CASES_DATA)
        return run(algorithm, problem, AllReduce(compression=codec), rounds, folder)

    whole = go(8, tmp_path / "whole")
    go(4, tmp_path / "parts")
    rest = go(8, tmp_path / "parts")
    for name, rows in whole.state.tensors().items():
        assert torch.equal(rest.state.tensors()[name], rows)
    assert rest.records[-1]["bytes_up"] == whole.records[-1]["bytes_up"]


CASES_DATA = CASES["fedavg-classes"].problem.dataset  # type: ignore[attr-defined]


# Refused.


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"compression": "zip"}, "compression must be one of none, bf16, .* got 'zip'"),
        ({"compression": "top_k", "keep": 1.0}, r"keep must be in \(0, 1\), got 1.0"),
    ],
)
def test_an_invalid_option_is_refused_by_name(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AllReduce(**bad)


def test_proxskip_is_refused_because_it_needs_exact_means() -> None:
    communicator = SkipCoin(compression="int8")
    schedule = ProxSkip(lr=0.1, p=0.5).schedule
    assert isinstance(schedule, Coins)
    with pytest.raises(InputError, match="only with exact means; use compression=none"):
        communicator.open(LocalTransport(), Placement(2), schedule)
