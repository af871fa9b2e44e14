"""Max-plus by Triton against numba and a literal loop. Triton's interpreter runs the kernels on CPU tensors.

The interpreter is chosen by a variable that must be set before Triton is imported, so the tests run in a process of
their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton comes with torch for CUDA")

if os.environ.get("TRITON_INTERPRET") != "1":

    def test_in_the_interpreter_of_triton():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("number", ["fp32", "fp64"])
    @pytest.mark.parametrize("name", ["_maximum", "_take", "_scatter"])
    def test_a_kernel_compiles_for_a_gpu_without_atomic_operations(name, number, tmp_path, monkeypatch):
        """To machine code of an A100, by the compiler that Triton brings; no GPU is needed."""
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns unless it is set
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from metrix.core.compute import max_plus_triton

        kernel = getattr(max_plus_triton, name)
        tiles = {"P": 64, "C": 64}
        types = {"i": "*i64", "j": "*i64", "ends": "*i64", "start": "*i64", "where": "*u8"}
        types |= dict.fromkeys(("pairs", "positions", "channels"), "i32") | dict.fromkeys(tiles, "constexpr")
        signature = {argument: types.get(argument, f"*{number}") for argument in kernel.arg_names}
        constants = {tile: size for tile, size in tiles.items() if tile in signature}
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        found = triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm
        assert len(found["cubin"]) > 0
        assert not re.search(r"\b(atom|red)\.", found["ptx"])

else:
    from metrix.core.compute import max_plus
    from metrix.core.compute.max_plus import max_plus_linear
    from metrix.core.compute.max_plus_numba import NumbaKernel
    from metrix.core.compute.max_plus_triton import TritonKernel

    TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
    SHAPES = [  # (n, positions, channels)
        (2, 1, 1),
        (2, 3, 5),
        (4, 9, 65),  # two tiles of channels in the backward pass
        (3, 70, 3),  # two tiles of positions in the backward pass
        (3, 4, 513),  # two tiles of channels in the forward pass
        (2, 300, 2),  # positions that a byte cannot number
    ]

    def random(*shape, dtype=torch.float64, seed=0):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)

    def all_pairs(n):
        return torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)

    def shares(pairs, dtype):
        lam = random(pairs, dtype=dtype, seed=1).sigmoid()
        lam[0], lam[-1] = 0.0, 1.0
        return lam

    def compute_literally(x, i, j, lam, grad):
        """Values, positions and gradient, one number at a time."""
        x, lam, grad = (t.double().numpy() for t in (x, lam, grad))
        out, where, into = np.empty(grad.shape), np.empty(grad.shape, dtype=int), np.zeros(x.shape)
        for k, (a, b) in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
            for c in range(x.shape[2]):
                mixed = [lam[k] * x[a, p, c] + (1 - lam[k]) * x[b, p, c] for p in range(x.shape[1])]
                where[k, c], out[k, c] = int(np.argmax(mixed)), max(mixed)
                into[a, where[k, c], c] += lam[k] * grad[k, c]
                into[b, where[k, c], c] += (1 - lam[k]) * grad[k, c]
        return [torch.from_numpy(t) for t in (out, where, into)]

    def run(kernel, x, i, j, lam, grad):
        out, where = kernel.maximum(x, i, j, lam)
        into = torch.zeros_like(x)
        kernel.scatter(grad, i, j, lam, where, into)
        return out, where.long(), into, kernel.take(x, i, j, lam, where)

    @pytest.mark.parametrize("dtype", TOLERANCE)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_the_kernels_are_those_of_numba_and_a_literal_loop(shape, dtype):
        n, _, channels = shape
        i, j = all_pairs(n)
        x, lam = random(*shape, dtype=dtype), shares(len(i), dtype)
        grad = random(len(i), channels, dtype=dtype, seed=2)
        out, where, into, taken = run(TritonKernel(), x, i, j, lam, grad)
        assert out.dtype == into.dtype == dtype
        close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype], "check_dtype": False}
        for ours, other in zip((out, where, into), compute_literally(x, i, j, lam, grad), strict=True):
            torch.testing.assert_close(ours, other, **close)
        for ours, other in zip((out, where, into, taken), run(NumbaKernel(), x, i, j, lam, grad), strict=True):
            torch.testing.assert_close(ours, other, **close)
        torch.testing.assert_close(taken, out, **close)

    def test_the_first_of_equal_maxima_is_taken():
        x = torch.ones(2, 5, 3)
        i, j = all_pairs(2)
        _, where = TritonKernel().maximum(x, i, j, torch.full((4,), 0.25))
        assert where.eq(0).all()

    def test_pairs_in_any_order_and_repeated_add_up():
        x = random(5, 6, 4)
        i, j = torch.tensor([4, 4, 0, 4, 2]), torch.tensor([0, 0, 0, 4, 0])  # 1 and 3 are in no pair
        lam, grad = shares(5, torch.float64), random(5, 4, seed=2)
        into = run(TritonKernel(), x, i, j, lam, grad)[2]
        torch.testing.assert_close(into, compute_literally(x, i, j, lam, grad)[2])
        assert into[[1, 3]].eq(0).all()

    def test_no_pairs_give_no_outputs():
        none = torch.empty(0, dtype=torch.int64)
        x = random(3, 4, 2)
        out, where, into, taken = run(TritonKernel(), x, none, none, x.new_empty(0), x.new_empty(0, 2))
        assert out.shape == where.shape == taken.shape == (0, 2)
        assert into.eq(0).all()

    @pytest.mark.parametrize("budget", [1, 2**28], ids=["a pair in a block", "one block"])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_the_linear_layer_follows(dtype, budget, monkeypatch):
        """Features that are not contiguous; value, gradients and, in float64, second derivatives."""
        x = random(3, 7, 5, dtype=dtype).transpose(1, 2).requires_grad_()
        weight, upstream = random(4, 7, dtype=dtype, seed=1).requires_grad_(), random(9, 4, seed=2)
        i, j = all_pairs(3)
        lam = shares(9, torch.float64)

        def differentiate():
            out = max_plus_linear(x, weight, i, j, lam, budget)
            first = torch.autograd.grad((out * upstream).tanh().sum(), [x, weight], create_graph=dtype.itemsize == 8)
            norm = sum(g.square().sum() for g in first)
            return [out, *first, *(torch.autograd.grad(norm, [x, weight]) if dtype.itemsize == 8 else ())]

        by_numba = differentiate()
        triton = TritonKernel()
        monkeypatch.setattr(max_plus, "compiled_kernel", lambda device: triton)
        found = differentiate()
        assert found[0].dtype == dtype
        tolerance = TOLERANCE.get(dtype, 2e-2)
        for ours, other in zip(found, by_numba, strict=True):
            torch.testing.assert_close(ours, other, rtol=tolerance, atol=tolerance)
        for ours, again in zip(found, differentiate(), strict=True):
            assert torch.equal(ours, again)
