"""Gram matrices and normalisation of embeddings, each with a cheaper backward pass than autograd's."""

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


def divide_by_norm(x: Tensor, norm: Tensor) -> Tensor:
    """x / norm, where norm must be ‖x‖ (n, 1): the backward pass knows that and treats both together."""
    out: Tensor = _Unit.apply(x, norm)
    return out
