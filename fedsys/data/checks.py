"""Checks of every data set; an error names the part or file, and the first invalid sample.

Images in bytes are not looked at: every byte is a valid pixel. Of other inputs, the extremes are
computed in one pass without a copy; the search for the sample begins only if one is not finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsys.core.errors import InputError

_ROWS_AT_A_TIME = 4096


def check_part(where: str, inputs: Tensor, labels: Tensor, classes: int) -> None:
    """Check inputs [N, ...] and labels [N] of one part of a data set, or of one file."""
    for name, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise InputError(f"{where}: {name} must be a tensor, got {type(value).__name__}")
    if inputs.dim() < 2 or 0 in inputs.shape[1:]:
        raise InputError(f"{where}: inputs must be [samples, ...], got {list(inputs.shape)}")
    if labels.dim() != 1:
        raise InputError(f"{where}: labels must be [samples], got {list(labels.shape)}")
    if len(inputs) != len(labels):
        raise InputError(f"{where}: there are {len(inputs)} inputs and {len(labels)} labels")
    if len(inputs) == 0:
        raise InputError(f"{where}: there are no samples")
    check_finite(where, inputs)
    check_integers(where, "label", labels, classes)


def check_finite(where: str, inputs: Tensor) -> None:
    """Refuse inputs that are NaN or infinite, or no real numbers."""
    if inputs.is_complex():
        raise InputError(f"{where}: inputs must be real numbers, got {inputs.dtype}")
    if not inputs.is_floating_point() or all(end.isfinite() for end in inputs.aminmax()):
        return
    for first in range(0, len(inputs), _ROWS_AT_A_TIME):
        rows = inputs[first : first + _ROWS_AT_A_TIME].flatten(1)
        wrong = (~rows.isfinite()).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            raise InputError(
                f"{where}: feature {column} of sample {first + row} is {float(rows[row, column])}; "
                "every feature must be finite"
            )


def check_integers(where: str, what: str, values: Tensor, count: int) -> None:
    """Refuse labels or groups that are not integers from 0 to count - 1."""
    rule = f"{what}s must be integers from 0 to {count - 1}"
    if values.is_complex() or values.dtype == torch.bool:
        raise InputError(f"{where}: {rule}, got {values.dtype}")
    if values.is_floating_point():
        wrong = (values != values.round()).nonzero()  # NaN differs from itself
        if len(wrong):
            sample = int(wrong[0])
            raise InputError(
                f"{where}: sample {sample} has {what} {float(values[sample]):g}; {rule}"
            )
        raise InputError(f"{where}: {rule}, got {values.dtype}; use .long()")
    values = values.long()
    wrong = ((values < 0) | (values >= count)).nonzero()
    if len(wrong):
        sample = int(wrong[0])
        raise InputError(f"{where}: sample {sample} has {what} {int(values[sample])}; {rule}")


def check_range(where: str, inputs: Tensor, dtype: torch.dtype) -> None:
    """Refuse inputs that are finite, but not in the numbers of a run."""
    if not inputs.is_floating_point() or inputs.dtype == dtype:
        return
    most = torch.finfo(dtype).max
    low, high = (float(value) for value in inputs.aminmax())
    if max(-low, high) > most:
        wrong = (inputs.flatten(1).abs().amax(1) > most).nonzero()
        raise InputError(
            f"{where}: sample {int(wrong[0])} has a feature above {most:.3g}, the largest number "
            f"of {str(dtype).removeprefix('torch.')}; use dtype=float64, or scale the features"
        )
