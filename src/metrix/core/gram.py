"""Embedding mixup without mixed embeddings.

For v = λ u_i + (1-λ) u_j, all that a loss needs of v is

    s(a, v) = (λ ⟨a, u_i⟩ + (1-λ) ⟨a, u_j⟩) / ‖v‖
    ‖v‖²    = λ² ⟨u_i, u_i⟩ + (1-λ)² ⟨u_j, u_j⟩ + 2 λ (1-λ) ⟨u_i, u_j⟩

so products of pairs of vectors are enough. u are the unit embeddings (embed mixup), or the outputs of
a linear head before normalisation (feature mixup under average pooling).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = (grad + grad.T) @ x
        return out


def gram(x: Tensor) -> Tensor:
    """x xᵀ, with one product in the backward pass where autograd takes two."""
    out: Tensor = _Gram.apply(x)
    return out


class _RowsOfGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return x.index_select(0, rows) @ x.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, rows = ctx.saved_tensors
        out: Tensor = grad.T @ x.index_select(0, rows)
        return out.index_add_(0, rows, grad @ x), None


def rows_of_gram(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows of x xᵀ; the backward pass forms one tensor of the size of x where autograd forms three."""
    out: Tensor = _RowsOfGram.apply(x, rows)
    return out


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor) -> Tensor:
        out = x / norm
        ctx.save_for_backward(out, norm)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out, norm = ctx.saved_tensors
        along = (grad * out).sum(1, keepdim=True)
        return torch.addcmul(grad, out, along, value=-1.0).div_(norm), None


def divided_by_norm(x: Tensor, norm: Tensor) -> Tensor:
    """x / norm for norm = ‖x‖ (n, 1): the gradient of both in one go."""
    out: Tensor = _Unit.apply(x, norm)
    return out


def inverse_norms(products: Tensor, lam: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """1/‖λ l_i + (1-λ) r_j‖ for all i, j from the products ⟨l_i, r_j⟩: (left, right).

    `left` and `right` are the squared norms of vectors that are not unit. A mixture that vanishes (opposite
    vectors, λ = 1/2) has no direction: 0 there.
    """
    both = lam * (1.0 - lam)
    if left is None or right is None:
        # λ² + (1-λ)² + 2λ(1-λ)g = 1 - 2λ(1-λ)(1-g), without the cancellation near λ = 0 and 1
        squared = 1.0 - 2.0 * both * (1.0 - products)
        scale = squared.new_ones(())
    else:
        squared = lam.square() * left[:, None] + (1.0 - lam).square() * right[None, :] + 2.0 * both * products
        scale = right.detach().max().clamp_min(torch.finfo(right.dtype).tiny)
    vanishes = squared <= 4.0 * torch.finfo(squared.dtype).eps * scale
    return torch.where(vanishes, 0.0, torch.rsqrt(torch.where(vanishes, 1.0, squared)))


def mixed_similarity(left: Tensor, right: Tensor, lam: Tensor, inverse_norm: Tensor | None) -> Tensor:
    """s(a, v) from ⟨a, u_i⟩, ⟨a, u_j⟩ and λ, each broadcastable to (anchors, left, right)."""
    mixed = torch.lerp(right, left, lam)
    return mixed if inverse_norm is None else mixed * inverse_norm
