"""Sizes of networks, networks as flat vectors, and the running statistics of BatchNorm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.cases import STATISTICS, Case, Drive
from torch import Tensor, nn

from fedsys.algorithms import FedAvg
from fedsys.clients.flat_module import FlatModule
from fedsys.communication import LocalTransport
from fedsys.core.errors import InputError
from fedsys.core.placement import Placement
from fedsys.core.site import Site
from fedsys.models import (
    CNN7,
    MLP,
    CifarResNet,
    CNNTable3,
    DenseNet121,
    LeNet5,
    ModelSource,
    ResNet50,
)
from fedsys.problems import Classification
from fedsys.problems.networks.classification import ClassificationOracle

CPU = torch.device("cpu")
CLIENTS = 3


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def seeded(build: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in build.parameters():
        parameter.data.normal_(generator=generator)
    return build


# Sizes.


def test_resnet20_has_269722_parameters() -> None:
    # Convolutions 3x3 without bias, BatchNorm with 2 numbers per channel, parameter-free shortcuts:
    #   input       3*16*9 + 2*16                                                  =     464
    #   16 channels 6 convolutions of 16*16*9 + 2*16                               =  14,016
    #   32 channels 16*32*9 + 5 of 32*32*9, and 6 of 2*32                          =  51,072
    #   64 channels 32*64*9 + 5 of 64*64*9, and 6 of 2*64                          = 203,520
    #   output      64*10 + 10                                                     =     650
    assert 464 + 14_016 + 51_072 + 203_520 + 650 == 269_722
    assert count(CifarResNet(20).build((3, 32, 32), 10)) == 269_722


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_deeper_resnets_have_the_sizes_of_the_paper(depth: int, millions: float) -> None:
    # He et al. 2016, Table 6.
    assert count(CifarResNet(depth).build((3, 32, 32), 10)) / 1e6 == pytest.approx(
        millions, abs=6e-3
    )


def test_resnet20_has_20_layers_with_weights_and_group_norm_changes_no_size() -> None:
    batch, group = (CifarResNet(20, norm).build((3, 32, 32), 10) for norm in ("batch", "group"))
    layers = [m for m in batch.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    assert count(group) == count(batch)
    assert not list(group.buffers())


def test_resnet_maps_images_to_outputs_and_starts_every_stage_by_halving() -> None:
    net = CifarResNet(8).build((1, 32, 32), 3)
    sizes = []
    for layer in net:
        layer.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 3)
    stages = sizes[3:6]
    assert stages == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_mlp_has_the_configured_layers() -> None:
    assert count(MLP([200, 200]).build((784,), 1)) == 785 * 200 + 201 * 200 + 201
    assert count(MLP([]).build((8, 8), 10)) == 65 * 10
    assert MLP([5]).build((2, 4), 3)(torch.zeros(7, 2, 4)).shape == (7, 3)


def test_lenet5_has_61706_parameters_on_mnist() -> None:
    # 6*(25+1) + 16*(6*25+1) + 120*(16*25+1) + 84*(120+1) + 10*(84+1), as for the padded original.
    assert 156 + 2416 + 48_120 + 10_164 + 850 == 61_706
    assert count(LeNet5().build((1, 28, 28), 10)) == 61_706
    assert count(LeNet5().build((3, 32, 32), 10)) == 61_706 + 2 * 6 * 25


def test_the_cnn_of_seven_layers_has_seven_layers_with_weights() -> None:
    net = CNN7().build((3, 32, 32), 1)
    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [m.weight.shape[0] for m in layers] == [32, 32, 64, 64, 128, 128, 1]


def test_the_cnn_of_table_3_has_the_layers_of_the_table() -> None:
    net = CNNTable3().build((1, 28, 28), 1)
    rows = [type(m).__name__ for m in net]
    one = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert rows == [*one, *one, "Flatten", "Linear", "Linear", "Linear"]
    assert [m.weight.shape[0] for m in net if isinstance(m, nn.Conv2d | nn.Linear)] == [
        32, 64, 600, 120, 1,
    ]  # fmt: skip


def test_large_networks_are_those_of_torchvision_for_images_of_imagenet() -> None:
    # The numbers of parameters that torchvision publishes with its weights.
    with torch.device("meta"):
        assert count(ResNet50().build((3, 224, 224), 1000)) == 25_557_032
        assert count(DenseNet121().build((3, 224, 224), 1000)) == 7_978_856


@pytest.mark.parametrize(
    ("model", "stem"), [(ResNet50(), "conv1"), (DenseNet121(), "features.conv0")]
)
def test_a_small_image_keeps_its_resolution_in_a_large_network(
    model: ModelSource, stem: str
) -> None:
    for shape, after in (((1, 28, 28), 28), ((3, 64, 64), 64), ((1, 96, 96), 24)):
        with torch.device("meta"):  # the test only needs shapes
            net = model.build(shape, 1)
        widths = []
        first = net.get_submodule("layer1" if stem == "conv1" else "features.denseblock1")
        first.register_forward_pre_hook(lambda _, inputs, w=widths: w.append(inputs[0].shape[-1]))
        assert net.get_submodule(stem).in_channels == shape[0]
        with torch.no_grad():
            assert net(torch.zeros(2, *shape, device="meta")).shape == (2, 1)
        assert widths == [after]


@pytest.mark.parametrize("model", [CNN7, CNNTable3, ResNet50, DenseNet121])
def test_group_norm_replaces_every_batch_norm_and_changes_no_size(
    model: Callable[[str], ModelSource],
) -> None:
    with torch.device("meta"):
        batch, group = (model(norm).build((3, 32, 32), 1) for norm in ("batch", "group"))
    assert count(group) == count(batch)
    assert list(batch.buffers())
    assert not list(group.buffers())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in group.modules())


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_depth_that_is_not_6n_plus_2_is_refused(depth: int) -> None:
    with pytest.raises(InputError, match=f"depth must be 6n .*, got {depth}"):
        CifarResNet(depth)


def test_invalid_options_of_a_model_are_refused_by_name_and_value() -> None:
    with pytest.raises(InputError, match="norm must be batch or group, got 'layer'"):
        CifarResNet(20, norm="layer")
    with pytest.raises(InputError, match=r"hidden must be .*, got \[3, 0\]"):
        MLP([3, 0])
    with pytest.raises(InputError, match=r"input must be an image .*, got \[64\]"):
        CifarResNet(20).build((64,), 10)
    with pytest.raises(InputError, match=r"at least 12x12 pixels, got \[1, 8, 8\]"):
        LeNet5().build((1, 8, 8), 10)
    with pytest.raises(InputError, match="densenet121: norm must be batch or group, got 'layer'"):
        DenseNet121("layer")


# Flat vectors.


def test_the_parameters_of_a_flat_module_are_views_of_its_vector_in_order() -> None:
    module = seeded(MLP([3]).build((2,), 2))
    values = torch.cat([p.detach().reshape(-1).double() for p in module.parameters()])
    flat = FlatModule(module, torch.float64, CPU)
    assert torch.equal(flat.vector, values)
    flat.vector.fill_(7.0)
    assert all(bool((p == 7).all()) for p in module.parameters())
    row = torch.arange(float(len(values)), dtype=torch.float64)
    flat.load(row)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in module.parameters()]), row)
    assert all(p.untyped_storage().data_ptr() == row.data_ptr() for p in module.parameters())
    module(torch.ones(1, 2, dtype=torch.float64)).sum().backward()


def test_a_point_is_split_into_the_names_and_shapes_of_the_parameters() -> None:
    flat = FlatModule(MLP([3]).build((2,), 2), torch.float64, CPU)
    named = flat.named(torch.arange(17.0))
    assert {name: tuple(value.shape) for name, value in named.items()} == {
        "0.weight": (3, 2),
        "0.bias": (3,),
        "2.weight": (2, 3),
        "2.bias": (2,),
    }
    assert named["0.bias"].tolist() == [6, 7, 8]
    flat.module.load_state_dict(named)
    assert flat.vector.tolist() == list(range(17))


def oracle_of(problem: Classification) -> ClassificationOracle:
    return problem.oracle(Site(Placement(CLIENTS), seed=1, dtype=torch.float64))


def plain_gradient(net: nn.Module, row: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient by loss.backward() on an ordinary module."""
    torch.nn.utils.vector_to_parameters(row, net.parameters())
    net.zero_grad()
    F.cross_entropy(net(inputs), labels).backward()
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize(
    "problem",
    [STATISTICS, Classification(STATISTICS.dataset, model=MLP([4]), batch_size=5)],
    ids=["batchnorm", "mlp"],
)
def test_each_clients_gradient_is_that_of_plain_autograd_at_its_own_point(
    problem: Classification,
) -> None:
    oracle = oracle_of(problem)
    noise = torch.randn(oracle.z0.shape, generator=torch.Generator().manual_seed(2))
    z = oracle.z0 + 0.1 * noise.double()
    before = z.clone()
    batch = oracle.at(4).draw()
    gradient = oracle.grad(z, batch)
    assert torch.equal(z, before)
    for client in range(CLIENTS):
        net = problem.model.build((5,), 4).double()
        expected = plain_gradient(net, z[client], batch.inputs[client], batch.labels[client])
        torch.testing.assert_close(gradient[client], expected, rtol=1e-12, atol=1e-12)


def test_initial_weights_depend_only_on_the_seed_and_leave_the_global_generator_unchanged() -> None:
    before = torch.random.get_rng_state()
    first = oracle_of(STATISTICS).z0
    torch.manual_seed(99)
    again = oracle_of(STATISTICS).z0
    other = STATISTICS.oracle(Site(Placement(CLIENTS), seed=2, dtype=torch.float64)).z0
    torch.random.set_rng_state(before)
    assert torch.equal(first, again)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first, other)


# BatchNorm: each client has its own statistics, which are averaged at a round.


def drive(local_steps: int = 2) -> Drive:
    return Drive(
        Case(FedAvg(lr=0.1, local_steps=local_steps), STATISTICS), LocalTransport(), CLIENTS
    )


def test_running_statistics_are_each_clients_own_and_follow_its_batches() -> None:
    d = drive()
    state = d.start()
    assert d.oracle.synchronised_buffers.shape == (CLIENTS, 8)
    assert d.oracle.synchronised_buffers.tolist() == [[0.0] * 4 + [1.0] * 4] * CLIENTS
    batch = d.oracle.at(0).draw()
    d.step(state, 0)
    for client in range(CLIENTS):
        net = STATISTICS.model.build((5,), 4).double()
        torch.nn.utils.vector_to_parameters(state.x[client], net.parameters())
        net(batch.inputs[client])
        expected = torch.cat([net[1].running_mean, net[1].running_var])
        torch.testing.assert_close(
            d.oracle.synchronised_buffers[client], expected, rtol=1e-12, atol=1e-12
        )
    assert len({tuple(row) for row in d.oracle.synchronised_buffers.tolist()}) == CLIENTS


def test_running_statistics_are_averaged_at_a_round_and_counted_in_its_bytes() -> None:
    d, apart = drive(), drive(local_steps=1000)
    *_, _ = d.states(2)
    *_, state = apart.states(2)
    mean = apart.oracle.synchronised_buffers.mean(0).expand(CLIENTS, -1)
    torch.testing.assert_close(d.oracle.synchronised_buffers, mean, rtol=1e-12, atol=1e-12)
    assert d.communicator.traffic.bytes_up == 8 * (state.x.shape[1] + 8)


def test_evaluation_uses_the_averaged_statistics_and_does_not_change_them() -> None:
    d = drive(local_steps=1000)
    *_, state = d.states(3)
    before = d.oracle.synchronised_buffers.clone()
    unmetered = d.communicator.unmetered()
    z = unmetered(state.x)
    metrics = d.oracle.evaluate(z, unmetered)
    assert torch.equal(d.oracle.synchronised_buffers, before)

    net = STATISTICS.model.build((5,), 4).double()
    torch.nn.utils.vector_to_parameters(z[0], net.parameters())
    net[1].running_mean.copy_(before.mean(0)[:4])
    net[1].running_var.copy_(before.mean(0)[4:])
    net.eval()
    data = STATISTICS.dataset.load()
    accuracy = (net(data.test_inputs).argmax(1) == data.test_labels).double().mean()
    loss = F.cross_entropy(net(data.train_inputs), data.train_labels).detach()
    assert metrics["test_accuracy"] == pytest.approx(float(accuracy), abs=1e-7)
    assert metrics["train_loss"] == pytest.approx(float(loss), abs=1e-12)
    after = d.oracle.grad(state.x, d.oracle.at(7).draw())
    assert not torch.equal(
        d.oracle.synchronised_buffers, before
    )  # training has continued in training mode
    assert after.isfinite().all()


def test_a_model_without_batchnorm_sends_no_additional_data() -> None:
    assert oracle_of(Classification(STATISTICS.dataset)).synchronised_buffers is None
