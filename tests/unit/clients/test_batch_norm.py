"""fedsys/models/batch_norm.py against torch's own, and kernels with channels last."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedsys.clients.flat_module import FlatModule
from fedsys.models import CNNTable3
from fedsys.models.batch_norm import BatchNorm2d

FORMATS = [torch.contiguous_format, torch.channels_last]


def everything_of(kind: type[nn.BatchNorm2d], images: Tensor) -> list[Tensor]:
    """Output, gradients, a product with the Hessian, and the running statistics."""
    torch.manual_seed(1)
    norm = kind(3).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = images.detach().requires_grad_()
    variables = [x, norm.weight, norm.bias]
    output = norm(x)
    loss = (output.sin() * torch.linspace(0, 1, output.numel()).view_as(output)).sum()
    gradients = torch.autograd.grad(loss, variables, create_graph=True)
    vectors = [torch.randn_like(g) for g in gradients]
    products = torch.autograd.grad(gradients, variables, vectors)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return [output, *gradients, *products, norm.running_mean, norm.running_var]


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_batch_norm_has_the_derivatives_of_torchs(memory_format: torch.memory_format) -> None:
    images = torch.randn(5, 3, 4, 6, dtype=torch.float64).to(memory_format=memory_format)
    ours, theirs = everything_of(BatchNorm2d, images), everything_of(nn.BatchNorm2d, images)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_a_batch_norm_that_is_judged_uses_its_running_statistics() -> None:
    norm, images = BatchNorm2d(3), torch.randn(5, 3, 4, 6)
    norm(images)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()[:, None, None]
    expected = (images - norm.running_mean[:, None, None]) * scale
    torch.testing.assert_close(norm.eval()(images), expected)


def test_kernels_lie_with_channels_last_and_have_their_values_by_name() -> None:
    network = CNNTable3().build((1, 28, 28), 1)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    flat = FlatModule(network, torch.float32, torch.device("cpu"))
    for name, value in flat.named(flat.vector).items():
        assert torch.equal(value, before[name])
        if value.dim() == 4:
            assert value.is_contiguous(memory_format=torch.channels_last)
