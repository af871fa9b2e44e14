"""A loss summed block by block, in the memory of one block.

The gradient of a block is computed right after its value, and then the block is freed. So the sum costs one forward and
one backward pass, as it would in one piece. A second derivative, which is rarely wanted, holds all blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.core.generic import Totals

Block = TypeVar("Block")


def sum_over_blocks(
    block_totals: Callable[..., Totals],
    blocks: Sequence[Block],
    tensors: Sequence[Tensor | None],
    parameters: Sequence[Tensor] = (),
) -> Totals:
    """Σ over blocks of `block_totals(block, *tensors)`, differentiable in tensors and parameters.

    Args:
        block_totals: the sums of one block, from the block and all tensors.
        blocks: at least one.
        tensors: what `block_totals` takes; None is passed on as it is.
        parameters: learnable tensors that `block_totals` uses without taking them as arguments.

    Returns:
        The sums and counts over all blocks.
    """
    if len(blocks) == 1:
        return block_totals(blocks[0], *tensors)
    if use_twin():
        return _all_blocks(block_totals, blocks, tensors)
    sums, counts, anchors = _Streamed.apply(block_totals, blocks, len(tensors), *tensors, *parameters)
    return Totals(sums, counts, anchors)


def _all_blocks(
    block_totals: Callable[..., Totals], blocks: Sequence[Block], tensors: Sequence[Tensor | None]
) -> Totals:
    """The sums over all blocks in one graph."""
    so_far = block_totals(blocks[0], *tensors)
    for block in blocks[1:]:
        so_far = Totals(*(old + new for old, new in zip(so_far, block_totals(block, *tensors), strict=True)))
    return so_far


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        block_totals: Callable[..., Totals],
        blocks: Sequence[Block],
        num_tensors: int,
        *inputs: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed]  # type: ignore[attr-defined]
        tensors = [None if x is None else x.detach().requires_grad_(x.requires_grad) for x in inputs[:num_tensors]]
        leaves = {i: x for i, x in enumerate((*tensors, *inputs[num_tensors:])) if x is not None}
        grads: list[list[Tensor]] = []  # one list per part of the totals
        so_far: Totals | None = None
        for block in blocks:
            with torch.set_grad_enabled(bool(wanted)):
                totals = block_totals(block, *tensors)
            parts = len(totals.sums)
            if so_far is None:
                so_far = Totals(totals.sums.detach().clone(), totals.counts, totals.anchors)
                grads = [[torch.zeros_like(leaves[i]) for i in wanted] for _ in range(parts)]
            else:
                so_far = Totals(*(old + new.detach() for old, new in zip(so_far, totals, strict=True)))
            if not wanted or not totals.sums.requires_grad:
                continue
            for part, one in enumerate(torch.eye(parts, dtype=totals.sums.dtype, device=totals.sums.device)):
                found = torch.autograd.grad(
                    totals.sums,
                    [leaves[i] for i in wanted],
                    grad_outputs=one,
                    retain_graph=part + 1 < parts,
                    allow_unused=True,
                )
                for total, grad in zip(grads[part], found, strict=True):
                    if grad is not None:
                        total += grad
        assert so_far is not None, "there is at least one block"
        ctx.save_for_backward(*inputs, *(g for part in grads for g in part))  # type: ignore[arg-type]
        ctx.wanted, ctx.num_inputs = wanted, len(inputs)  # type: ignore[attr-defined]
        ctx.again = lambda *inputs: _all_blocks(block_totals, blocks, inputs[:num_tensors]).sums  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(so_far.counts, so_far.anchors)
        return so_far.sums, so_far.counts, so_far.anchors

    @staticmethod
    @in_full_precision
    def backward(ctx: FunctionCtx, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        wanted, num_inputs = ctx.wanted, ctx.num_inputs  # type: ignore[attr-defined]
        inputs, saved = ctx.saved_tensors[:num_inputs], ctx.saved_tensors[num_inputs:]  # type: ignore[attr-defined]
        if torch.is_grad_enabled():
            return (None, None, None, *twin_gradients(ctx.again, inputs, [grad]))  # type: ignore[attr-defined]
        out: list[Tensor | None] = [None] * num_inputs
        for place, i in enumerate(wanted):
            out[i] = sum((grad[p] * saved[p * len(wanted) + place] for p in range(len(grad))), torch.zeros(()))
        return (None, None, None, *out)
