"""Max-plus in plain torch, as on a GPU without Triton, against the compiled loops; and under `torch.compile`."""

from __future__ import annotations

import pytest
import torch

from benchmarks import devices
from metrix.core.compute import device_memory, max_plus
from metrix.core.compute.max_plus import TorchKernel, max_plus_linear
from tests.devices.pretended_cuda import PretendedCuda


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(n, positions, channels, dtype):
    i, j = torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)
    x = random(n, positions, channels, dtype=dtype)
    return x, random(3, channels, dtype=dtype, seed=1), i, j, random(len(i), seed=2).sigmoid()


def differentiate(x, weight, i, j, lam, budget=2**28):
    x, weight = x.requires_grad_(), weight.requires_grad_()
    out = max_plus_linear(x, weight, i, j, lam, budget)
    return [out, *torch.autograd.grad(out.square().sum(), [x, weight])]


@pytest.mark.parametrize("free", [2**33, 2**12], ids=["one block", "small blocks"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 49, 3), (5, 300, 2)], ids=str)
@pytest.mark.parametrize("budget", [1, 2**28])
def test_results_are_those_of_the_cpu(shape, dtype, free, budget, monkeypatch):
    monkeypatch.setattr(device_memory, "ASSUMED", free)
    monkeypatch.setattr(max_plus, "runs_compiled", lambda device: False)
    given = inputs(*shape, dtype)
    expected = differentiate(*given, budget)
    with PretendedCuda() as device:
        found = differentiate(*map(device.put, given), budget)
        assert device.synchronisations.total() == 0, device.synchronisations
        assert device.copies.total() == 0, device.copies
    for there, here in zip(found, expected, strict=True):
        torch.testing.assert_close(there.held, here)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 49, 3), (5, 300, 2)], ids=str)
def test_the_compiled_loops_of_the_cpu_agree(shape, dtype, monkeypatch):
    x, *rest = inputs(*shape, dtype)
    x = x.transpose(1, 2).contiguous().transpose(1, 2)  # as features of a network are
    assert max_plus.runs_compiled(x.device)
    found = differentiate(x, *rest)
    monkeypatch.setattr(max_plus, "runs_compiled", lambda device: False)
    for compiled, plain in zip(found, differentiate(x, *rest), strict=True):
        assert compiled.dtype == dtype
        torch.testing.assert_close(compiled, plain)


def test_no_pairs_give_no_outputs():
    x, weight, *_ = inputs(2, 3, 4, torch.float32)
    none = torch.empty(0, dtype=torch.int64)
    here = differentiate(x, weight, none, none, torch.empty(0))
    with PretendedCuda() as device:
        there = differentiate(*map(device.put, (x, weight, none, none, torch.empty(0))))
    for out, *gradients in (here, [found.held for found in there]):
        assert out.shape == (0, 3)
        assert all(gradient.eq(0).all() for gradient in gradients)


def test_launches_at_the_shapes_of_resnet50():
    """A batch of 20 × 5 with all pairs of two classes, on a GPU with 8 GB free."""
    assert [figure for figure in devices.max_plus() if not figure["reached"]] == []


def test_gradients_are_summed_in_a_fixed_order_on_the_device():
    """`index_add_` and `scatter_add_` add in any order on CUDA; `index_put_` sorts first."""
    with PretendedCuda() as device:
        differentiate(*map(device.put, inputs(3, 4, 5, torch.float32)))
        operations = {name for name, _ in device.launches}
    assert "_index_put_impl_" in operations or "index_put_" in operations
    assert not operations & {"index_add_", "index_add", "scatter_add_", "scatter_add"}


@pytest.mark.parametrize("kernel", ["compiled", "torch"])
def test_it_compiles_to_one_graph(kernel, monkeypatch):
    if kernel == "torch":
        monkeypatch.setattr(max_plus, "kernel_for", lambda x: TorchKernel())
    torch.compiler.reset()
    given = inputs(4, 9, 6, torch.float32)
    eager = differentiate(*given)
    compiled = torch.compile(max_plus_linear, fullgraph=True, backend="aot_eager")
    monkeypatch.setitem(globals(), "max_plus_linear", compiled)
    for ours, other in zip(differentiate(*given), eager, strict=True):
        torch.testing.assert_close(ours, other)
