"""Kill runs under the launcher at chosen or random moments, restart them, compare every bit.

    python tests/kills.py --number 100 --seed 0

Launchers and ranks are forks of a server that has imported torch, which saves 3 seconds each. With
`--exec`, and in trials that kill at the start, they are started as commands.

A trial starts a small job, kills some of its processes, starts the same command again unless the
launcher restarts the ranks itself, and compares the result with an undisturbed run: the final
variables, the last checkpoint, and all records except times. Every process of a trial has a mark in
its environment or in its name, so that processes left behind are found.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from safetensors.torch import load_file
from support.launched_runs import PATIENCE, Run, marked, ranks_of

SECONDS_TO_END = 10.0
"""Time for processes to exit after their launcher was killed; the kernel needs milliseconds."""
ATTEMPTS = 3
"""Maximum number of trials: a fast run may end before the chosen moment."""
NOT_COMPARED = ("seconds", "seconds_waited", "bytes_control")
"""Times, and the bytes of the shapes of server results, which are sent again after a restart."""

COMMON = ("dtype=float64", "checkpoint.every=10")
GAME = ("problem=quadratic_game", "problem.dim=50", "problem.noise=1", "evaluate_every=50")
DIGITS = ("evaluate_every=5", "model.hidden=[64]")
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "local_sgda": (3, ("algorithm=local_sgda", *GAME, "clients=5", "rounds=500")),
    "proxskip": (2, ("algorithm=proxskip", *GAME, "clients=4", "rounds=500")),
    "compressed": (
        2,
        ("algorithm=local_sgda", *GAME, "communicator.compression=top_k", "rounds=400"),
    ),
    "bilevel": (
        2,
        ("algorithm=fedbioacc", "problem=quadratic_bilevel", "evaluate_every=50", "rounds=300"),
    ),
    "auc": (2, ("algorithm=adafgda", "problem=auc", *DIGITS, "clients=4", "rounds=150")),
    "compositional": (2, ("algorithm=localscgdam", *DIGITS, "clients=2", "rounds=60")),
    "scaffold": (
        2,
        ("algorithm=scaffold", "problem=classification", *DIGITS, "clients=6", "rounds=150"),
    ),
    # Nearly all of the time is evaluation: 4 samples in a step, 1797 in a record.
    "evaluation": (
        2,
        (
            "algorithm=fedavg",
            "problem=classification",
            "problem.batch_size=4",
            "algorithm.local_steps=1",
            "model.hidden=[1024,1024]",
            "evaluate_every=1",
            "clients=2",
            "rounds=40",
        ),
    ),
}
"""Number of ranks and settings by name."""

MOMENTS = ("start", "round", "evaluation", "checkpoint", "last checkpoint")
VICTIMS = ("a rank", "two ranks", "the launcher")


@dataclass(frozen=True)
class Trial:
    """Which processes are killed, when, and whether the launcher restarts them."""

    job: str
    moment: str
    victims: str
    restarts: bool = False
    seed: int = 0

    def __str__(self) -> str:
        how = "restarted by the launcher" if self.restarts else "started again"
        return f"{self.job}: {self.victims}, {self.moment}, {how}"


@dataclass
class Outcome:
    """The result of a trial; `faults` lists every deviation from the expected behaviour."""

    trial: Trial
    faults: list[str] = field(default_factory=list)
    seconds_to_end: float = 0.0
    """Time until the last process of a killed run had exited."""
    caught: bool = True
    """Whether the run was still active, or a checkpoint incomplete, at the moment of the kill."""
    said: str = ""


def drawn(number: int, seed: int) -> list[Trial]:
    """Return trials with every moment and every kind of victim in turn, the rest at random."""
    dice = Random(seed)
    trials = []
    for i in range(number):
        moment, victims = MOMENTS[i % len(MOMENTS)], VICTIMS[i // len(MOMENTS) % len(VICTIMS)]
        job = "evaluation" if moment == "evaluation" else dice.choice(list(JOBS)[:-1])
        restarts = victims != "the launcher" and dice.random() < 0.4
        trials.append(Trial(job, moment, victims, restarts, dice.randrange(2**31)))
    return trials


class Reference:
    """Undisturbed runs, executed once for each job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, job: str) -> Path:
        """Return the run directory of an undisturbed run."""
        folder = self._folder / f"whole-{job}"
        if not (folder / "summary.json").is_file():
            run = _started(job, folder, "none", 0, execs=False)
            assert run.wait() == 0, run.said()
        return folder


def run_trial(trial: Trial, reference: Reference, folder: Path, execs: bool = False) -> Outcome:
    """Kill processes of a run, let it finish, and compare."""
    whole, outcome = reference.of(trial.job), Outcome(trial)
    dice, mark = Random(trial.seed), f"k{trial.seed:x}"
    last = max((whole / "checkpoints").glob("step-*")).name
    execs = execs or trial.moment == "start"
    run = _started(trial.job, folder, mark, 3 if trial.restarts else 0, execs)
    try:
        outcome.caught = _wait_for(trial, run, folder, last, mark, dice)
        outcome.caught &= _kill(trial, run, mark, dice)
        run.wait()
        if not trial.restarts:
            # Start the same command again, at once or after all processes have exited.
            if dice.random() < 0.5:
                outcome.seconds_to_end = _seconds_until_gone(mark)
                if outcome.seconds_to_end > SECONDS_TO_END:
                    outcome.faults.append("processes remained after the run was killed")
            run = _started(trial.job, folder, mark, 0, execs)
            run.wait()
        outcome.said = run.said()
        if run.code != 0:
            outcome.faults.append(f"exit code {run.code}")
        if _seconds_until_gone(mark) > SECONDS_TO_END:
            outcome.faults.append("processes remained after the end of the run")
        outcome.faults += differences(folder, whole)
        if "Traceback" in outcome.said:
            outcome.faults.append("a traceback")
    finally:
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return outcome


def run_until_caught(
    trial: Trial, reference: Reference, folder: Path, execs: bool = False
) -> Outcome:
    """Run a trial; repeat it with other random numbers if the run ended before the kill."""
    for attempt in range(ATTEMPTS):
        drawn_again = replace(trial, seed=trial.seed + attempt)
        outcome = run_trial(drawn_again, reference, folder / str(attempt), execs)
        if outcome.caught or outcome.faults:
            break
    return outcome


def _started(job: str, folder: Path, mark: str, restarts: int, execs: bool) -> Run:
    ranks, settings = JOBS[job]
    return Run(ranks, (*settings, *COMMON), folder, mark, restarts, execs)


def differences(folder: Path, whole: Path) -> list[str]:
    """Return the differences between two run directories, except times."""
    found = []
    last = max((whole / "checkpoints").glob("step-*"))
    for path in (whole / "final.safetensors", *sorted(last.glob("*.safetensors"))):
        name = path.relative_to(whole)
        if not (folder / name).is_file():
            found.append(f"{name} is missing")
        elif _bits(folder / name) != _bits(path):
            found.append(f"{name} differs")
    if _records(folder) != _records(whole):
        found.append("metrics.jsonl differs")
    return found


def _bits(path: Path) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in load_file(path).items()}


def _records(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{k: v for k, v in record.items() if k not in NOT_COMPARED} for record in records]


def _wait_for(
    trial: Trial,
    run: Run,
    folder: Path,
    last: str,
    mark: str,
    dice: Random,
) -> bool:
    """Wait for the moment of the trial; return whether it was caught."""

    def poll(condition: Callable[[], bool], seconds: float = 0.005) -> bool:
        deadline = time.monotonic() + PATIENCE
        while run.code is None and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(seconds)
        return False

    if trial.moment == "start":
        if trial.victims != "the launcher":
            poll(lambda: len(ranks_of(run.pid, mark)) == JOBS[trial.job][0])
        # The first checkpoint ends the start, however fast the machine is.
        until = time.monotonic() + dice.random() * 8
        started = folder / "checkpoints"
        poll(lambda: time.monotonic() > until or any(started.glob("step-*")))
        return run.code is None
    if trial.moment == "last checkpoint":
        partial, sealed = (folder / "checkpoints" / name for name in (f".{last}.partial", last))
        poll(lambda: partial.exists() or sealed.exists(), 0.0005)
        return not sealed.exists()
    if not poll(lambda: any((folder / "checkpoints").glob("step-*"))):
        return False
    time.sleep(dice.random() * 0.3)
    if trial.moment == "checkpoint":
        return poll(lambda: any((folder / "checkpoints").glob(".step-*.partial")), 0.0005)
    return run.code is None


def _kill(trial: Trial, run: Run, mark: str, dice: Random) -> bool:
    """Kill the victims; return whether there were any."""
    if trial.victims == "the launcher":
        victims = [run.pid]
    else:
        ranks = ranks_of(run.pid, mark)
        victims = dice.sample(ranks, min(len(ranks), 1 + (trial.victims == "two ranks")))
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return bool(victims)


def _seconds_until_gone(mark: str) -> float:
    """Wait until no process has the mark; more than SECONDS_TO_END if some remain."""
    begin = time.monotonic()
    while any(True for _ in marked(mark)) and time.monotonic() - begin <= SECONDS_TO_END:
        time.sleep(0.02)
    return time.monotonic() - begin


def main() -> None:
    """Run the trials; print one line for each and a table of the kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="seed of victims and moments")
    parser.add_argument("--jobs", type=int, default=2, help="parallel trials")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial to run")
    parser.add_argument("--exec", action="store_true", help="start every process as a command")
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    bad = 0
    trials = list(enumerate(drawn(arguments.number, arguments.seed)))[arguments.first :]
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(arguments.jobs) as pool:
        reference = Reference(Path(scratch))
        for job in sorted({trial.job for _, trial in trials}):
            reference.of(job)
        folders = [Path(scratch) / f"trial-{number}" for number, _ in trials]
        for folder in folders:
            folder.mkdir()
        outcomes = pool.map(
            lambda trial, folder: run_until_caught(trial, reference, folder, arguments.exec),
            [trial for _, trial in trials],
            folders,
        )
        for (number, trial), outcome in zip(trials, outcomes, strict=True):
            verdict = "; ".join(outcome.faults) or "bit-identical, no process left"
            bad += bool(outcome.faults)
            counts[trial.victims, trial.moment] += 1
            details = f"{outcome.seconds_to_end:.2f} s" + ("" if outcome.caught else ", too late")
            print(f"{number:3d} {trial}: {verdict} ({details})", flush=True)
            if outcome.faults:
                print(f"    seed {trial.seed}; said: {outcome.said.strip()!r}", flush=True)
    for victims in VICTIMS:
        row = ", ".join(f"{moment} {counts[victims, moment]}" for moment in MOMENTS)
        print(f"{victims}: {row}")
    print(f"{sum(counts.values())} kills, {bad} with faults")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
