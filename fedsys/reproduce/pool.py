"""Several runs at a time, each in a process of its own; what is finished is not run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, Protocol

from fedsys.reproduce.provenance import commit, cores, machine, today
from fedsys.reproduce.sweep import PlannedRun
from fedsys.runtime.run_directory import write

OUTPUT = "output.txt"
_OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: "ended" with a summary, "diverged" to infinity, or "failed" otherwise.

    The first two are results and stay; a run that failed is tried again the next time.
    """

    state: str
    message: str = ""
    commit: str = ""
    machine: str = ""
    date: str = ""
    seconds: float = 0.0


class Watcher(Protocol):
    """Who is told of the runs."""

    def started(self, run: PlannedRun) -> None:
        """A process was started for it."""

    def finished(self, run: PlannedRun, outcome: Outcome, earlier: bool) -> None:
        """It has ended; `earlier`: already when this was begun."""

    def tick(self) -> None:
        """Some time has passed."""


def outcome_of(run: PlannedRun) -> Outcome | None:
    """How it ended, if it did."""
    with suppress(OSError, ValueError, TypeError):
        return Outcome(**json.loads((run.folder / _OUTCOME).read_text()))
    # Its process ended after that of the pool, which was killed.
    return Outcome("ended") if (run.folder / "summary.json").is_file() else None


def run_all(
    runs: Sequence[PlannedRun], jobs: int, ranks: int, watcher: Watcher
) -> dict[Path, Outcome]:
    """Run what is not finished, `jobs` at a time; the outcome of every run by its folder.

    Interrupted, it ends the runs that are under way, which go on from their checkpoints next time.
    """
    outcomes: dict[Path, Outcome] = {}
    waiting: list[PlannedRun] = []
    for run in {run.folder: run for run in runs}.values():  # two panels may share a run
        if (outcome := outcome_of(run)) is not None:
            outcomes[run.folder] = outcome
            watcher.finished(run, outcome, earlier=True)
        else:
            waiting.append(run)
    threads = str(max(1, cores() // (jobs * ranks)))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedsys.reproduce.preload"])
    active: list[tuple[PlannedRun, BaseProcess, float]] = []
    with _terminated_as_interrupted():
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    run = waiting.pop(0)
                    run.folder.mkdir(parents=True, exist_ok=True)
                    process: BaseProcess = context.Process(target=_run, args=(run, ranks))
                    process.start()
                    active.append((run, process, monotonic()))
                    watcher.started(run)
                for one in [one for one in active if not one[1].is_alive()]:
                    active.remove(one)
                    run, process, began = one
                    outcome = _outcome(run, process.exitcode, monotonic() - began)
                    outcomes[run.folder] = outcome
                    watcher.finished(run, outcome, earlier=False)
                watcher.tick()
                sleep(0.1)
        finally:
            _end([process for _, process, _ in active])
    return outcomes


def _outcome(run: PlannedRun, code: int | None, seconds: float) -> Outcome:
    lines = (run.folder / OUTPUT).read_text(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    made: Any = {
        "commit": commit(),
        "machine": machine(),
        "date": today(),
        "seconds": round(seconds, 1),
    }
    if code == 0 and (run.folder / "summary.json").is_file():
        outcome = Outcome("ended", "", **made)
    elif code == 1 and "is not finite" in said:
        outcome = Outcome("diverged", said.removeprefix("fedsys: "), **made)
    else:
        return Outcome("failed", f"exit code {code}: {said.removeprefix('fedsys: ')}", **made)
    write(run.folder / _OUTCOME, json.dumps(outcome.__dict__, indent=2) + "\n")
    return outcome


def _run(run: PlannedRun, ranks: int) -> None:
    """What the process of a run does: `fedsys ...`, or its launcher, with a file for its words."""
    os.setsid()  # Ctrl-C is for the pool, which ends its runs in order
    Thread(target=_end_with_the_pool, daemon=True).start()
    output = os.open(run.folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    arguments = [*run.arguments, "hydra.mode=RUN", f"run.dir={_quoted(run.folder)}"]
    if ranks > 1:
        from fedsys import launch

        launch.main(["--standalone", f"--nproc-per-node={ranks}", *arguments])
        sys.exit(0)
    from fedsys import cli

    sys.argv = ["fedsys", *arguments]
    cli.main()


def _end_with_the_pool() -> None:
    """Nobody waits for a run whose pool was killed, or interrupted while it started the run."""
    pool = multiprocessing.parent_process()
    assert pool is not None
    wait([pool.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _quoted(path: Path) -> str:
    """As a value in Hydra's grammar, whatever signs it has."""
    escaped = str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite request to end is Ctrl-C by another name."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
