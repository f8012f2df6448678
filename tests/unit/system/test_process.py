"""Importing and using fedsys changes nothing in the process; `tune_process` does, on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fedsys.system.process import VARIABLES

PROGRAM = """
import ctypes, json, logging, os, pkgutil, sys

calls = []
plain = ctypes.CDLL

class Recorder(plain):
    def __getattr__(self, name):
        calls.append(name)
        return super().__getattr__(name)

def state():
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    levels = {one.name: one.level for one in loggers if isinstance(one, logging.Logger)}
    # torch itself sets TORCHINDUCTOR_CACHE_DIR when it first compiles or loads its compiler.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR_")}
    return environment, levels, logging.root.manager.disable

def is_mapped(size=28 * 2**20):
    # Whether glibc still maps a block of this size: it does not once a larger one was freed.
    class Info(ctypes.Structure):
        _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]
    libc = plain(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = Info
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    before = libc.mallinfo2().field4
    libc.malloc(size)
    return libc.mallinfo2().field4 - before >= size

import torch, hydra, matplotlib, sklearn, rich  # what they do is not ours
torch.distributed.is_available()
ctypes.CDLL = Recorder
before = state()
import fedsys
TUNE
for module in pkgutil.walk_packages(fedsys.__path__, "fedsys."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
fedsys.algorithms, fedsys.problems
fedsys.run(fedsys.QuadraticGame(), fedsys.LocalSGDA(), rounds=2, clients=2)
fedsys.run(fedsys.Classification(), fedsys.FedAvg(), rounds=1, clients=2)
after = state()
print(json.dumps({
    "environment": [before[0], after[0]],
    "levels": [before[1], {name: after[1][name] for name in before[1]}],
    "disabled": [before[2], after[2]],
    "mallopt": "mallopt" in calls,
    "is_mapped": is_mapped(),
}))
"""


def run_program(tune: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("TUNE", tune)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_every_module_and_running_changes_nothing_in_the_process() -> None:
    found = run_program("")
    for name in ("environment", "levels", "disabled"):
        before, after = found[name]
        assert before == after, name
    assert not found["mallopt"]
    assert found["is_mapped"] is not False


def test_tune_process_lets_a_run_keep_freed_memory() -> None:
    found = run_program("fedsys.tune_process()")
    before, after = found["environment"]
    assert after == before | VARIABLES
    assert found["mallopt"]
    assert found["is_mapped"] is not True


WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, *others):
        if name == "torch":
            print(*(os.environ.get(name) for name in NAMES))

sys.meta_path.insert(0, Watch())
""".replace("NAMES", repr(tuple(VARIABLES)))

ENTRY_POINTS = {
    "script": "import fedsys; assert fedsys.tune_process() == []; fedsys.run",
    "fedsys": "sys.argv[1:] = ['--help']; from fedsys.__main__ import main; main()",
    "launch": "sys.argv[1:] = ['--', '--help']; from fedsys.launch import main; main()",
    "reproduce": "sys.argv[1:] = ['--help']; from fedsys.reproduce.__main__ import main; main()",
}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
@pytest.mark.parametrize("given", [None, "0"])
def test_torch_finds_the_variables_set_unless_the_user_has_chosen(
    entry: str, given: str | None
) -> None:
    first = next(iter(VARIABLES))
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if given is not None:
        environment[first] = given
    program = WATCH + ENTRY_POINTS[entry]
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    expected = {**VARIABLES, first: given or VARIABLES[first]}
    assert done.stdout.splitlines()[0].split() == [*expected.values()], done.stderr


def test_what_comes_after_torch_is_named() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    program = "import torch, fedsys; print(*fedsys.tune_process(), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.partition("=")[0] for line in lines] == [*VARIABLES]
    assert all("torch is imported already" in line for line in lines)
