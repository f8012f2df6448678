"""torchvision beside a CPU build of torch.

A CUDA build of torchvision cannot load its compiled operators into a CPU build of torch and fails
at import ("operator torchvision::nms does not exist"). Its models, datasets and transforms are pure
Python: once the missing operator schemas exist they import and work. Only the detection operators
stay unusable.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

_MISSING_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None


def torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not fit this torch."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
    _define_missing_operators()
    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


def torchmetrics() -> ModuleType:
    """Import torchmetrics' classification metrics; torchmetrics itself imports torchvision."""
    torchvision()
    return importlib.import_module("torchmetrics.functional.classification")


def _define_missing_operators() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("torchvision", "DEF")
        for name in _MISSING_OPERATORS:
            _library.define(name + _SCHEMA)
