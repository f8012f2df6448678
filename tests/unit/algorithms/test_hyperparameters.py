"""Each hyperparameter takes a number or a schedule, or refuses the schedule in one line."""

from __future__ import annotations

import sys
import types
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from support.cases import CASES, Drive

from fedsys.algorithms import (
    CODASCA,
    LIPPAX,
    THEORY,
    Averaged,
    Cosine,
    Decreasing,
    Scaffold,
    Schedule,
    Staged,
    Warmup,
)
from fedsys.communication import LocalTransport
from fedsys.core.errors import InputError

STEPS = 4


def schedules(value: float) -> list[Schedule]:
    """One schedule of each kind that changes and that never exceeds a value."""
    return [
        Decreasing(value, 1.0, 0.1),
        Staged(value, [1, 2], divide_by=1.1),
        Cosine(value, steps=STEPS, final=0.9 * value),
        Warmup(value, steps=2),
    ]


FIELDS = [
    (name, field.name)
    for name, case in CASES.items()
    if not isinstance(case.algorithm, Averaged)
    for field in fields(case.algorithm)
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_field_takes_every_kind_of_schedule_or_refuses_it_in_one_line(
    name: str, field: str
) -> None:
    case = CASES[name]
    value = getattr(case.algorithm, field)
    size = float(value) if isinstance(value, int | float) else 1.0
    for schedule in schedules(size or 1.0):
        try:
            algorithm = replace(case.algorithm, **{field: schedule})
        except InputError as refusal:
            line = str(refusal)
            assert line.startswith(f"{type(case.algorithm).__name__}: {field} must be ")
            assert "\n" not in line
            continue
        assert isinstance(value, float), f"{field} is no step size or weight"
        *_, state = Drive(replace(case, algorithm=algorithm), LocalTransport()).states(STEPS)
        assert all(torch.isfinite(rows).all() for rows in state.tensors().values())


@pytest.mark.parametrize(
    ("algorithm", "field"), [(Scaffold, "lr"), (LIPPAX, "lr"), (CODASCA, "gamma")]
)
def test_a_schedule_that_ends_at_zero_is_refused_where_the_algorithm_divides_by_it(
    algorithm: Any, field: str
) -> None:
    numbers = {"inner_lr": 0.1, "inner_steps": 2} if algorithm is LIPPAX else {}
    for schedule in (Cosine(0.1, steps=5), Warmup(Cosine(0.1, steps=5), steps=2)):
        with pytest.raises(InputError, match=f"{field} must be a schedule that stays above 0"):
            algorithm(**numbers, **{field: schedule})


HEADERS = {
    "types": "from fedsys.core.schedules import FromTheory, Rate, THEORY",
    "strings": (
        "from __future__ import annotations\nfrom fedsys.core.schedules import FromTheory, Rate"
    ),
    "for the type checker": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from fedsys.core.schedules import FromTheory, Rate"
    ),
}
ANNOTATIONS = [
    "Rate | FromTheory",
    "'Rate | FromTheory'",
    "Union[Rate, FromTheory]",
    "Optional[Union[float, FromTheory]]",
    "float | FromTheory | None",
    "Annotated[float | FromTheory, 'a step size']",
]
BODY = """
from dataclasses import dataclass
from typing import Annotated, Optional, Union
from fedsys.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    scale: {annotation} = 0.5
"""


@pytest.mark.parametrize("annotation", ANNOTATIONS)
@pytest.mark.parametrize("header", HEADERS)
def test_validation_does_not_depend_on_how_a_file_writes_its_annotations(
    header: str, annotation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("a_users_file")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(HEADERS[header] + BODY.format(annotation=annotation), vars(module))
    mine: Any = module.Mine
    assert mine(scale="theory").scale is THEORY
    assert mine(scale=0.25).scale == 0.25
    assert mine(scale="theory").awaiting_theory() == ["scale"]
    for value in ("fast", True, [1.0]):
        with pytest.raises(InputError, match=r"^Mine: scale must be a number"):
            mine(scale=value)
