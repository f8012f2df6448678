"""Communicators: means, shared coins, the server, gathering, and the bytes of each."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.counting import CountingTransport
from support.processes import Ranks, connected
from torch import Tensor

from fedsys.communication import AdaptiveMatrix, AllReduce, Communicator, SkipCoin
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.rounds import Coins, CommunicationSchedule, Every

CLIENTS = 6
SIZES = [3, 1, 4, 1, 5, 9]
COINS = Coins(0.3, {"fresh": 0.5, "rare": 0.05})
WORLDS = pytest.mark.parametrize("size", [1, 2, 4, 6])


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """Random numbers of all clients: [M, ...]."""
    return np.random.default_rng(seed).standard_normal((CLIENTS, *shape))


def hosted(placement: Placement, numbers: np.ndarray) -> Tensor:
    """The rows of the hosted clients."""
    return torch.from_numpy(numbers[placement.hosted.start : placement.hosted.stop].copy())


def opened(
    communicator: Communicator,
    transport: Any = None,
    schedule: CommunicationSchedule = Every(1),  # noqa: B008
    seed: int = 0,
    step: int = 0,
    synchronised_buffers: Tensor | None = None,
) -> Communicator:
    transport = transport or CountingTransport()
    placement = Placement(CLIENTS, transport.rank, transport.size)
    sizes = [SIZES[client] for client in placement.hosted]
    communicator.open(transport, placement, schedule, seed, step, sizes, synchronised_buffers)
    return communicator


def sent(communicator: Communicator) -> dict[str, float]:
    """The traffic without the clock."""
    counts = asdict(communicator.traffic)
    assert counts.pop("seconds_waited") >= 0
    assert counts.pop("dropped") == 0
    return counts


# Means.


def means(weights: str) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Means by one fused call and by separate ones, and the exchanges that each took."""
    with connected() as world:
        communicator = opened(AllReduce(weights=weights), world.transport)
        vectors, matrices = (
            hosted(communicator.placement, values(3)),
            hosted(communicator.placement, values(2, 2, seed=1)),
        )
        fused = list(communicator.at(0)(vectors, matrices))
        exchanges = [communicator.traffic.exchanges]
        sync = communicator.at(1)
        separate = [sync(vectors), sync(matrices)]
        return fused, separate, [*exchanges, communicator.traffic.exchanges - 1]


@WORLDS
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_means_equal_those_of_numpy_on_every_client(ranks: Ranks, size: int, weights: str) -> None:
    shares = SIZES if weights == "size" else None
    expected = [
        np.average(values(3), axis=0, weights=shares),
        np.average(values(2, 2, seed=1), axis=0, weights=shares),
    ]
    for fused, separate, exchanges in ranks(size, means, weights):
        for mean, other, numbers in zip(fused, separate, expected, strict=True):
            assert mean.shape[1:] == numbers.shape
            for row in (*mean, *other):
                np.testing.assert_allclose(row, numbers, rtol=1e-14, atol=1e-15)
        assert exchanges == [1, 2]


def test_a_field_may_be_one_number_for_each_client() -> None:
    scalars = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 9.0])
    assert opened(AllReduce()).at(0)(scalars).tolist() == [4.0] * CLIENTS


def test_means_keep_the_precision_of_their_fields() -> None:
    sync = opened(AllReduce()).at(0)
    assert sync(torch.ones(CLIENTS, 2, dtype=torch.float32)).dtype == torch.float32
    assert sync(torch.ones(CLIENTS, 2, dtype=torch.float64)).dtype == torch.float64


def test_a_mean_does_not_modify_the_fields() -> None:
    x = torch.from_numpy(values(3))
    before = x.clone()
    opened(AllReduce()).at(0)(x)
    assert torch.equal(x, before)


def test_a_local_step_returns_the_very_same_objects_and_sends_nothing() -> None:
    transport = CountingTransport()
    communicator = opened(AllReduce(), transport, Every(3))
    x, y = torch.ones(CLIENTS, 2), torch.ones(CLIENTS, 3)
    for step in (0, 1, 3, 4):
        sync = communicator.at(step)
        assert not sync
        same_x, same_y = sync(x, y)
        assert same_x is x
        assert same_y is y
        assert sync(x) is x
    assert transport.calls == []
    assert not any(sent(communicator).values())


def test_every_kth_step_communicates_and_is_a_round() -> None:
    communicator = opened(AllReduce(), schedule=Every(3))
    assert [bool(communicator.at(step)) for step in range(7)] == [False, False, True] * 2 + [False]
    assert communicator.traffic.rounds == 2


def test_initial_and_unmetered_exchanges_communicate_and_are_no_rounds() -> None:
    communicator = opened(AllReduce(), schedule=Every(3))
    x = torch.from_numpy(values(2))
    assert communicator.initial()
    communicator.initial()(x)
    assert sent(communicator)["exchanges"] == 1
    communicator.unmetered()(x)
    assert sent(communicator) == {
        "rounds": 0,
        "exchanges": 1,
        "bytes_up": 16,
        "bytes_down": 16,
        "bytes_control": 0,
    }


# Bytes.


def traffic_of_each_verb() -> dict[str, dict[str, float]]:
    counts = {}
    with connected() as world:
        for verb in ("mean", "mean32", "server", "gather"):
            communicator = opened(AdaptiveMatrix(), world.transport)
            x = hosted(communicator.placement, values(3))
            y = hosted(communicator.placement, values(2, 2))
            sync = communicator.at(0)
            if verb == "mean":
                sync(x, y)
            elif verb == "mean32":
                sync(x.float(), y.float())
            elif verb == "server":
                sync.server(lambda x, y: (torch.outer(x, x), y[0]), x, y)
            else:
                sync.gather(x)
            counts[verb] = sent(communicator)
    return counts


@WORLDS
def test_bytes_are_exact_and_those_of_one_client_at_any_placement(ranks: Ranks, size: int) -> None:
    def once(up: int, down: int, control: int = 0) -> dict[str, float]:
        return {
            "rounds": 1,
            "exchanges": 1,
            "bytes_up": up,
            "bytes_down": down,
            "bytes_control": control,
        }

    for counts in ranks(size, traffic_of_each_verb):
        assert counts["mean"] == once(up=8 * (3 + 4), down=8 * (3 + 4))
        assert counts["mean32"] == once(up=4 * (3 + 4), down=4 * (3 + 4))
        # The shapes of at most 16 results of at most 4 axes, sent once.
        assert counts["server"] == once(up=8 * 7, down=8 * (9 + 2), control=16 * 5 * 8)
        assert counts["gather"] == once(up=8 * 3, down=8 * 3 * CLIENTS)


# Coins.


def flip(steps: int, first: int = 0, seed: int = 7) -> tuple[list[Any], list[int], Any]:
    """The coins and the number of collectives of each step, and the traffic."""
    told, collectives = [], []
    with connected() as world:
        transport = CountingTransport(world.transport)
        communicator = opened(SkipCoin(), transport, COINS, seed=seed, step=first)
        x = hosted(communicator.placement, values(2))
        transport.take()
        for step in range(first, first + steps):
            sync = communicator.at(step)
            before = {name: sync.coin(name) for name in COINS.others}
            x = sync(x)
            assert before == {name: sync.coin(name) for name in COINS.others}
            told.append((bool(sync), *before.values()))
            collectives.append(sum(transport.take().values()))
        return told, collectives, sent(communicator)


def test_all_ranks_see_the_same_coins_and_a_skipped_iteration_sends_nothing(ranks: Ranks) -> None:
    expected, _, counts = flip(200)
    assert 30 < sum(told[0] for told in expected) < 90
    for told, collectives, counted in ranks(3, flip, 200):
        assert told == expected
        # A round is one all-reduce, and the length and the other coins of the next round.
        assert collectives == [3 if heads else 0 for heads, *_ in told]
        assert counted == counts


def test_the_control_bytes_are_a_length_and_a_byte_per_other_coin() -> None:
    told, _, counts = flip(200)
    rounds = [step for step, (heads, *_) in enumerate(told) if heads]
    announced = next(s for s in range(200, 400) if flip(1, first=s)[0][0][0]) + 1
    assert counts["rounds"] == counts["exchanges"] == len(rounds)
    assert counts["bytes_control"] == 8 * (len(rounds) + 1) + 2 * announced


@pytest.mark.parametrize("first", [1, 37, 63, 64, 65, 150])
def test_coins_are_a_function_of_the_seed_and_the_step(first: int) -> None:
    whole, _, _ = flip(200)
    assert flip(200 - first, first=first)[0] == whole[first:]
    assert flip(200, seed=8)[0] != whole


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_the_number_of_rounds_is_within_three_sigma_of_pT(p: float) -> None:
    steps, coins = 10_000, Coins(p, {"other": 0.25})
    communicator = opened(SkipCoin(), schedule=coins)
    x = torch.ones(CLIENTS, 1)
    heads = np.zeros((steps, 2), dtype=bool)
    for step in range(steps):
        sync = communicator.at(step)
        heads[step] = bool(sync), sync.coin("other")
        sync(x)
    assert communicator.traffic.rounds == heads[:, 0].sum()
    for column, chance in ((heads[:, 0], p), (heads[:, 1], 0.25), (heads.all(1), 0.25 * p)):
        assert abs(column.sum() - chance * steps) <= 3 * np.sqrt(chance * (1 - chance) * steps)


def test_a_coin_with_chance_one_communicates_in_every_step() -> None:
    communicator = opened(SkipCoin(), schedule=Coins(1.0))
    for step in range(5):
        sync = communicator.at(step)
        assert sync
        sync(torch.ones(CLIENTS, 1))


def test_skip_coin_serves_a_periodic_schedule_without_any_coin() -> None:
    transport = CountingTransport()
    communicator = opened(SkipCoin(), transport, Every(2))
    for step in range(4):
        communicator.at(step)(torch.ones(CLIENTS, 1))
    assert transport.take() == {"all_reduce": 2}
    assert communicator.traffic.bytes_control == 0


# The server.


def serve() -> tuple[list[tuple[Tensor, ...]], int, list[tuple[str, int]]]:
    """Three rounds of a server whose results have different shapes; its calls; the collectives."""
    calls = 0

    def matrices(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        nonlocal calls
        calls += 1
        return torch.outer(x, x) / 3, g.sqrt(), x.sum(), torch.stack([g, g])[:, None]

    results = []
    with connected() as world:
        transport = CountingTransport(world.transport)
        communicator = opened(AdaptiveMatrix(), transport)
        for step in range(3):
            x = hosted(communicator.placement, values(3, seed=step))
            results.append(communicator.at(step).server(matrices, x, x[:, :2].square()))
        return results, calls, transport.calls


@WORLDS
def test_all_clients_of_all_ranks_hold_bit_identical_results_of_the_server(
    ranks: Ranks, size: int
) -> None:
    answers = ranks(size, serve)
    for step in range(3):
        first = [result[0] for result in answers[0][0][step]]
        for results, _, _ in answers:
            for result, expected in zip(results[step], first, strict=True):
                assert all(torch.equal(row, expected) for row in result)
        x = values(3, seed=step).mean(0)
        g = np.square(values(3, seed=step)[:, :2]).mean(0)
        numbers = (np.outer(x, x) / 3, np.sqrt(g), x.sum(), np.stack([g, g])[:, None])
        for result, expected in zip(first, numbers, strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-15)


def test_the_function_runs_on_the_first_rank_only(ranks: Ranks) -> None:
    assert [calls for _, calls, _ in ranks(4, serve)] == [3, 0, 0, 0]


def test_the_server_is_one_reduce_and_one_broadcast_and_sends_shapes_once(ranks: Ranks) -> None:
    for _, _, calls in ranks(4, serve):
        verbs = [verb for verb, _ in calls]
        assert verbs == ["reduce", "broadcast", "broadcast"] + ["reduce", "broadcast"] * 2
        assert [size for verb, size in calls if verb == "reduce"] == [8 * 5] * 3


def serve_several() -> list[Tensor]:
    """Results of functions that differ only in their code."""
    with connected() as world:
        communicator = opened(AdaptiveMatrix(), world.transport)
        x = hosted(communicator.placement, values(3))
        results = []
        for step in range(2):
            sync = communicator.at(step)
            (one,) = sync.server(lambda mean: mean[:1], x)
            (two,) = sync.server(lambda mean: mean[:2], x)
            (total,) = sync.server(partial(torch.Tensor.sum), x)
            (scaled,) = sync.server(partial(_scaled, 2.0), x)
            results += [one, two, total, scaled]
        return results


def _scaled(factor: float, mean: Tensor) -> Tensor:
    return factor * mean


@pytest.mark.parametrize("size", [1, 3])
def test_two_functions_of_one_step_may_give_results_of_different_shapes(
    ranks: Ranks, size: int
) -> None:
    mean = values(3).mean(0)
    expected = [mean[:1], mean[:2], mean.sum(), 2 * mean] * 2
    for results in ranks(size, serve_several):
        for result, numbers in zip(results, expected, strict=True):
            np.testing.assert_allclose(result[0], numbers, atol=1e-15)


# Gather.


def gathered() -> list[Tensor]:
    with connected() as world:
        communicator = opened(AllReduce(), world.transport)
        sync = communicator.at(0)
        shapes = [(), (2,), (2, 3)]
        return [sync.gather(hosted(communicator.placement, values(*shape))) for shape in shapes]


@WORLDS
def test_gather_gives_all_clients_in_their_order_also_with_uneven_hosts(
    ranks: Ranks, size: int
) -> None:
    for scalars, vectors, matrices in ranks(size, gathered):
        assert torch.equal(scalars, torch.from_numpy(values()))
        assert torch.equal(vectors, torch.from_numpy(values(2)))
        assert torch.equal(matrices, torch.from_numpy(values(2, 3)))


# Synchronised buffers: the running statistics of BatchNorm.


def exchange_buffers(verb: str) -> list[Tensor]:
    """The buffers before a round, after its first exchange, and after a second one."""
    with connected() as world:
        transport = CountingTransport(world.transport)
        placement = Placement(CLIENTS, transport.rank, transport.size)
        synchronised_buffers = hosted(placement, values(2, seed=5))
        communicator = opened(
            AdaptiveMatrix(), transport, Every(2), synchronised_buffers=synchronised_buffers
        )
        x = hosted(placement, values(3))
        seen = []

        def exchange(step: int) -> None:
            sync = communicator.at(step)
            if verb == "server" and sync:
                sync.server(_scaled_mean, x)
            else:
                sync(x)
            seen.append(synchronised_buffers.clone())

        exchange(0)
        exchange(1)
        assert transport.calls[0][1] == 8 * (3 + 2)
        synchronised_buffers += 1.0 + placement.rank
        transport.calls.clear()
        for sync in (communicator.at(1), communicator.unmetered(), communicator.initial()):
            sync(x)
        assert [size for _, size in transport.calls] == [8 * 3] * 3
        seen.append(synchronised_buffers.clone() - 1.0 - placement.rank)
        return seen


def _scaled_mean(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize("verb", ["mean", "server"])
@pytest.mark.parametrize("size", [1, 4])
def test_synchronised_buffers_are_averaged_once_per_round_and_never_unmetered(
    ranks: Ranks, size: int, verb: str
) -> None:
    answers = ranks(size, exchange_buffers, verb)
    before, averaged, after = (
        torch.cat([answer[i] for answer in answers]).numpy() for i in range(3)
    )
    mean = values(2, seed=5).mean(0)
    np.testing.assert_array_equal(before, values(2, seed=5))
    np.testing.assert_allclose(averaged, np.tile(mean, (CLIENTS, 1)), atol=1e-15)
    np.testing.assert_allclose(after, averaged, atol=1e-15)


# Refused.


def test_all_reduce_refuses_an_algorithm_that_flips_coins_and_names_skip_coin() -> None:
    with pytest.raises(InputError, match=r"communicator=all_reduce.*use communicator=skip_coin"):
        opened(AllReduce(), schedule=COINS)


@pytest.mark.parametrize("communicator", [AllReduce, SkipCoin])
def test_a_communicator_without_a_server_names_the_one_that_has_it(
    communicator: type[AllReduce],
) -> None:
    sync = opened(communicator()).at(0)
    with pytest.raises(InputError, match="use communicator=adaptive_matrix"):
        sync.server(_scaled_mean, torch.ones(CLIENTS, 2))


def test_the_server_and_gather_belong_to_communication_steps() -> None:
    sync = opened(AdaptiveMatrix(), schedule=Every(2)).at(0)
    with pytest.raises(AssertionError, match="if sync"):
        sync.server(_scaled_mean, torch.ones(CLIENTS, 2))
    with pytest.raises(AssertionError, match="if sync"):
        sync.gather(torch.ones(CLIENTS, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", 0), ("startup_timeout", -1.0), ("backend", "mpi"), ("weights", "random")],
)
def test_a_setting_outside_its_range_is_refused_by_name_and_value(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name} must be .*, got {value!r}"):
        AllReduce(**{name: value})  # type: ignore[arg-type]


# Placement.


@pytest.mark.parametrize(
    ("ranks_", "blocks"),
    [
        (1, [range(0, 6)]),
        (4, [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]),
        (6, [range(c, c + 1) for c in range(6)]),
    ],
)
def test_clients_are_placed_in_contiguous_blocks_and_the_first_ranks_host_one_more(
    ranks_: int, blocks: list[range]
) -> None:
    placements = [Placement(6, rank, ranks_) for rank in range(ranks_)]
    assert [placement.hosted for placement in placements] == blocks
    for client in range(6):
        assert client in blocks[placements[0].host_of(client)]


@pytest.mark.parametrize("clients", [0, -1])
def test_no_clients_is_refused(clients: int) -> None:
    with pytest.raises(InputError, match=f"clients must be at least 1, got {clients}"):
        Placement(clients)


def test_fewer_clients_than_ranks_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match="clients=3 is fewer than the 4 ranks"):
        Placement(3, 0, 4)
