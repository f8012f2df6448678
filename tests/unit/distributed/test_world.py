"""The processes of a run: what they compute on, how they meet, and what they say of a lost one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import Ranks, connected

from fedsys.core.errors import InputError, LostRankError
from fedsys.distributed.world import World, choose_backend, choose_device, set_threads

# What each rank computes on.


@pytest.mark.parametrize(
    ("wanted", "local_ranks", "gpus", "chosen"),
    [
        ("auto", 4, 0, "gloo"),
        ("auto", 4, 4, "nccl"),
        ("auto", 4, 8, "nccl"),
        ("auto", 4, 3, "gloo"),  # ranks share the GPUs
        ("gloo", 4, 4, "gloo"),
        ("nccl", 4, 4, "nccl"),
    ],
)
def test_nccl_if_every_rank_of_the_host_has_a_gpu_of_its_own_else_gloo(
    wanted: str, local_ranks: int, gpus: int, chosen: str
) -> None:
    assert choose_backend(wanted, local_ranks, gpus) == chosen


def test_nccl_with_too_few_gpus_is_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match="GPU for each of the 4 ranks of this host, which has 3"):
        choose_backend("nccl", 4, 3)


@pytest.mark.parametrize(
    ("wanted", "local_rank", "gpus", "chosen"),
    [
        ("auto", 2, 0, "cpu"),
        ("auto", 2, 4, "cuda:2"),
        ("auto", 5, 4, "cuda:1"),
        ("cpu", 2, 4, "cpu"),
        ("cuda", 5, 4, "cuda:1"),
        ("cuda:3", 0, 4, "cuda:3"),
    ],
)
def test_the_device_is_the_gpu_of_the_local_rank_where_there_is_one(
    wanted: str, local_rank: int, gpus: int, chosen: str
) -> None:
    assert choose_device(wanted, local_rank, gpus) == torch.device(chosen)


@pytest.mark.parametrize(("wanted", "gpus"), [("cuda", 0), ("cuda:2", 2)])
def test_a_missing_gpu_is_refused_with_the_number_of_gpus(wanted: str, gpus: int) -> None:
    with pytest.raises(InputError, match=f"device={wanted} is not there: this host has {gpus} "):
        choose_device(wanted, 0, gpus)


def test_a_word_that_is_no_device_is_refused() -> None:
    with pytest.raises(InputError, match="device must be auto, cpu, cuda or cuda:N, got 'gpu7'"):
        choose_device("gpu7", 0, 1)


# Threads.


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """How many threads a rank of a host with 8 cores takes, beginning with 1."""
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def taken(local_ranks: int) -> int:
        torch.set_num_threads(1)
        set_threads(local_ranks)
        return torch.get_num_threads()

    yield taken
    torch.set_num_threads(1)


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Make a real process with this environment the parent of ours."""
    parents = []

    def adopt(environment: dict[str, str]) -> None:
        parents.append(subprocess.Popen(["sleep", "60"], env={"PATH": "/bin", **environment}))
        while b"PATH=" not in Path(f"/proc/{parents[-1].pid}/environ").read_bytes():
            time.sleep(0.01)  # until the kernel has given it its environment
        monkeypatch.setattr(os, "getppid", lambda: parents[-1].pid)

    yield adopt
    for parent in parents:
        parent.kill()
        parent.wait()


def test_a_rank_takes_its_share_of_the_cores_and_at_least_one(
    threads: Callable[[int], int],
) -> None:
    assert [threads(ranks) for ranks in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


def test_a_number_of_threads_that_the_user_set_is_kept(
    threads: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads(2) == 1


def test_the_one_thread_that_torchrun_sets_on_its_own_account_is_not_the_users(
    threads: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
    started_by: Callable[[dict[str, str]], None],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    started_by({})
    assert threads(2) == 4
    started_by({"OMP_NUM_THREADS": "1"})
    assert threads(2) == 1


# Who is who.


def test_the_world_is_one_process_without_variables_of_a_launcher() -> None:
    alone = World.from_environment({})
    assert (alone.rank, alone.ranks, alone.local_rank, alone.local_ranks) == (0, 1, 0, 1)
    settings = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    world = World.from_environment(settings)
    assert (world.rank, world.ranks, world.local_rank, world.local_ranks) == (5, 8, 1, 4)


def shared() -> tuple[str, list[str]]:
    """A value of the first rank, told before they are connected; and what the ranks say."""
    with connected() as world:
        value = world.from_first_rank("name", lambda: f"from rank {world.rank}")
        said: list[str] = []
        world.report_failure(InputError("one line", reporter=1), said.append)
        return value, said


def test_all_ranks_get_the_value_of_rank_0_and_only_the_reporter_prints(ranks: Ranks) -> None:
    assert ranks(3, shared) == [
        ("from rank 0", []),
        ("from rank 0", ["one line"]),
        ("from rank 0", []),
    ]


def test_a_single_process_reports_its_own_errors() -> None:
    said: list[str] = []
    World().report_failure(InputError("one line"), said.append)
    assert said == ["one line"]


# A rank that is lost.

TIMEOUT = 5.0


def lose(victim: int, how: str) -> tuple[str, list[str], float, float]:
    """Go round until one rank is gone: the error, what is said, and the seconds of each."""
    world = World.from_environment()
    if how == "never came" and world.rank == victim:
        time.sleep(2 * TIMEOUT)
        return "", [], 0.0, 0.0
    started = time.monotonic()
    said: list[str] = []
    try:
        world.connect("gloo", TIMEOUT, TIMEOUT)
        world.exchange_hosts()
        for turn in range(20):
            world.transport.all_reduce(torch.ones(1000))
            if world.rank == victim and turn == 10:
                started = time.monotonic()
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(2 * TIMEOUT + 1)
                return "", [], 0.0, 0.0
    except LostRankError as error:
        noticed = time.monotonic() - started
        world.report_failure(error, said.append)
        return type(error).__name__, said, noticed, time.monotonic() - started
    return "nothing happened", [], 0.0, 0.0


LOSSES = [(2, "hangs"), (2, "never came"), (1, "killed"), (0, "killed")]


def after_loss(victim: int, how: str) -> list[Any]:
    """What the ranks that are left say, in a world of its own."""
    team = Ranks()
    answers = team.attempt(3, lose, victim, how, patience=60)
    team.close()
    survivors = [answer for rank, answer in enumerate(answers) if rank != victim]
    assert not any(trace for _, trace in survivors), survivors
    return [result for result, _ in survivors]


@pytest.fixture(scope="module")
def losses() -> dict[tuple[int, str], list[Any]]:
    """Two at once: what takes long is waiting."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(LOSSES, pool.map(after_loss, *zip(*LOSSES, strict=True)), strict=True))


@pytest.mark.parametrize(("victim", "how"), LOSSES)
def test_when_a_rank_is_lost_the_others_end_in_time_and_one_of_them_names_it(
    losses: dict[tuple[int, str], list[Any]], victim: int, how: str
) -> None:
    survivors = losses[victim, how]
    lines = [line for _, said, _, _ in survivors for line in said]
    for error, _, noticed, ended in survivors:
        assert error == "LostRankError"
        assert noticed < TIMEOUT + 3
        assert ended < TIMEOUT + 5
    (line,) = lines
    host = "host unknown" if how == "never came" else socket.gethostname()
    assert line.startswith(f"rank {victim} ({host}) is lost: it died, hangs or was cut off")
    assert "\n" not in line
