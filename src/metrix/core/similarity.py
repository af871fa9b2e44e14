"""Gram matrices and normalisation of embeddings, each with a cheaper backward pass than autograd's.

Each has its plain twin, for second derivatives and the compiler: see `compute.derivatives`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin

SomeRows = Tensor | slice | None


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twin_gradients(_plain_gram, [x], [grad])[0]
        out: Tensor = (grad + grad.T) @ x
        return out


def _plain_gram(x: Tensor) -> Tensor:
    return x @ x.T


def gram(x: Tensor) -> Tensor:
    """x xᵀ, with one product in the backward pass where autograd takes two."""
    out: Tensor = _plain_gram(x) if use_twin() else _Gram.apply(x)
    return out


class _RowsOfGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor | slice) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(x)
        return _plain_rows_of_gram(x, rows)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (x,), rows = ctx.saved_tensors, ctx.rows
        if torch.is_grad_enabled():
            return twin_gradients(lambda x: _plain_rows_of_gram(x, rows), [x], [grad])[0], None
        if isinstance(rows, slice):
            out: Tensor = grad.T @ x[rows]
            out[rows] += grad @ x
            return out, None
        return (grad.T @ x.index_select(0, rows)).index_add_(0, rows, grad @ x), None


def _plain_rows_of_gram(x: Tensor, rows: Tensor | slice) -> Tensor:
    return (x[rows] if isinstance(rows, slice) else x.index_select(0, rows)) @ x.T


def rows_of_gram(x: Tensor, rows: SomeRows) -> Tensor:
    """Some rows of x xᵀ; the backward pass forms one tensor of the size of x where autograd forms three."""
    if rows is None:
        return gram(x)
    out: Tensor = _plain_rows_of_gram(x, rows) if use_twin() else _RowsOfGram.apply(x, rows)
    return out


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor) -> Tensor:
        out = x / norm
        ctx.save_for_backward(x, out, norm)
        return out

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        x, out, norm = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twin_gradients(_plain_unit, [x], [grad])[0], None
        along = (grad * out).sum(1, keepdim=True)
        return torch.addcmul(grad, out, along, value=-1.0).div_(norm), None


def _plain_unit(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / norm


def divide_by_norm(x: Tensor, norm: Tensor) -> Tensor:
    """x / norm, where norm must be ‖x‖ (n, 1): the backward pass knows that and treats both together."""
    out: Tensor = _plain_unit(x) if use_twin() else _Unit.apply(x, norm)
    return out
