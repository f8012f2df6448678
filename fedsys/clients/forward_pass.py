"""What a forward pass reads and writes besides parameters and inputs: random numbers and buffers.

Such hidden state would make a run depend on the placement of the clients, because one module
computes all clients of a rank. Random numbers are drawn by (seed, client, step, k); the running
statistics of normalisation layers are synchronised; anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsys.clients.running_statistics import BATCH_NORMS, COUNT, NORMS, STATISTICS
from fedsys.core.errors import InputError
from fedsys.core.random import Streams, global_generators, used_generators
from fedsys.distributed.torch_internals import has_hooks, is_compiled

_DETERMINISTIC = {
    *(nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
}
"""Layers whose forward pass draws no random numbers and changes no buffers but statistics."""

_TOLERANCE = 1e-4
"""Relative; two equal forward passes may differ by rounding on some devices."""


@dataclass(frozen=True)
class Randomness:
    """Which global generators a forward pass in training mode draws from.

    Attributes:
        torch: whether it draws from torch's; a pass that may draw at times counts as well.
        others: whether it draws from NumPy's or Python's.
        always: whether it drew when it was inspected.
    """

    torch: bool = False
    others: bool = False
    always: bool = False


NO_RANDOMNESS = Randomness()
TORCH_ONLY = Randomness(torch=True)


class ForwardGenerators:
    """The random numbers of a forward pass, by (seed, client, step, k).

    Args:
        seed: of the run.
        device: where the modules are.
        randomness: what they draw from.
    """

    def __init__(
        self, seed: int, device: torch.device, randomness: Randomness = TORCH_ONLY
    ) -> None:
        self._streams = Streams(seed, "forward pass")
        self._device, self._randomness = device, randomness

    @contextmanager
    def at(self, client: int, draw: tuple[int, int] | None) -> Iterator[None]:
        """Let the forward pass of a client draw the numbers of (step, k).

        Without a draw the pass is one of a gradient on all of the client's data: its mean over the
        random numbers is not known.
        """
        if draw is None:
            if self._randomness.always:
                raise InputError(
                    "the network draws random numbers in its forward pass (such as Dropout), so "
                    "that its exact gradient on all data, which this algorithm needs, is not "
                    "known; use an algorithm that takes stochastic gradients, or a network "
                    "without them"
                )
            yield
            return
        key = int(self._streams.at(client, *draw).integers(2**62))
        with global_generators(key, self._device, self._randomness.others):
            yield


def inspect_forward(
    modules: Sequence[nn.Module], loss: Callable[[], Tensor], device: torch.device
) -> Randomness:
    """Find what the forward passes of modules draw from; refuse hidden state of other kinds.

    Modules made only of layers that are known to be deterministic are not run.

    Args:
        modules: those that the loss calls; the first may have running statistics.
        loss: computed by the modules on some batch.
        device: where the modules are.
    """
    _refuse_layers(modules)
    if all(map(is_deterministic, modules)):
        return NO_RANDOMNESS
    with torch.no_grad(), _eager(modules), _restored_buffers(modules):
        randomness = _inspect_training(modules, loss, device)
    with torch.no_grad(), _eager(modules), _restored_buffers(modules):
        _inspect_evaluation(modules, loss, device)
    return randomness


def is_deterministic(module: nn.Module) -> bool:
    """Whether all layers are known to draw no random numbers and to keep no state."""
    parts = list(module.modules())
    known = (type(p) in _DETERMINISTIC or type(p).__module__.startswith("fedsys.") for p in parts)
    return all(known) and not any(map(has_hooks, parts))


def _refuse_layers(modules: Iterable[nn.Module]) -> None:
    """Refuse normalisation layers whose statistics cannot be synchronised."""
    for name, part in _named(modules):
        layer = f"the network's {_title(name, part)}"
        if isinstance(part, nn.SyncBatchNorm):
            raise InputError(
                f"{layer} communicates between ranks by itself; use BatchNorm, whose running "
                "statistics are averaged with each round"
            )
        if isinstance(part, BATCH_NORMS):
            if not part.track_running_stats:
                raise InputError(
                    f"{layer} has track_running_stats=False: its output for a test sample would "
                    "depend on the other samples of the batch; use track_running_stats=True"
                )
            if part.momentum is None:
                raise InputError(
                    f"{layer} has momentum=None: it weights batches by a count that is not "
                    "synchronised; give it a number, such as 0.1"
                )


def _eager(modules: Iterable[nn.Module]) -> AbstractContextManager[object]:
    """Run compiled modules without the compiler, which would compile for this one batch."""
    compiled = any(is_compiled(part) for _, part in _named(modules))
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _inspect_training(
    modules: Sequence[nn.Module], loss: Callable[[], Tensor], device: torch.device
) -> Randomness:
    values: list[Tensor] = []
    before = _buffers(modules)
    with global_generators(0, device):
        of_torch, of_others = used_generators(lambda: values.append(loss()), device)
    _refuse_changed(modules, before, all_but_statistics=True)
    _restore(before)
    with global_generators(0, device):
        values.append(loss())
    first, second = values
    difference = float((first - second).abs().max())
    if difference > _TOLERANCE * max(1e-3, float(first.abs().max())):
        raise InputError(
            "the network's forward pass gives different results for the same parameters, inputs "
            "and random seed: it keeps state outside of its buffers, or has a random generator of "
            "its own; draw from torch's global generator, which fedsys seeds for each draw"
        )
    return Randomness(True, of_others, of_torch or of_others)


def _inspect_evaluation(
    modules: Sequence[nn.Module], loss: Callable[[], Tensor], device: torch.device
) -> None:
    before = _buffers(modules)
    training = [part for module in modules for part in module.modules() if part.training]
    for module in modules:
        module.eval()
    try:
        drawn = any(used_generators(loss, device))
    finally:
        for part in training:
            part.training = True
    if drawn:
        raise InputError(
            "the network draws random numbers in evaluation mode too, so that its test metrics "
            "would be random; draw only where self.training is true"
        )
    _refuse_changed(modules, before, all_but_statistics=False)


_Places = dict[tuple[nn.Module, str], tuple[str, Tensor, Tensor]]
"""From a buffer's owner and name to its full name, the tensor, and a copy of its values."""


def _buffers(modules: Iterable[nn.Module]) -> _Places:
    return {
        (part, buffer): (path, tensor, tensor.clone())
        for path, part in _named(modules)
        for buffer, tensor in part.named_buffers(recurse=False)
    }


def _restore(places: _Places) -> None:
    for (part, buffer), (_, tensor, values) in places.items():
        tensor.copy_(values)
        setattr(part, buffer, tensor)


@contextmanager
def _restored_buffers(modules: Sequence[nn.Module]) -> Iterator[None]:
    places = _buffers(modules)
    try:
        yield
    finally:
        _restore(places)


def _refuse_changed(
    modules: Sequence[nn.Module], before: _Places, all_but_statistics: bool
) -> None:
    """Refuse buffers that a forward pass has changed."""
    after = _buffers(modules)
    synchronised = {m for m in modules[0].modules() if isinstance(m, NORMS)}
    for place in {**before, **after}:
        part, buffer = place
        if all_but_statistics and part in synchronised and buffer in (*STATISTICS, COUNT):
            continue
        old, new = before.get(place), after.get(place)
        if old is None or new is None or not torch.equal(old[2], new[1]):
            path = (old or new or ("",))[0]
            when = "" if all_but_statistics else " in evaluation mode"
            raise InputError(
                f"the network's {_title(path, part)} changes its buffer {buffer!r} in the forward "
                f"pass{when}; only running statistics of BatchNorm and InstanceNorm in training "
                "are synchronised between clients: remove the layer"
            )


def _named(modules: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    return (pair for module in modules for pair in module.named_modules())


def _title(path: str, part: nn.Module) -> str:
    return f"{type(part).__name__} ({path})" if path else type(part).__name__
