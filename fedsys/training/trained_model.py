"""The network of a finished run, with the preparation of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedsys.core.errors import InputError
from fedsys.core.fields import fits
from fedsys.data.dataset import Scaling
from fedsys.data.formats import read_picture, reading
from fedsys.data.own.encoding import TableEncoding
from fedsys.data.own.frames import frame_of, read_frame
from fedsys.data.own.tensors import TensorFiles
from fedsys.models import ModelSource, load_network
from fedsys.training import run_files as files
from fedsys.training.model_file import MODEL_FILE, read_model_note

_TRUSTED = "fedsys.models."
"""Only models of fedsys are built from a run directory: its files may come from anybody."""
_IMAGES = (".jpg", ".jpeg", ".png")


class TrainedModel(nn.Module):
    """A trained network in evaluation mode, and how its inputs are prepared.

    Calling it with prepared inputs [N, ...] returns the outputs (logits) [N, outputs].

    Attributes:
        net: the network.
        note: the content of model.json.
    """

    def __init__(self, net: nn.Module, note: Mapping[str, Any]) -> None:
        super().__init__()
        self.net, self.note = net, note
        self.eval()

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        names = self.note["preparation"].get("classes") or range(self.note["classes"])
        return [str(name) for name in names]

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    def prepare(self, given: Any) -> Tensor:
        """Return the inputs of the network for a pandas frame, bytes of images, or numbers."""
        kind, preparation = self.note["preparation"]["kind"], self.note["preparation"]
        if kind == "table":
            frame = frame_of(given, "data") if hasattr(given, "columns") else given
            names = ("columns", "mean", "deviation")
            encoding = TableEncoding(*(preparation[name] for name in names))
            inputs = torch.from_numpy(encoding.inputs(frame, "data"))
        else:
            inputs = torch.as_tensor(given)
        dtype = next(self.net.parameters()).dtype
        if inputs.dtype == torch.uint8:
            mean, std = (tuple(preparation.get(n, d)) for n, d in (("mean", (0,)), ("std", (1,))))
            inputs = Scaling(mean, std).on(dtype, torch.device("cpu"))(inputs)
        expected = list(self.note["input_shape"])
        if list(inputs.shape[1:]) != expected:
            raise InputError(
                f"the model takes inputs of shape [samples, {', '.join(map(str, expected))}], got "
                f"{list(inputs.shape)}"
            )
        return inputs.to(dtype)

    @torch.no_grad()
    def scores(self, given: Any) -> Tensor:
        """Return the probability of the positive class [N], or of every class [N, classes]."""
        pieces = self.prepare(given).split(256)
        outputs = torch.cat([self(piece) for piece in pieces]).double()
        return outputs[:, 0].sigmoid() if outputs.shape[1] == 1 else outputs.softmax(1)

    def read(self, path: Path) -> tuple[Any, Sequence[str]]:
        """Read what `scores` takes, and the name of each sample, from a file or folder."""
        preparation = self.note["preparation"]
        if not path.exists():
            raise InputError(f"{path} is missing")
        if preparation["kind"] == "table":
            frame = read_frame(path)
            return frame, [str(row + 1) for row in range(len(next(iter(frame.values()))))]
        if preparation["kind"] == "images" and path.is_dir():
            paths = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in _IMAGES]
            if not paths:
                raise InputError(f"{path} has no JPEG or PNG file")
            channels, size = preparation["channels"], preparation["size"]
            pixels = np.stack([read_picture(one, channels, size) for one in paths])
            return torch.from_numpy(pixels), [str(one.relative_to(path)) for one in paths]
        inputs = TensorFiles()._tensors(path)[0]
        return inputs, [str(row) for row in range(len(inputs))]


def load_model(
    run: str | Path,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    client: int | None = None,
) -> TrainedModel:
    """Return the network of a finished run, in evaluation mode.

    No code of the run directory is run: a model of `fedsys.models` is built from its settings, any
    other model has to be given.

    Args:
        run: the run directory.
        model: the network to load the variables into, or a function that makes it.
        client: the client whose network is loaded, if every client has its own.
    """
    folder = Path(run)
    note = read_model_note(folder)
    if model is None:
        net = _built(folder, note)
    else:
        net = model if isinstance(model, nn.Module) else model()
    with reading(folder / files.FINAL):
        from safetensors.torch import load_file

        variables = load_file(folder / files.FINAL)
    try:
        load_network(net, variables, client)
    except RuntimeError as error:
        raise InputError(
            f"{folder}: the variables do not fit the model {type(net).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    dtypes = {value.dtype for value in variables.values() if value.is_floating_point()}
    return TrainedModel(net.to(dtypes.pop()) if len(dtypes) == 1 else net, note)


def _built(folder: Path, note: Mapping[str, Any]) -> nn.Module:
    found = note.get("model")
    settings: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    target = settings.get("_target_")
    if not isinstance(target, str) or not target.startswith(_TRUSTED):
        raise InputError(
            f"{folder / MODEL_FILE} names the model {target}, which is not one of fedsys; give the "
            "network: load_model(run, model=...), or --model package.Net"
        )
    import fedsys.models

    source = getattr(fedsys.models, target.removeprefix(_TRUSTED), None)
    options = {name: value for name, value in settings.items() if name != "_target_"}
    if not isinstance(source, type) or not fits(source(**options), ModelSource):
        raise InputError(f"{folder / MODEL_FILE}: there is no model {target}")
    made: ModelSource = source(**options)
    return made.build(tuple(note["input_shape"]), note["outputs"])
