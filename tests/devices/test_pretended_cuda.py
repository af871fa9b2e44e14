"""The pretended device itself: it refuses what CUDA refuses, counts what CUDA would do, and computes what the CPU does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from tests.devices.pretended_cuda import DeviceError, PretendedCuda, PretendedTensor


@pytest.fixture
def device() -> Iterator[PretendedCuda]:
    with PretendedCuda() as device:
        yield device


def test_tensors_say_where_they_are(device: PretendedCuda) -> None:
    x = device.put(torch.ones(3))
    assert x.device == torch.device("cuda:0")
    assert x.is_cuda
    assert torch.zeros(2, device="cuda").device == x.new_zeros(2).device == x.device
    assert x.cpu().device.type == "cpu"


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, y: x + y,
        lambda x, y: x @ y,
        lambda x, y: y.add_(x),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.where(y > 0, x, 0.0),
        lambda x, y: np.asarray(x),
        lambda x, y: torch.rand(3, device="cuda", generator=torch.Generator()),
    ],
)
def test_what_cuda_refuses_is_refused(device: PretendedCuda, operation) -> None:
    with pytest.raises(DeviceError):
        operation(device.put(torch.ones(3)), torch.ones(3))


def test_a_scalar_of_the_host_is_an_operand(device: PretendedCuda) -> None:
    x = device.put(torch.ones(3))
    assert (x * torch.tensor(2.0)).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(DeviceError):
        torch.stack([x[0], torch.tensor(2.0)])


def test_float64_is_refused_where_the_device_has_none() -> None:
    with PretendedCuda(double=False) as device, pytest.raises(DeviceError, match="float64"):
        device.put(torch.ones(3)).double()


@pytest.mark.parametrize(
    ("operation", "times"),
    [
        (lambda x: x * 2, 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x.unique(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: torch.empty(3).copy_(x), 1),
        (lambda x: x.repeat_interleave(torch.ones_like(x).long()), 1),
        (lambda x: x.repeat_interleave(torch.ones_like(x).long(), output_size=3), 0),
        (lambda x: x[torch.tensor([0, 1])], 0),
    ],
)
def test_synchronisations_are_counted(device: PretendedCuda, operation, times: int) -> None:
    x = device.put(torch.ones(3))
    operation(x)
    assert device.synchronisations.total() == times, device.synchronisations


@pytest.mark.parametrize(
    ("operation", "times"),
    [
        (lambda x: x * 2, 0),
        (lambda x: torch.ones(3).to("cuda:0", non_blocking=True), 1),
        (lambda x: torch.tensor([1.0, 2.0], device="cuda:0"), 1),
        (lambda x: x.copy_(torch.zeros(3)), 1),
        (lambda x: x[torch.tensor([0, 1])], 1),
        (lambda x: x.to("cuda:0"), 0),
    ],
)
def test_copies_from_the_host_are_counted(device: PretendedCuda, operation, times: int) -> None:
    operation(device.put(torch.ones(3)))
    assert device.copies.total() == times, device.copies


def test_launches_and_bytes_are_counted_and_reset(device: PretendedCuda) -> None:
    x = device.put(torch.ones(4, 4))
    y = x.T.reshape(16)[:8] * 2  # reshape of a transposed matrix copies
    assert y.shape == (8,)
    assert device.launches.total() == 2, device.launches
    assert device.bytes == 2 * 16 * 4 + 2 * 8 * 4
    device.reset()
    assert (device.launches.total(), device.bytes) == (0, 0)


def test_the_line_of_metrix_is_named(device: PretendedCuda) -> None:
    from metrix.model.pooling import GeneralisedMean

    GeneralisedMean()(device.put(torch.ones(1, 2, 3, 3)))
    assert {line.split(":")[0] for _, line in device.launches} == {"model/pooling.py"}


def test_a_step_of_training_equals_the_cpu(device: PretendedCuda) -> None:
    def train_one_step(network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        network(x).square().mean().backward()
        optimizer.step()
        return [*network.parameters(), *network.buffers()]

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))

    x = torch.randn(4, 3, 8, 8)
    on_cpu = build()
    on_cpu(x)
    there = build()
    there(x)
    expected = train_one_step(on_cpu, x)
    got = train_one_step(device.put_module(there), device.put(x))
    for tensor, other in zip(expected, got, strict=True):
        assert isinstance(other, PretendedTensor)
        torch.testing.assert_close(other.held, tensor, rtol=0, atol=0)


def test_shapes_alone_compute_nothing() -> None:
    with PretendedCuda(shapes_only=True) as device:
        big = torch.empty(100_000, 100_000, device="cuda")
        assert (big @ big).shape == (100_000, 100_000)
    assert device.bytes == 3 * 4 * 10**10


def test_nothing_is_left_behind() -> None:
    before = torch.cuda._lazy_init
    with PretendedCuda() as device:
        x = device.put(torch.ones(2))
    assert torch.cuda._lazy_init is before
    assert PretendedCuda.current is None
    with pytest.raises(RuntimeError, match="outside"):
        x + 1
