"""Reference implementations in plain PyTorch; this module does not import fedsys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import override

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class ResNet20(nn.Module):
    """ResNet20 for CIFAR with parameter-free shortcuts and one logit (He et al., CVPR 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(
            BasicBlock(16, 16, 1),
            BasicBlock(16, 16, 1),
            BasicBlock(16, 16, 1),
            BasicBlock(16, 32, 2),
            BasicBlock(32, 32, 1),
            BasicBlock(32, 32, 1),
            BasicBlock(32, 64, 2),
            BasicBlock(64, 64, 1),
            BasicBlock(64, 64, 1),
        )
        self.linear = nn.Linear(64, 1)

    @override
    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.conv(images)), inplace=True)
        hidden = self.blocks(hidden)
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(hidden, 1).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.stride, self.missing = stride, fan_out - fan_in

    @override
    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.missing:
            half = self.missing // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


def dense(*widths: int) -> nn.Module:
    """Return linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def classes_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of several logits."""
    return F.cross_entropy(model(inputs), labels)


def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of one logit."""
    return F.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels)


def loss_of(outputs: int) -> Loss:
    """Return the loss for this number of outputs."""
    return classes_loss if outputs > 1 else loss


class AUCPlayers(nn.Module):
    """The variables of deep AUC maximisation: a network with one output, a, b and alpha."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.a, self.b, self.alpha = (nn.Parameter(torch.zeros(())) for _ in range(3))


def auc_loss(players: AUCPlayers, inputs: Tensor, labels: Tensor, p: float) -> Tensor:
    """Return the min-max objective of AUC maximisation; p is the share of positives."""
    h = torch.sigmoid(players.net(inputs)[:, 0])
    negatives = 1 - labels
    loss: Tensor = (
        (1 - p) * (h - players.a) ** 2 * labels
        + p * (h - players.b) ** 2 * negatives
        + 2 * (1 + players.alpha) * h * (p * negatives - (1 - p) * labels)
    ).mean() - p * (1 - p) * players.alpha**2
    return loss


def two_gradients(
    points: tuple[AUCPlayers, AUCPlayers], inputs: Tensor, labels: Tensor, batch_size: int, p: float
) -> Callable[[], None]:
    """Return a function that computes the gradients at two points on the next batch."""
    batches = _indices(len(inputs), batch_size)

    def both() -> None:
        index = next(batches)
        batch, targets = inputs[index], labels[index]
        for players in points:
            players.zero_grad()
            auc_loss(players, batch, targets, p).backward()

    return both


def training_loop(
    model: nn.Module, loss: Loss, inputs: Tensor, labels: Tensor, batch_size: int, lr: float
) -> Callable[[], None]:
    """Return a function that takes one step of SGD on the next batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batches = _indices(len(inputs), batch_size)

    def step() -> None:
        index = next(batches)
        optimizer.zero_grad()
        loss(model, inputs[index], labels[index]).backward()
        optimizer.step()

    return step


def federated_round(
    models: list[nn.Module],
    loss: Loss,
    inputs: Tensor,
    labels: Tensor,
    batch_size: int,
    local_steps: int,
    lr: float,
) -> Callable[[], None]:
    """Return a round of local SGD: a loop over the clients of this rank, then one flat all_reduce.

    Each client has a module, an optimizer, and its own part of the inputs [clients, samples, ...].
    """
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for model in models]
    batches = [_indices(len(own), batch_size) for own in inputs]
    clients = len(models) * dist.get_world_size()
    averaged = [
        [t for t in model.state_dict(keep_vars=True).values() if t.is_floating_point()]
        for model in models
    ]

    def one_round() -> None:
        for model, optimizer, own, targets, indices in zip(
            models, optimizers, inputs, labels, batches, strict=True
        ):
            for _ in range(local_steps):
                index = next(indices)
                optimizer.zero_grad()
                loss(model, own[index], targets[index]).backward()
                optimizer.step()
        with torch.no_grad():
            flat = sum(torch.cat([t.reshape(-1) for t in tensors]) for tensors in averaged)
            assert isinstance(flat, Tensor)
            dist.all_reduce(flat)
            flat /= clients
            for tensors in averaged:
                parts = flat.split_with_sizes([t.numel() for t in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    return one_round


def _indices(size: int, batch_size: int) -> Iterator[Tensor]:
    """Yield the indices of random batches, epoch after epoch."""
    while True:
        yield from torch.randperm(size)[: size - size % batch_size].split(batch_size)


def raw_all_reduce(floats: int) -> Callable[[], object]:
    """Return a function that executes one in-place all_reduce of a buffer."""
    buffer = torch.zeros(floats)  # zeros, because repeated sums of other values overflow
    return lambda: dist.all_reduce(buffer)
