"""Checks at the door: each says what was given and what is accepted."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from metrix.core.similarity import divided_by_norm
from metrix.errors import EmbeddingError, LabelError, MetrixWarning, ShapeError
from metrix.messages import first_few


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings (n, d) of unit norm, in at least float32."""
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or 0 in embeddings.shape:
        given = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ShapeError(f"embeddings of shape {given}: accepted is a tensor (examples, dimensions)")
    if not embeddings.is_floating_point():
        raise EmbeddingError(f"embeddings of {embeddings.dtype}: accepted is a floating point tensor")
    x = at_least_float32(embeddings)
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dim=1, keepdim=True)
    usable = (norm > torch.finfo(x.dtype).tiny) & (norm < torch.inf)  # false for NaN
    if not bool(usable.all()):
        rows = (~usable).flatten().nonzero().flatten().tolist()
        raise EmbeddingError(
            f"{len(rows)} of {len(x)} embeddings have NaN, infinite or zero norm (rows {first_few(rows)}): "
            "accepted are finite, non-zero vectors; look for a diverged model or an empty input"
        )
    return divided_by_norm(x, norm)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision to float32: sums of e^{75 s} do not fit into half."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def class_labels(labels: Tensor, n: int, num_classes: int | None = None, of: str = "proxies") -> Tensor:
    """Labels (n,), whole numbers, and below the number of proxies, or what else each class has, if there are any."""
    if not isinstance(labels, Tensor) or labels.ndim != 1 or len(labels) != n:
        given = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ShapeError(f"labels of shape {given} for {n} embeddings: accepted is a tensor of shape ({n},)")
    if labels.is_floating_point() or labels.is_complex():
        raise LabelError(f"labels of {labels.dtype}: accepted are whole numbers, such as torch.int64")
    if num_classes is not None and n:
        low, high = (int(edge) for edge in labels.aminmax())
        if low < 0 or high >= num_classes:
            raise LabelError(
                f"labels from {low} to {high} for {num_classes} {of}: accepted are 0 to "
                f"{num_classes - 1}; set num_classes, or number the classes from 0"
            )
    return labels


def interpolation(lam: Tensor, shape: tuple[int, ...]) -> Tensor:
    """λ as a tensor of a shape, such as (left, right), with values in [0, 1]; from a number or such a tensor."""
    if lam.ndim != 0 and tuple(lam.shape) != shape:
        raise ShapeError(f"lam of shape {tuple(lam.shape)}: accepted is one number or a tensor of shape {shape}")
    if not bool(((lam >= 0) & (lam <= 1)).all()):
        raise ShapeError("lam outside of [0, 1]: accepted are interpolation factors from 0 to 1")
    return lam.expand(shape)


def warn_unusable(loss: object, anchors: int, needs: str) -> None:
    """Say that a batch had no anchor for which a loss is defined, and what an anchor needs."""
    warnings.warn(
        f"{type(loss).__name__}: none of {anchors} anchors is usable, the loss of the batch is zero; an anchor needs "
        f"{needs}: put several examples of several classes in a batch (this is said once)",
        MetrixWarning,
        stacklevel=5,
    )
