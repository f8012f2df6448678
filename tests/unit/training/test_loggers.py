"""Loggers work beside the rounds: in order, in one thread, and what fails there is told."""

from __future__ import annotations

from pathlib import Path
from threading import Event, active_count, current_thread
from time import sleep
from typing import Any

import pytest

from fedsys.core.errors import FedsysError, InputError
from fedsys.core.metrics import Record
from fedsys.training.loggers import BackgroundLogger, scalars


class Slow:
    """Waits for a sign before it logs anything."""

    def __init__(self) -> None:
        self.sign = Event()
        self.seen: list[Record] = []
        self.threads: set[str] = set()
        self.finished = False

    def begin(self, folder: Path, config: dict[str, Any]) -> None:
        self.threads.add(current_thread().name)

    def record(self, record: Record) -> None:
        assert self.sign.wait(60)
        self.threads.add(current_thread().name)
        self.seen.append(record)

    def finish(self) -> None:
        self.threads.add(current_thread().name)
        self.finished = True


class Failing(Slow):
    """A server that is gone."""

    def record(self, record: Record) -> None:
        raise ConnectionError("the server is gone")


def test_a_slow_logger_delays_only_the_end_of_a_run(tmp_path: Path) -> None:
    slow = Slow()
    loggers = BackgroundLogger([slow])
    loggers.begin(tmp_path, {})
    for step in range(3):
        record = {"step": float(step)}
        loggers.record(record)  # would wait for a minute
        record["step"] = -1.0  # the caller may change its record afterwards
    assert slow.seen == []
    slow.sign.set()
    loggers.finish()
    assert slow.seen == [{"step": 0.0}, {"step": 1.0}, {"step": 2.0}]
    assert slow.finished
    assert len(slow.threads) == 1
    assert current_thread().name not in slow.threads


def test_an_error_of_a_logger_is_raised_at_the_next_record_or_the_end(tmp_path: Path) -> None:
    loggers = BackgroundLogger([Failing()])
    loggers.begin(tmp_path, {})

    def record_on_and_on() -> None:
        for step in range(1000):
            loggers.record({"step": float(step)})
            sleep(0.01)

    with pytest.raises(FedsysError, match=r"a logger failed .ConnectionError: the server is gone"):
        record_on_and_on()
    with pytest.raises(FedsysError, match=r"a logger failed .ConnectionError: the server is gone"):
        loggers.finish()


def test_a_logger_that_cannot_start_fails_immediately(tmp_path: Path) -> None:
    class Missing(Slow):
        def begin(self, folder: Path, config: dict[str, Any]) -> None:
            raise InputError("logger=wandb needs wandb")

    with pytest.raises(InputError, match="needs wandb"):
        BackgroundLogger([Missing()]).begin(tmp_path, {})


def test_without_loggers_there_is_no_thread(tmp_path: Path) -> None:
    before = active_count()
    loggers = BackgroundLogger([])
    loggers.begin(tmp_path, {})
    loggers.record({"step": 0.0})
    assert active_count() == before
    loggers.finish()


def test_metrics_of_clients_are_logged_as_one_number_each_for_64_clients_at_most() -> None:
    record = {"step": 1, "test_auc": 0.5, "test_auc_clients": [0.25, None, *[0.75] * 98]}
    found = scalars(record)
    assert (found["test_auc"], found["test_auc/client_0"], found["test_auc/client_63"]) == (
        0.5,
        0.25,
        0.75,
    )
    assert "test_auc/client_1" not in found
    assert len(found) == 2 + 63
