"""Export of a trained network: torch.export or ONNX, with a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsys.core.errors import FedsysError, InputError
from fedsys.core.metrics import metrics_of
from fedsys.training import run_files as files
from fedsys.training.model_file import MODEL_FILE
from fedsys.training.trained_model import TrainedModel

FORMATS = ("torch", "onnx")
_TOLERANCE = 1e-5
_BATCH = 4


def export(model: TrainedModel, run: Path, kind: str, out: Path) -> list[Path]:
    """Write the network, model.json and a model card (README.md) to a folder; return their paths.

    The exported network is run on random inputs and compared with the module (to 1e-5).

    Args:
        model: the trained network.
        run: its run directory.
        kind: "torch" for torch.export (model.pt2), "onnx" for ONNX (model.onnx).
        out: the folder to write.
    """
    if kind not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {kind!r}")
    dtype = next(model.net.parameters()).dtype
    generator = torch.Generator().manual_seed(0)
    shape = (_BATCH, *model.note["input_shape"])
    inputs = torch.randn(shape, dtype=dtype, generator=generator)
    out.mkdir(parents=True, exist_ok=True)
    target = out / ("model.pt2" if kind == "torch" else "model.onnx")
    write = _write_torch if kind == "torch" else _write_onnx
    found = write(model, inputs, target)
    difference = float((found - model(inputs).detach()).abs().max())
    if not difference <= _TOLERANCE:
        target.unlink(missing_ok=True)
        raise FedsysError(
            f"the exported network differs from the module by {difference:.2g} (at most "
            f"{_TOLERANCE:g} is allowed); nothing was kept"
        )
    shutil.copyfile(run / MODEL_FILE, out / MODEL_FILE)
    card = out / "README.md"
    card.write_text(model_card(model, run, target.name, difference), encoding="utf-8")
    return [target, out / MODEL_FILE, card]


def _write_torch(model: TrainedModel, inputs: Tensor, target: Path) -> Tensor:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model.net, (inputs,), dynamic_shapes=({0: batch},))
    torch.export.save(program, target)
    loaded: Tensor = torch.export.load(target).module()(inputs)
    return loaded.detach()


def _write_onnx(model: TrainedModel, inputs: Tensor, target: Path) -> Tensor:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401, torch.onnx needs it
    except ImportError as error:
        raise InputError("ONNX needs more packages; install fedsys[onnx]") from error
    program = torch.onnx.export(
        model.net,
        (inputs,),
        dynamo=True,
        verbose=False,
        input_names=["inputs"],
        output_names=["outputs"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
    )
    assert program is not None
    program.save(target)
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"inputs": inputs.numpy()})
    return torch.from_numpy(np.asarray(found))


def model_card(model: TrainedModel, run: Path, file: str, difference: float) -> str:
    """Return the model card of a run: data, settings, metrics, and how to use the file."""
    summary, _ = files.read_summary(run / files.SUMMARY)
    settings = files.read_settings(run / files.CONFIG) or {}
    kept = summary.get("kept") or {}
    # Of the best record only the metric that it was chosen by is known.
    final = files.record_of(kept if metrics_of(kept) else summary.get("final"))
    chosen = settings.get("algorithm")
    algorithm = chosen.get("_target_") if isinstance(chosen, Mapping) else chosen
    sizes = model.note.get("samples_by_client") or []
    lines = [
        f"# {run.resolve().name}",
        "",
        f"{type(model.net).__name__} trained by {algorithm} with fedsys over "
        f"{settings.get('clients')} clients.",
        "",
        "| | |",
        "| --- | --- |",
        f"| file | {file} (largest difference to the module: {difference:.1g}) |",
        f"| inputs | {model.note['input_shape']}, prepared as {MODEL_FILE} says |",
        f"| classes | {', '.join(model.classes)} |",
        *([f"| training samples by client | {', '.join(map(str, sizes))} |"] if sizes else []),
        *(f"| {name} | {final[name]:.6g} |" for name in metrics_of(final)),
        *(f"| {name} | {model.note.get(name, 'unknown')} |" for name in ("fedsys", "commit")),
        "| licence | to be filled in |",
        "",
        "## Settings",
        "",
        "```json",
        json.dumps(_plain(settings), indent=2),
        "```",
        "",
    ]
    return "\n".join(lines)


def _plain(settings: Any) -> Any:
    """Return settings without the paths of data, which say where the clients keep it."""
    if isinstance(settings, Mapping):
        hidden = ("path", "test_path", "root", "run")
        return {name: _plain(value) for name, value in settings.items() if name not in hidden}
    return settings
