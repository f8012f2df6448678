"""Fingerprints of runs, to show that a change leaves every number as it was.

    python tests/fingerprints.py write tests/fingerprints.json
    python tests/fingerprints.py compare tests/fingerprints.json

`write` runs everything and writes the fingerprints. `compare` runs everything again, prints the
name of each run that differs and the parts in which it does, and exits with 1 if there is one.
tests/fingerprints.json belongs to the commit before issue 18; a change that is meant to change
numbers writes it anew and says why in its commit message. Either command takes about 6 minutes on
2 cores.

Every algorithm runs on each problem of `PROBLEMS`, and every experiment runs for its first rounds,
through the command line. A fingerprint is the SHA-256 of the records (without clocks) and of the
final variables; a run that is refused has its exit code instead. Experiments whose data is not in
FEDSYS_DATA are refused, and compare as such. Every case of tests/support/cases.py runs in this
process; its fingerprint holds the digests of all tensors of the final state, without their names.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROBLEMS = (
    "quadratic_game",
    "composite_saddle",
    "auc",
    "classification",
    "compositional_auc",
    "quadratic_bilevel",
    "fair_german",
)
SHORT = ["clients=3", "rounds=2", "evaluate_every=1"]
SMALL = ["scale=small", "hydra.mode=RUN", "rounds=1", "evaluate_every=1", "checkpoint.every=0"]
CASE_STEPS = 17
CLOCKS = ("seconds", "seconds_waited", "startup_seconds", "oracle_calls")
"""Fields that are not hashed; the fingerprints of issue 18 are older than `oracle_calls`."""


def jobs(conf: Path) -> dict[str, list[str]]:
    """The overrides of every run, by its name."""
    found = {}
    for file in sorted((conf / "algorithm").glob("*.yaml")):
        for problem in PROBLEMS:
            overrides = [f"algorithm={file.stem}", f"problem={problem}", *SHORT]
            found[f"{file.stem} on {problem}"] = overrides
    for file in sorted((conf / "experiment").rglob("*.yaml")):
        name = str(file.relative_to(conf / "experiment").with_suffix(""))
        found[f"experiment {name}"] = [f"experiment={name}", *SMALL]
    return found


def fingerprint(folder: Path) -> dict[str, str]:
    """The digests of the records and of the final variables in a run directory."""
    from safetensors.numpy import load_file

    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in record.items() if k not in CLOCKS} for record in records]
    digest = hashlib.sha256()
    for name, values in sorted(load_file(folder / "final.safetensors").items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(values.tobytes())
    text = json.dumps(kept, sort_keys=True)
    return {"records": hashlib.sha256(text.encode()).hexdigest(), "variables": digest.hexdigest()}


def final_states() -> dict[str, dict[str, str]]:
    """The digests of the tensors of every case's state after `CASE_STEPS` steps, sorted."""
    import torch
    from support.cases import CASES, Drive

    from fedsys.communication import LocalTransport

    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        drive = Drive(case, LocalTransport())
        *_, state = drive.states(CASE_STEPS)
        tensors = [*state.tensors().values(), *case.algorithm.outputs(state).values()]
        digests = {hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for t in tensors}
        found[f"case {name}"] = {"state": " ".join(sorted(digests))}
    return found


def run(overrides: list[str]) -> dict[str, str]:
    """Run in a forked child, so that torch is imported once, and read what it leaves."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        child = os.fork()
        if child == 0:
            _run_here([*overrides, f"run.dir={folder}"], Path(scratch) / "log")
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return fingerprint(folder) if code == 0 else {"exit code": str(code)}


def _run_here(arguments: list[str], log: Path) -> None:
    from fedsys.cli.main import main

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    sys.argv = ["fedsys", *arguments]
    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        os._exit(code if isinstance(code, int) else 1)


def measure(conf: Path) -> dict[str, dict[str, str]]:
    """The fingerprint of every job, two at a time."""
    from fedsys.system import compat

    compat.torchmetrics()

    wanted = jobs(conf)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(wanted, pool.map(run, wanted.values()), strict=True))


def main() -> None:
    """Write or compare."""
    verb, file = sys.argv[1], Path(sys.argv[2])
    from fedsys.training import config

    os.environ["OMP_NUM_THREADS"] = "1"
    found = final_states() | measure(config.folder())
    if verb == "write":
        file.write_text(json.dumps(found, indent=1) + "\n")
        refused = sum("exit code" in one for one in found.values())
        print(f"{len(found)} runs, {refused} of them refused")
        return
    earlier = json.loads(file.read_text())
    changed = [name for name in earlier | found if earlier.get(name) != found.get(name)]
    for name in changed:
        parts = [
            key
            for key in ("exit code", "records", "variables", "state")
            if earlier.get(name, {}).get(key) != found.get(name, {}).get(key)
        ]
        print(f"{name}: {', '.join(parts)}")
    print(f"{len(changed)} of {len(found)} runs differ")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
