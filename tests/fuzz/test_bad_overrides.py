"""Invalid overrides end with one line on stderr, exit code 2, and nothing on disk.

The cases come from conf/ itself: every setting of every file, and for each the values that its
declared type does not take. Each goes the way of the real command line, in this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

import pytest
from hydra.utils import get_class
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.processes import Done

from fedsys.core.fields import type_hints
from fedsys.training import config
from fedsys.training.config import GROUPS

CONF = config.folder()
AT_LEAST, MOST = 300, 360
HUGE = str(10**40)

# By declared type: texts that Hydra reads as a value of another type, or as one out of its range.
BAD: dict[Any, tuple[str, ...]] = {
    int: ("1.5", "nan", "inf", "-inf", "true", "abc", "[1,2]", "{a: 1}", HUGE, f"-{HUGE}", "1e30"),
    float: ("nan", "inf", "-inf", "true", "false", "abc", "[0.1]", "{a: 1}", f"{HUGE}0"),
    bool: ("banana", "2", "0", "1.5", "[true]", "{a: 1}", "nan"),
    str: ("5", "1.5", "true", "nan", "[a]", "{a: b}"),
    list: ("5", "true", "nan", "abc", "{a: 1}", "[null]", "[[1]]", "[true]", "[nan]", "[abc]"),
    object: ("5", "true", "abc", "[1]", "nan", "{a: 1}"),
}
SETTINGS: dict[str, Sequence[str]] = {
    "clients": (*BAD[int], "0", "-1", "1000000001"),
    "steps": (*BAD[int], "0", "-1"),
    "rounds": (*BAD[int], "0", "-1", "null"),
    "evaluate_every": (*BAD[int], "0", "-1", "null"),
    "seed": (*BAD[int], "-1", "null"),
    "dtype": ("float16", "5", "null", "[float32]", "true"),
    "device": ("meta", "cpu:9", "cuda:99", "gpu", "5", "null", "[cpu]", "xla"),
    "scale": ("large", "5", "null", "true"),
    "participation": (*BAD[float], "0", "-0.5", "1.5", "null"),
    "on_nonfinite": ("ignore", "5", "null", "true"),
    "resume": ("maybe", "5", "null"),
    "objective": ("nope", "[test_auc]", "{a: 1}"),
    "checkpoint.every": (*BAD[int], "-1", "null"),
    "checkpoint.minutes": (*BAD[float], "-1", "null"),
    "checkpoint.keep": (*BAD[int], "0", "null"),
    "run.name": ("[a]", "{a: 1}"),
    "run.root": ("[a]", "null"),
}
GROUP_VALUES = ("null", "5", "true", "[a,b]", "{a: 1}", "nonsense", "")
WORDS = (
    ("rounds", "5"), ("--rounds", "5"), ("--rounds=5",), ("-x",), ("=5",), ("lr=0.1",),
    ("rounds==",),
    ("local_steps=5",), ("lr_x=1",), ("+lr=1",), ("++lr=1",), ("+run.foo=1",),
    ("--cfg", "banana"), ("hydra.run.dir=/proc/nowhere",),
    ("algorithm.lr_x",), ("+algorithm._partial_=true",), ("algorithm._target_=os.getcwd",),
    ("algorithm._target_=no.such.Class",), ("problem.model=${nope}",), ("steps=1", "rounds=1"),
    ("algorithm=proxskip", "communicator=all_reduce"), ("communicator=all_reduce",),
    ("logger=wandb",), ("logger.jsonl=5",), ("experiment=nonsense",), ("run.dir=/proc/nowhere",),
    ("algorithm=proxskip",
     "algorithm.lr={_target_: fedsys.algorithms.Decreasing, scale: 2, offset: 8, power: 0.5}"),
)  # fmt: skip


class Case(NamedTuple):
    """Arguments of the command line, and what the line must speak of."""

    arguments: tuple[str, ...]
    names: str = ""


def kinds(hint: Any) -> list[Any]:
    """The plain types that a declared type is made of."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(hint, "__metadata__"):
        return kinds(arguments[0])
    if origin is not None and origin.__module__ == "collections.abc":
        return [list]
    if arguments:
        return [kind for argument in arguments for kind in kinds(argument)]
    return [hint if hint in (int, float, bool, str, NoneType) else object]


def bad_values(hint: Any) -> list[str]:
    """What none of the types takes; null too, unless it is one of them."""
    allowed = kinds(hint)
    values = set.intersection(*(set(BAD[kind]) for kind in allowed if kind is not NoneType))
    if "Sequence[str]" in str(hint) or (list in allowed and str in allowed):
        values -= {"abc", "[abc]"}
    return sorted(values | (set() if NoneType in allowed else {"null"}))


def nodes() -> Iterator[tuple[str, str, str, Any]]:
    """Every file of conf/ as (group, file, where its settings are, settings)."""
    for group in GROUPS:
        for file in sorted((CONF / group).rglob("*.yaml")):
            raw: Any = OmegaConf.to_container(OmegaConf.load(file))
            own = raw.get(group, raw) if "_target_" not in raw else raw
            name = str(file.relative_to(CONF / group).with_suffix(""))
            for key, node in (own or {}).items() if group == "logger" else [("", own)]:
                yield group, name, f"{group}.{key}".rstrip("."), node


def typed_cases(group: str, name: str, where: str, node: Any) -> Iterator[Case]:
    """Bad values for the settings of an object, and of those inside it."""
    if not isinstance(node, dict) or "_target_" not in node:
        return
    made = get_class(node["_target_"])
    hints = type_hints(made if hasattr(made, "__dataclass_fields__") else made.__init__)
    for key, value in node.items():
        if key in hints and not (isinstance(value, str) and value.startswith("${participation")):
            for bad in bad_values(hints[key]):
                yield Case((f"{group}={name}", f"{where}.{key}={bad}"), key)
            yield Case((f"{group}={name}", f"{where}.{key}x=1"), f"{key}x")
        yield from typed_cases(group, name, f"{where}.{key}", value)


TYPED = [case for place in nodes() for case in typed_cases(*place)]
TOP = [
    Case((f"{key}={bad}",), key.split(".")[-1])
    for key, values in SETTINGS.items()
    for bad in values
]
TYPOS = [
    *(Case((f"{group}={value}",), group) for group in GROUPS for value in GROUP_VALUES),
    *(Case((f"{group}={name}x",), f"{name}x") for group, name, _, _ in nodes()),
    *(Case((f"{key}x=1",), f"{key}x") for key in SETTINGS),
    *(Case((f"~{key}",)) for key in (*SETTINGS, "algorithm", "problem", "communicator")),
    *(Case(words) for words in WORDS),
]
LEGAL = {"logger=null", "logger=", "~objective", "~run.name"}
seen: set[tuple[str, ...]] = set()


@given(case=st.one_of(st.sampled_from(TOP), st.sampled_from(TYPOS), st.sampled_from(TYPED)))
@settings(
    max_examples=700,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.timeout(900)
def test_an_invalid_override_is_refused_in_one_line_and_writes_nothing(
    case: Case, fedsys: Callable[..., Done], tmp_path: Path
) -> None:
    if set(case.arguments) & LEGAL or case.arguments in seen or len(seen) >= MOST:
        return
    seen.add(case.arguments)
    refused(case, fedsys, tmp_path)


def refused(case: Case, fedsys: Callable[..., Done], folder: Path) -> None:
    """Check one line with the name, exit code 2, and an empty folder."""
    tiny = () if {"rounds", "steps"} & {a.split("=")[0] for a in case.arguments} else ("rounds=1",)
    bare = any("=" not in argument for argument in case.arguments)
    done = fedsys(*case.arguments, *(() if bare else tiny))
    left = [str(path) for path in folder.rglob("*")]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    assert done.returncode == 2, (case, done.stderr, done.stdout[-500:])
    assert len(done.stderr.splitlines()) == 1, (case, done.stderr)
    assert case.names in done.stderr, (case, done.stderr)
    assert left == [], case


def test_at_least_300_different_overrides_were_drawn() -> None:
    assert len(seen) >= AT_LEAST, len(seen)
