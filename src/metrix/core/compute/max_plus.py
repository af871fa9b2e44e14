"""Feature mixup under max pooling: a max-plus product.

For a pair (i, j) and a channel, with positions p of the feature map,

    out = max_p ( λ x[i, p] + (1-λ) x[j, p] )

No mixed map is ever formed: the outputs and one small number each, the position of the maximum, are
all that is kept. A block of pairs is followed at once by the linear layer, and in the backward pass its
outputs come back from those positions, so memory stays at one block whatever the number of pairs.

The loops over pairs are compiled by numba on a CPU and by Triton on CUDA, where these can be imported; elsewhere they
are plain torch, on large blocks. On both, gradients are summed in a fixed order, so results repeat exactly.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.core.compute.device_memory import block_bytes

logger = logging.getLogger("metrix")


class Kernel(Protocol):
    """The three loops over pairs; x is (n, positions, channels) and contiguous; i, j and lam are (pairs,)."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position: each (pairs, channels)."""

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]: (pairs, channels)."""

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """The reverse of `take`: add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""


class TorchKernel:
    """The loops in torch, for any device, a block of pairs at a time."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position."""
        _, positions, channels = x.shape
        out = x.new_empty(len(i), channels)
        where = torch.empty(len(i), channels, dtype=position_dtype(positions), device=x.device)
        for at in _blocks(len(i), _pairs_at_once(x, 2 * positions * channels)):
            mixed = x.index_select(0, j[at]).lerp_(x.index_select(0, i[at]), lam[at, None, None])
            out[at], where[at] = mixed.max(1)
        return out, where

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]."""
        out = x.new_empty(len(i), x.shape[2])
        for at in _blocks(len(i), _pairs_at_once(x, _INDEXED * x.shape[2])):
            left, right = (x.view(-1).index_select(0, _places(end[at], where[at], x)) for end in (i, j))
            out[at] = torch.lerp(right.view_as(out[at]), left.view_as(out[at]), lam[at, None])
        return out

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """Add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""
        flat = into.view(-1)
        for at in _blocks(len(i), _pairs_at_once(into, _INDEXED * into.shape[2])):
            for end, share in ((i[at], lam[at]), (j[at], 1.0 - lam[at])):
                places, values = _places(end, where[at], into), (grad[at] * share[:, None]).view(-1)
                if into.is_cuda:  # sorts the places: `index_add_` adds there in any order
                    flat.index_put_((places,), values, accumulate=True)
                else:
                    flat.index_add_(0, places, values)


# Numbers of float32 that the torch loops hold for each output besides it: places, their sorted copies, and values.
_INDEXED = 16


def _places(end: Tensor, where: Tensor, x: Tensor) -> Tensor:
    """x[end, where, channel] as places in x.view(-1): (pairs · channels,)."""
    _, positions, channels = x.shape
    channel = torch.arange(channels, device=x.device)
    return ((end[:, None] * positions + where) * channels + channel).view(-1)


def _pairs_at_once(x: Tensor, numbers: int) -> int:
    """How many pairs with so many intermediate numbers each fit into a block: into the cache of a CPU, or a GPU."""
    limit = 2**21 if x.device.type == "cpu" else block_bytes(x.device) // x.element_size()
    return max(1, limit // max(1, numbers))


def position_dtype(positions: int) -> torch.dtype:
    """The smallest type that numbers the positions of a map."""
    if positions <= 256:
        return torch.uint8
    return torch.int16 if positions <= 2**15 else torch.int32


@cache
def compiled_kernel(device: str = "cpu") -> Kernel | None:
    """The loops compiled for a type of device; None, with one log message, where there is no compiler for it."""
    try:
        if device == "cpu":
            from metrix.core.compute.max_plus_numba import NumbaKernel

            return NumbaKernel()
        if device == "cuda":
            from metrix.core.compute.max_plus_triton import TritonKernel

            return TritonKernel()
    except ImportError as error:
        compiler = "numba" if device == "cpu" else "triton"
        logger.warning(
            "max-plus mixup runs in plain torch, which is slower: %s cannot be imported (%s)", compiler, error
        )
    return None


@torch.library.custom_op("metrix::max_plus_maximum", mutates_args=())
def _maximum(x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    return _compiled_for(x).maximum(x, i, j, lam)


@_maximum.register_fake
def _(x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    shape = (len(i), x.shape[2])
    return x.new_empty(shape), x.new_empty(shape, dtype=position_dtype(x.shape[1]))


@torch.library.custom_op("metrix::max_plus_take", mutates_args=())
def _take(x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
    return _compiled_for(x).take(x, i, j, lam, where)


@_take.register_fake
def _(x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
    return x.new_empty(where.shape)


@torch.library.custom_op("metrix::max_plus_scatter", mutates_args=("into",))
def _scatter(grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
    _compiled_for(into).scatter(grad, i, j, lam, where, into)


class CompiledKernel:
    """The compiled loops as operations of torch, which `torch.compile` takes as they are."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position."""
        out, where = _maximum(x, i, j, lam)
        return out, where

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]."""
        out: Tensor = _take(x, i, j, lam, where)
        return out

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """Add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""
        _scatter(grad, i, j, lam, where, into)


def _compiled_for(x: Tensor) -> Kernel:
    kernel = compiled_kernel(x.device.type)
    assert kernel is not None
    return kernel


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def runs_compiled(device: torch.device) -> bool:
    """Whether there are compiled loops for a device; Triton needs a GPU of 2017 (Volta) or later."""
    if device.type == "cuda" and not (torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (7, 0)):
        return False
    return compiled_kernel(device.type) is not None


def kernel_for(x: Tensor) -> Kernel:
    """The fastest kernel for where the features are."""
    return CompiledKernel() if runs_compiled(x.device) else TorchKernel()


class _MaxPlusLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, i: Tensor, j: Tensor, lam: Tensor, block: int) -> Tensor:
        kernel = kernel_for(x)
        ctx.block = block
        keep = x.requires_grad or weight.requires_grad
        where: list[Tensor] = []
        out = x.new_empty(len(i), len(weight))
        pooled = x.new_empty(0)
        for at in _blocks(len(i), block):
            pooled, found = kernel.maximum(x, i[at], j[at], lam[at])
            torch.mm(pooled, weight.T, out=out[at])
            if keep:
                where.append(found)
        # the outputs of a single block fit into its budget: keep them for the backward pass
        ctx.save_for_backward(x, weight, i, j, lam, pooled if len(where) == 1 else None, *where)
        return out

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, i, j, lam, pooled, *where = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            at_maximum = torch.cat(where).long() if where else i.new_zeros(0, x.shape[2])
            twin = twin_gradients(lambda x, weight: _plain(x, weight, i, j, lam, at_maximum), [x, weight], [grad])
            return *twin, None, None, None, None
        kernel = kernel_for(x)
        grad = grad.contiguous()
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for at, found in zip(_blocks(len(i), ctx.block), where, strict=True):
            pair = (i[at], j[at], lam[at])
            if ctx.needs_input_grad[1]:
                grad_weight.addmm_(grad[at].T, kernel.take(x, *pair, found) if pooled is None else pooled)
            if ctx.needs_input_grad[0]:
                kernel.scatter(grad[at] @ weight, *pair, found, grad_x)
        return grad_x, grad_weight, None, None, None, None


def _plain(x: Tensor, weight: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor | None = None) -> Tensor:
    """The plain twin; `where` are the positions of the maxima (pairs, channels), found first where they are None."""
    _, positions, channels = x.shape
    if where is None:
        mixed = torch.lerp(x.index_select(0, j), x.index_select(0, i), lam[:, None, None])
        return mixed.amax(1) @ weight.T
    at = where * channels + torch.arange(channels, device=x.device)
    flat, size = x.reshape(-1), positions * channels
    left, right = (flat.index_select(0, (end[:, None] * size + at).flatten()).view(at.shape) for end in (i, j))
    return torch.lerp(right, left, lam[:, None]) @ weight.T


def _blocks(pairs: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, pairs)) for start in range(0, pairs, block)]


def max_plus_linear(x: Tensor, weight: Tensor, i: Tensor, j: Tensor, lam: Tensor, budget: int = 2**28) -> Tensor:
    """weight · max_p(λ x_i + (1-λ) x_j) for each pair: x (n, positions, channels) to (pairs, d).

    Numbers of 16 bits are computed with in float32. `budget` bounds the bytes of the outputs of one block of pairs;
    besides it a byte per pair and channel is kept.
    """
    dtype = torch.promote_types(x.dtype, weight.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    x, weight, lam = x.to(wide), weight.to(wide), lam.to(wide)
    if use_twin():
        return _plain(x, weight, i, j, lam).to(dtype)
    block = max(1, budget // (2 * max(1, x.shape[2]) * x.element_size()))
    out: Tensor = _MaxPlusLinear.apply(x.contiguous(), weight, i, j, lam, block)
    return out.to(dtype)
