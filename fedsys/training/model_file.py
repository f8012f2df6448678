"""model.json: what is needed besides final.safetensors to use the network of a finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedsys.core.errors import InputError
from fedsys.system.provenance import commit, version
from fedsys.training import run_files as files

MODEL_FILE = "model.json"


@runtime_checkable
class HasForm(Protocol):
    """An oracle whose first player is a network that others can use."""

    def form(self) -> dict[str, Any]:
        """Return the shape of inputs, the outputs and the preparation of data, as JSON."""


def model_note(oracle: object, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of model.json; None if the run trains no network."""
    if not isinstance(oracle, HasForm):
        return None
    problem = config.get("problem")
    model = problem.get("model") if isinstance(problem, Mapping) else None
    code = {"fedsys": version(), "commit": commit()}
    return {"model": model or config.get("model"), **oracle.form(), **code}


def read_model_note(run: Path) -> dict[str, Any]:
    """Return the content of model.json of a run; refuse one that is missing or malformed."""
    path = run / MODEL_FILE
    if not run.is_dir():
        raise InputError(f"{run} is not a run directory; give the folder that a run has written")
    if not (run / files.FINAL).is_file():
        raise InputError(f"{run} has no {files.FINAL}; its run has not finished")
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        shape = [_integer(size) for size in note["input_shape"]]
        counts = {name: _integer(note[name]) for name in ("outputs", "classes")}
        preparation = note["preparation"]
        if not isinstance(preparation, dict) or not isinstance(preparation["kind"], str):
            raise TypeError("preparation")
    except FileNotFoundError:
        raise InputError(f"{run} has no {MODEL_FILE}: its problem trains no network") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return {**note, **counts, "input_shape": shape}


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError(f"{value!r} where a positive integer is expected")
    return value
