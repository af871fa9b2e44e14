"""Checks of what callers pass; their errors say what was expected and what was given."""

from __future__ import annotations

import hashlib
import warnings

import numpy as np
import torch
from torch import Tensor

from metrix.core.compute.derivatives import refuse_vmap
from metrix.core.relations import GradedLabels
from metrix.core.similarity import divide_by_norm
from metrix.core.tensors import FLOATS, INTEGERS, as_tensor
from metrix.errors import EmbeddingError, InvalidInput, LabelError, MetrixWarning, ShapeError
from metrix.messages import first_few

NAMED = 2**62  # the first of the numbers that names of classes have


def as_class_numbers(name: str, given: object) -> Tensor:
    """Labels as a tensor; names of classes become numbers, which are the same in every batch and every process.

    >>> bool((as_class_numbers("labels", ["cat", "dog", "cat"]) == as_class_numbers("labels", ["cat", "x", "cat"]))[2])
    True
    """
    names = _names(given)
    if names is None:
        return as_tensor(name, given)
    distinct = {text: _number_name(text) for text in set(names)}
    return torch.tensor([distinct[text] for text in names], dtype=torch.int64)


def _names(given: object) -> list[str] | None:
    """The names in a list or an array of text; None if it is neither."""
    if isinstance(given, Tensor | GradedLabels | str):
        return None
    if isinstance(given, list | tuple):
        return list(given) if given and all(isinstance(x, str) for x in given) else None
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "UO" or not all(isinstance(x, str) for x in array):
        return None
    return [str(x) for x in array]


def _number_name(name: str) -> int:
    """62 bits of a hash: two of a million names are the same with a probability of 1e-7."""
    return (
        NAMED
        + int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "big") % NAMED
    )


def unit(embeddings: Tensor) -> Tensor:
    """Embeddings (n, d) of unit norm, in at least float32."""
    embeddings = as_tensor("embeddings", embeddings)
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        given = tuple(embeddings.shape)
        raise ShapeError(f"embeddings: expected a tensor of shape (examples, dimensions), got {given}")
    if embeddings.dtype not in FLOATS:
        raise EmbeddingError(
            f"embeddings: expected floating point numbers of 16, 32 or 64 bits, got {embeddings.dtype}; call .float()"
        )
    refuse_vmap(embeddings)
    x = at_least_float32(embeddings)
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dim=1, keepdim=True)
    if values_are_at_hand(norm):
        refuse_unusable(norm)
    return divide_by_norm(x, norm)


def values_are_at_hand(x: Tensor) -> bool:
    """Whether a branch may depend on the values of a tensor: on the CPU, and not while the compiler traces.

    Elsewhere a question to the device would wait for it. What is wrong there shows in the loss, which is not a number,
    and in `StepOutput.read`.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def unusable_rows(norm: Tensor) -> Tensor:
    """Which embeddings, by their norms (n, 1), have no direction: bool (n,)."""
    return ~((norm > torch.finfo(norm.dtype).tiny) & (norm < torch.inf)).flatten()  # true for NaN


def refuse_unusable(norm: Tensor, of: str = "embeddings") -> None:
    """Raise an error that names the embeddings with a norm (n, 1) that is NaN, infinite or zero."""
    low, high = norm.aminmax()  # NaN, if any is
    if not (float(low) > torch.finfo(norm.dtype).tiny and float(high) < torch.inf):
        rows = unusable_rows(norm).nonzero().flatten().tolist()
        raise EmbeddingError(
            f"{of}: expected finite, non-zero vectors, got NaN, infinite or zero norm in {len(rows)} of "
            f"{len(norm)} (rows {first_few(rows)}); look for a diverged model or an empty input"
        )


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision to float32: sums of e^{75 s} do not fit into half."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_labels(labels: Tensor, embeddings: Tensor, num_classes: int | None = None, of: str = "proxies") -> Tensor:
    """The labels (n,) in int64, where they are; with `num_classes`, they are brought to the host and must lie below it.

    Args:
        labels: what was given: integers of any kind, or names of classes.
        embeddings: (n, d).
        num_classes: how many classes have proxies, or centres, or boundaries; None: any label will do.
        of: what these are, for the message.
    """
    if isinstance(labels, GradedLabels):
        raise LabelError(
            f"labels: expected one class for each example, got labels with a {type(labels.relation).__name__}: this "
            "loss or mixing method has no place for positives of degrees; take a loss of the generic form "
            "(MultiSimilarity, Contrastive, ProxyAnchor, …) with Metrix or without mixup"
        )
    n, labels = len(embeddings), as_class_numbers("labels", labels)
    if labels.ndim != 1 or len(labels) != n:
        raise ShapeError(f"labels: expected a tensor of shape ({n},) for {n} embeddings, got {tuple(labels.shape)}")
    if labels.dtype not in INTEGERS:
        raise LabelError(f"labels: expected integers, such as torch.int64, got {labels.dtype}")
    labels = labels.to(torch.int64)
    if num_classes is not None or labels.device != embeddings.device:
        labels = labels.to("cpu")
    if num_classes is not None and n and not torch.compiler.is_compiling():
        low, high = (int(edge) for edge in labels.aminmax())
        if high >= NAMED:
            raise LabelError(
                f"labels: expected numbers from 0 to {num_classes - 1} for {num_classes} {of}, got names of classes; "
                "number them in a fixed order with metrix.labels.number(names, classes)"
            )
        if low < 0 or high >= num_classes:
            raise LabelError(
                f"labels: expected 0 to {num_classes - 1} for {num_classes} {of}, got {low} to {high}; set "
                "num_classes, or number the classes from 0"
            )
    return labels


def check_lam(lam: Tensor, shape: tuple[int, ...]) -> Tensor:
    """λ as given: one number, or a tensor of a shape such as (left, right); all in [0, 1]."""
    if lam.ndim != 0 and tuple(lam.shape) != shape:
        raise ShapeError(f"lam: expected one number or a tensor of shape {shape}, got shape {tuple(lam.shape)}")
    if values_are_at_hand(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
        raise ShapeError(f"lam: expected numbers from 0 to 1, got {float(lam.min()):g} to {float(lam.max()):g}")
    return lam


def refuse_indices(indices_tuple: object, why: str = "all pairs of the batch are used") -> None:
    """Raise `InvalidInput` if the output of one of pytorch-metric-learning's miners was given."""
    if indices_tuple is not None:
        raise InvalidInput(f"indices_tuple was given: {why}, so leave the miner out")


def warn_unusable(loss: object, anchors: int, needs: str, part: str = "loss") -> None:
    """Warn that a batch had no anchor for which a part of a loss is defined, and say what an anchor needs."""
    warnings.warn(
        f"{type(loss).__name__}: none of {anchors} anchors is usable, the {part} of the batch is zero; an anchor needs "
        f"{needs}: put several examples of several classes in a batch (this is said once)",
        MetrixWarning,
        stacklevel=5,
    )
