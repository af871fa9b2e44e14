"""Checks of what callers pass; their errors say what was expected and what was given."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from metrix.core.compute.derivatives import refuse_vmap
from metrix.core.similarity import divide_by_norm
from metrix.errors import EmbeddingError, InvalidInput, LabelError, MetrixWarning, ShapeError
from metrix.messages import first_few


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings (n, d) of unit norm, in at least float32."""
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or 0 in embeddings.shape:
        given = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ShapeError(f"embeddings: expected a tensor of shape (examples, dimensions), got {given}")
    if not embeddings.is_floating_point():
        raise EmbeddingError(f"embeddings: expected floating point numbers, got {embeddings.dtype}")
    refuse_vmap(embeddings)
    x = at_least_float32(embeddings)
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dim=1, keepdim=True)
    usable = (norm > torch.finfo(x.dtype).tiny) & (norm < torch.inf)  # false for NaN
    if not bool(usable.all()):
        rows = (~usable).flatten().nonzero().flatten().tolist()
        raise EmbeddingError(
            f"embeddings: expected finite, non-zero vectors, got NaN, infinite or zero norm in {len(rows)} of {len(x)} "
            f"(rows {first_few(rows)}); look for a diverged model or an empty input"
        )
    return divide_by_norm(x, norm)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision to float32: sums of e^{75 s} do not fit into half."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_labels(labels: Tensor, n: int, num_classes: int | None = None, of: str = "proxies") -> Tensor:
    """The labels, which must be integers (n,) and, with `num_classes`, lie below it.

    Args:
        labels: what was given.
        n: the number of embeddings.
        num_classes: how many classes have proxies, or centres, or boundaries; None: any label will do.
        of: what these are, for the message.
    """
    if not isinstance(labels, Tensor) or labels.ndim != 1 or len(labels) != n:
        given = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ShapeError(f"labels: expected a tensor of shape ({n},) for {n} embeddings, got {given}")
    if labels.is_floating_point() or labels.is_complex():
        raise LabelError(f"labels: expected integers, such as torch.int64, got {labels.dtype}")
    if num_classes is not None and n:
        low, high = (int(edge) for edge in labels.aminmax())
        if low < 0 or high >= num_classes:
            raise LabelError(
                f"labels: expected 0 to {num_classes - 1} for {num_classes} {of}, got {low} to {high}; set "
                "num_classes, or number the classes from 0"
            )
    return labels


def check_positive(name: str, value: float) -> float:
    """The number, which must be above 0."""
    if not value > 0:
        raise InvalidInput(f"{name}: expected a number > 0, got {value}")
    return float(value)


def check_not_negative(name: str, value: float) -> float:
    """The number, which must be at least 0."""
    if not value >= 0:
        raise InvalidInput(f"{name}: expected a number ≥ 0, got {value}")
    return float(value)


def check_lam(lam: Tensor, shape: tuple[int, ...]) -> Tensor:
    """λ expanded to a shape, such as (left, right), from one number or a tensor of that shape; all in [0, 1]."""
    if lam.ndim != 0 and tuple(lam.shape) != shape:
        raise ShapeError(f"lam: expected one number or a tensor of shape {shape}, got shape {tuple(lam.shape)}")
    if not bool(((lam >= 0) & (lam <= 1)).all()):
        raise ShapeError(f"lam: expected numbers from 0 to 1, got {float(lam.min()):g} to {float(lam.max()):g}")
    return lam.expand(shape)


def warn_unusable(loss: object, anchors: int, needs: str) -> None:
    """Warn that a batch had no anchor for which a loss is defined, and say what an anchor needs."""
    warnings.warn(
        f"{type(loss).__name__}: none of {anchors} anchors is usable, the loss of the batch is zero; an anchor needs "
        f"{needs}: put several examples of several classes in a batch (this is said once)",
        MetrixWarning,
        stacklevel=5,
    )
