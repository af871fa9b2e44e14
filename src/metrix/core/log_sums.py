"""Logarithms of weighted sums of exponentials, log Σ w e^{scale·(S - margin)}, without overflow.

The exponentials are powers of two, which take a third of the time of e^x on a CPU, and no longer where they vanish: e^x
takes a hundred times as long for a result below the smallest normal number.

The backward pass is hand-written and has its plain twin: see `compute.derivatives`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.core.functions import Exponential

# The logarithm of an empty sum. It is finite, so that no gradient is the difference of two infinities, and far below
# any other: every number that is added to it vanishes in rounding.
EMPTY = -1e30
LN2 = math.log(2.0)


def log2_of_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """log2 w of numbers from 0, or of booleans that say what counts: `EMPTY` where w is 0; a tensor of its own."""
    if weights.dtype != torch.bool:
        return weights.log2().clamp_min_(EMPTY)
    # as bytes: torch reads booleans ten times as slowly
    return weights.view(torch.uint8).to(dtype).sub_(1.0).mul_(-EMPTY)


def log_sums(S: Tensor, rhos: Sequence[Exponential], log2_weights: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """log Σ w ρ(S) over all axes but the first, for each ρ and its w: (anchors,); about `EMPTY` where nothing counts.

    Args:
        S: (anchors, …), similarities.
        rhos: exponentials.
        log2_weights: makes log2 w of each of them for S, (sums, anchors, …), as a tensor that may be changed.

    >>> round(float(log_sums(torch.zeros(1, 3), [Exponential(75.0)], lambda S: torch.zeros(1, 1, 3))[0].exp()), 4)
    3.0
    """
    settings = [(rho.scale, -rho.scale * rho.margin) for rho in rhos]
    found: Sequence[Tensor] = (_plain_log_sums if use_twin() or S.numel() == 0 else _LogSums.apply)(
        S, settings, log2_weights
    )
    return found


def is_empty(log_sum: Tensor) -> Tensor:
    """Whether nothing counts in sums, from their logarithms: bool; false for NaN."""
    return log_sum < 0.5 * EMPTY


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, S: Tensor, settings: Sequence[tuple[float, float]], log2_weights: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, ...]:
        z = log2_weights(S)
        axes, terms = tuple(range(2, z.ndim)), z.unbind()
        for part, (scale, _) in zip(terms, settings, strict=True):
            part.add_(S, alpha=scale / LN2)
        top = z.amax(axes, keepdim=True)
        z.sub_(top).exp2_()  # the largest is 1; where nothing counts all are, and σ lets no gradient through
        total = z.sum(axes, keepdim=True)
        ctx.save_for_backward(S, *terms, *total.unbind())
        ctx.settings, ctx.log2_weights = settings, log2_weights
        found = total.log2().add_(top).mul_(LN2).flatten(1).unbind()
        for log, (_, shift) in zip(found, settings, strict=True):
            if shift:
                log += shift
        return found

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        S, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = twin_gradients(lambda S: _plain_log_sums(S, ctx.settings, ctx.log2_weights), [S], grads)
            return again[0], None, None
        terms, totals = saved[: len(grads)], saved[len(grads) :]
        shares = [
            (grad.view_as(total) * scale).div_(total)
            for grad, total, (scale, _) in zip(grads, totals, ctx.settings, strict=True)
        ]
        out = terms[0] * shares[0]
        for term, share in zip(terms[1:], shares[1:], strict=True):
            out.addcmul_(term, share)
        return out, None, None


def _plain_log_sums(
    S: Tensor, settings: Sequence[tuple[float, float]], log2_weights: Callable[[Tensor], Tensor]
) -> tuple[Tensor, ...]:
    axes = tuple(range(1, S.ndim))
    parts = zip(log2_weights(S).unbind(), settings, strict=True)
    return tuple(torch.add(log2 * LN2, S, alpha=scale).logsumexp(axes) + shift for log2, (scale, shift) in parts)
