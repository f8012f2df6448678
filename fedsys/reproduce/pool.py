"""Execute runs in parallel, one process each; finished runs are not repeated."""

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

from fedsys.reproduce.sweep import PlannedRun
from fedsys.system.process import tune_process
from fedsys.system.provenance import commit, cores, machine, today
from fedsys.training.run_directory import write
from fedsys.training.run_files import UnreadableError, is_number, read_object

OUTPUT = "output.txt"
_OUTCOME = "outcome.json"
_STACK_OUTPUT = "stack.txt"
"""The output of the process of a stack, in the folder of its first run."""


@dataclass(frozen=True)
class Outcome:
    """The state of a completed run: "ended" (with a summary), "diverged" (not finite) or "failed".

    The first two are results and are stored; a failed run is repeated by the next command.
    """

    state: str
    message: str = ""
    commit: str = ""
    machine: str = ""
    date: str = ""
    seconds: float = 0.0


def checked(outcome: Outcome) -> Outcome:
    """Return an outcome that was read from a file; raise TypeError if a value has a wrong type."""
    texts = (outcome.message, outcome.commit, outcome.machine, outcome.date)
    valid = outcome.state in ("ended", "diverged") and all(isinstance(text, str) for text in texts)
    if not (valid and is_number(outcome.seconds)):
        raise TypeError("not an outcome")
    return outcome


class Watcher(Protocol):
    """Receives events of the runs."""

    def started(self, run: PlannedRun) -> None:
        """Handle the start of the process of a run."""

    def finished(self, run: PlannedRun, outcome: Outcome, earlier: bool) -> None:
        """Handle the end of a run; `earlier` if an earlier command completed it."""

    def tick(self) -> None:
        """Handle the passing of time; called about ten times a second."""


def outcome_of(run: PlannedRun) -> Outcome | None:
    """Return the stored outcome of a run; None if it is not completed."""
    with suppress(UnreadableError, TypeError):
        if (content := read_object(run.folder / _OUTCOME)) is not None:
            return checked(Outcome(**content))
    # The pool was killed before the run ended, and could not store the outcome.
    return Outcome("ended") if (run.folder / "summary.json").is_file() else None


def run_all(
    runs: Sequence[PlannedRun], jobs: int, ranks: int, watcher: Watcher, stacks: bool = True
) -> dict[Path, Outcome]:
    """Execute the unfinished runs in `jobs` processes at a time; return all outcomes by folder.

    Runs that can be stepped together share a process, unless `stacks` is false.

    An interrupt terminates the active runs; the next call resumes them from their checkpoints.
    """
    outcomes: dict[Path, Outcome] = {}
    unfinished: list[PlannedRun] = []
    for run in {run.folder: run for run in runs}.values():  # two panels may share a run
        if (outcome := outcome_of(run)) is not None:
            outcomes[run.folder] = outcome
            watcher.finished(run, outcome, earlier=True)
        else:
            unfinished.append(run)
    waiting = grouped(unfinished, jobs) if stacks and ranks == 1 else [(r,) for r in unfinished]
    threads = str(max(1, cores() // (jobs * ranks)))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedsys.reproduce.preload"])
    active: list[tuple[tuple[PlannedRun, ...], BaseProcess, float]] = []
    with _sigterm_as_interrupt():
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    job = waiting.pop(0)
                    for run in job:
                        run.folder.mkdir(parents=True, exist_ok=True)
                        watcher.started(run)
                    process: BaseProcess = context.Process(target=_run, args=(job, ranks))
                    process.start()
                    active.append((job, process, monotonic()))
                for ended in [entry for entry in active if not entry[1].is_alive()]:
                    active.remove(ended)
                    job, process, start = ended
                    seconds = (monotonic() - start) / len(job)
                    for run in job:
                        if len(job) > 1 and not _has_ended(run):
                            waiting.append((run,))  # alone it tells what is wrong
                            continue
                        code = process.exitcode if len(job) == 1 else _code(run)
                        outcomes[run.folder] = outcome = _outcome(run, code, seconds)
                        watcher.finished(run, outcome, earlier=False)
                watcher.tick()
                sleep(0.1)
        finally:
            _terminate([process for _, process, _ in active])
    return outcomes


def grouped(runs: Sequence[PlannedRun], jobs: int) -> list[tuple[PlannedRun, ...]]:
    """Return the runs of each process: stacks, in about equal parts for all `jobs`, or one run."""
    groups: dict[object, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(run.stack or run.folder, []).append(run)
    parts = max(1, jobs // max(1, len(groups)))
    found: list[tuple[PlannedRun, ...]] = []
    for group in groups.values():
        size = -(-len(group) // parts)
        found += [tuple(group[i : i + size]) for i in range(0, len(group), size)]
    return found


def _has_ended(run: PlannedRun) -> bool:
    """Return whether a run of a stack has left a result: a summary, or why it is not finite."""
    return (run.folder / "summary.json").is_file() or (run.folder / OUTPUT).is_file()


def _code(run: PlannedRun) -> int:
    """Return the exit code that a run of a stack would have alone."""
    return 0 if (run.folder / "summary.json").is_file() else 1


def _outcome(run: PlannedRun, code: int | None, seconds: float) -> Outcome:
    lines: list[str] = []
    with suppress(OSError):  # the folder was removed
        lines = (run.folder / OUTPUT).read_text(errors="replace").split("\n")
    last_line = next((line for line in reversed(lines) if line.strip()), "no output")
    origin: Any = {
        "commit": commit(),
        "machine": machine(),
        "date": today(),
        "seconds": round(seconds, 1),
    }
    if code == 0 and (run.folder / "summary.json").is_file():
        outcome = Outcome("ended", "", **origin)
    elif code == 1 and "is not finite" in last_line:
        outcome = Outcome("diverged", last_line.removeprefix("fedsys: "), **origin)
    else:
        return Outcome(
            "failed", f"exit code {code}: {last_line.removeprefix('fedsys: ')}", **origin
        )
    try:
        write(run.folder / _OUTCOME, json.dumps(outcome.__dict__, indent=2) + "\n")
    except OSError as error:
        return Outcome("failed", f"cannot write to {run.folder}: {error.strerror}", **origin)
    return outcome


def _run(job: Sequence[PlannedRun], ranks: int) -> None:
    """Execute `fedsys`, with several ranks its launcher, or a stack, in a process of its own."""
    tune_process()
    os.setsid()  # Ctrl-C reaches only the pool, which then terminates its runs
    Thread(target=_terminate_with_pool, daemon=True).start()
    run = job[0]
    name = OUTPUT if len(job) == 1 else _STACK_OUTPUT
    output = os.open(run.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    if len(job) > 1:
        from fedsys.reproduce.stacked_job import run_stack

        run_stack(job, OUTPUT)
        return
    arguments = [*run.arguments, "hydra.mode=RUN", f"run.dir={_quoted(run.folder)}"]
    if ranks > 1:
        from fedsys import launch

        launch.main(["--standalone", f"--nproc-per-node={ranks}", *arguments])
        sys.exit(0)
    from fedsys.cli import main as cli

    sys.argv = ["fedsys", *arguments]
    cli.main()


def _terminate_with_pool() -> None:
    """Terminate this run when the pool exits, even if the pool was killed."""
    pool = multiprocessing.parent_process()
    assert pool is not None
    wait([pool.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _quoted(path: Path) -> str:
    """Return a path as a quoted value of Hydra's override grammar."""
    escaped = str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _terminate(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C inside the block."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
