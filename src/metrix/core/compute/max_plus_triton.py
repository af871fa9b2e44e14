# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The loops of `max_plus`, compiled by Triton for CUDA.

    maximum   one program has a pair and a range of channels, and walks over the positions
    scatter   one program owns a tile of the gradient (an example, some positions, some channels), keeps it in
              registers, and walks over the pairs that contain the example in a fixed order

So no two programs write to the same place, and results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from metrix.core.compute.max_plus import position_dtype

_CHANNELS = 512  # of one pair in a program: 4 in each of 128 threads, which one instruction reads
_POSITIONS_OWNED, _CHANNELS_OWNED = 64, 64  # of a tile of the gradient: 32 numbers in each of 128 threads


@triton.jit
def _maximum(x, i, j, lam, out, where, positions, channels, C: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * C + tl.arange(0, C)
    exists = c < channels
    a = x + tl.load(i + pair) * positions * channels + c
    b = x + tl.load(j + pair) * positions * channels + c
    left = tl.load(lam + pair)
    right = 1.0 - left
    best = tl.full((C,), float("-inf"), x.dtype.element_ty)
    place = tl.zeros((C,), tl.int32)
    for p in range(positions):
        value = left * tl.load(a + p * channels, mask=exists) + right * tl.load(b + p * channels, mask=exists)
        higher = value > best
        best = tl.where(higher, value, best)
        place = tl.where(higher, p, place)
    tl.store(out + pair * channels + c, best, mask=exists)
    tl.store(where + pair * channels + c, place.to(where.dtype.element_ty), mask=exists)


@triton.jit
def _take(x, i, j, lam, where, out, positions, channels, C: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * C + tl.arange(0, C)
    exists = c < channels
    at = tl.load(where + pair * channels + c, mask=exists, other=0).to(tl.int64) * channels + c
    left = tl.load(lam + pair)
    a = tl.load(x + tl.load(i + pair) * positions * channels + at, mask=exists)
    b = tl.load(x + tl.load(j + pair) * positions * channels + at, mask=exists)
    tl.store(out + pair * channels + c, left * a + (1.0 - left) * b, mask=exists)


@triton.jit
def _scatter(grad, ends, start, lam, where, into, pairs, positions, channels, P: tl.constexpr, C: tl.constexpr):
    example = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * C + tl.arange(0, C)
    p = tl.program_id(2) * P + tl.arange(0, P)
    exists = c < channels
    total = tl.zeros((P, C), grad.dtype.element_ty)
    for k in range(tl.load(start + example), tl.load(start + example + 1)):
        end = tl.load(ends + k)  # below `pairs` it is i of that pair, from there on j
        pair = tl.where(end < pairs, end, end - pairs)
        left = tl.load(lam + pair)
        share = tl.where(end < pairs, left, 1.0 - left)
        g = share * tl.load(grad + pair * channels + c, mask=exists, other=0.0)
        at = tl.load(where + pair * channels + c, mask=exists, other=0).to(tl.int32)
        total += tl.where(at[None, :] == p[:, None], g[None, :], 0.0)
    place = into + (example * positions + p[:, None]) * channels + c[None, :]
    inside = exists[None, :] & (p[:, None] < positions)
    tl.store(place, tl.load(place, mask=inside, other=0.0) + total, mask=inside)


class TritonKernel:
    """The loops on the GPU of the tensors."""

    def maximum(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum over positions, and its position: each (pairs, channels)."""
        _, positions, channels = x.shape
        out = x.new_empty(len(i), channels)
        where = torch.empty(len(i), channels, dtype=position_dtype(positions), device=x.device)
        _run_over_pairs(_maximum, x, i.contiguous(), j.contiguous(), lam.contiguous(), out, where)
        return out, where

    def take(self, x: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor) -> Tensor:
        """λ x[i, where] + (1-λ) x[j, where]: (pairs, channels)."""
        out = x.new_empty(len(i), x.shape[2])
        _run_over_pairs(_take, x, i.contiguous(), j.contiguous(), lam.contiguous(), where, out)
        return out

    def scatter(self, grad: Tensor, i: Tensor, j: Tensor, lam: Tensor, where: Tensor, into: Tensor) -> None:
        """Add λ grad to into[i, where] and (1-λ) grad to into[j, where]."""
        n, positions, channels = into.shape
        if into.numel() == 0 or len(i) == 0:
            return
        owners, ends = torch.cat([i, j]).sort(stable=True)
        start = torch.searchsorted(owners, torch.arange(n + 1, device=owners.device))
        P, C = _tile(positions, _POSITIONS_OWNED), _tile(channels, _CHANNELS_OWNED)
        grid = (n, triton.cdiv(channels, C), triton.cdiv(positions, P))
        with torch.cuda.device_of(into):
            _scatter[grid](
                grad.contiguous(), ends, start, lam.contiguous(), where, into, len(i), positions, channels, P=P, C=C
            )


def _run_over_pairs(kernel: Any, x: Tensor, *arguments: Tensor) -> None:
    pairs, (_, positions, channels) = len(arguments[0]), x.shape
    if pairs == 0:
        return
    C = _tile(channels, _CHANNELS)
    # pairs first: CUDA allows 2³¹ programs along the first axis, and 65,535 along the others
    with torch.cuda.device_of(x):
        kernel[pairs, triton.cdiv(channels, C)](x, *arguments, positions, channels, C=C)


def _tile(size: int, limit: int) -> int:
    """The next power of two, which tiles of Triton have, up to a limit."""
    return min(limit, int(triton.next_power_of_2(size)))
