"""Feature mixup under max pooling: a max-plus product.

For a pair (i, j) and a channel, with positions p of the feature map,

    out = max_p ( λ x[i, p] + (1-λ) x[j, p] )

No mixed map is ever formed: the outputs and one small number each, the position of the maximum, are
all that is kept. A block of pairs is followed at once by the linear layer, and in the backward pass its
outputs come back from those positions, so memory stays at one block whatever the number of pairs.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin

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
    """The loops in torch, for any device."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position, a few pairs at a time."""
        _, positions, channels = x.shape
        out = x.new_empty(len(i), channels)
        where = torch.empty(len(i), channels, dtype=position_dtype(positions), device=x.device)
        step = max(1, 2**20 // (positions * channels))
        for start in range(0, len(i), step):
            at = slice(start, start + step)
            out[at], where[at] = torch.lerp(x[j[at]], x[i[at]], lam[at, None, None]).max(1)
        return out, where

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]."""
        channel = torch.arange(x.shape[2], device=x.device)
        p = where.long()
        return torch.lerp(x[j[:, None], p, channel], x[i[:, None], p, channel], lam[:, None])

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """Add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""
        _, positions, channels = into.shape
        channel = torch.arange(channels, device=into.device)
        flat = into.view(-1)
        for end, share in ((i, lam), (j, 1.0 - lam)):
            at = (end[:, None] * positions + where.long()) * channels + channel
            flat.index_add_(0, at.flatten(), (grad * share[:, None]).flatten())


def position_dtype(positions: int) -> torch.dtype:
    """The smallest type that numbers the positions of a map."""
    if positions <= 256:
        return torch.uint8
    return torch.int16 if positions <= 2**15 else torch.int32


@cache
def compiled_kernel() -> Kernel | None:
    """The loops compiled by numba for the CPU; None, with one log message, where numba cannot be imported."""
    try:
        from metrix.core.compute.max_plus_numba import NumbaKernel
    except ImportError as error:
        logger.warning("max-plus mixup runs in plain torch, which is slower: numba cannot be imported (%s)", error)
        return None
    return NumbaKernel()


def kernel_for(x: Tensor) -> Kernel:
    """The fastest kernel for where the features are."""
    compiled = compiled_kernel() if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) else None
    return TorchKernel() if compiled is None else compiled


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
        if torch.is_grad_enabled():
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

    `budget` bounds the bytes of one block of pairs; besides it a byte per pair and channel is kept.
    """
    if use_twin():
        return _plain(x, weight, i, j, lam)
    channels = x.shape[2]
    block = max(1, budget // (2 * channels * x.element_size()))
    out: Tensor = _MaxPlusLinear.apply(x.contiguous(), weight, i, j, lam, block)
    return out
