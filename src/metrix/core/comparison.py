"""Anchors compared with candidates: S, Y and valid, in one piece or in blocks.

Every loss is computed from comparisons, whatever is compared:

    clean examples        `sets.compare_clean`            S is a matrix of cosines
    interpolated vectors  `closed_form.compare_mixtures`  S follows from products of the vectors
    embedded pairs        `mixed.compare_embedded`        S is that of mixed examples that a network embedded
    mixed anchors         `mixed.compare_mixed_anchors`   the mixture is the anchor, proxies are its candidates

Each of them gives `Comparisons`: blocks of anchors, and how a block is compared. `Loss.over` reduces them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from metrix.core.compute.blocks import is_held
from metrix.core.similarity import gram, rows_of_gram

Rows = Tensor | slice | None  # some rows of a matrix, by number; None: all
GivenTensor = TypeVar("GivenTensor", Tensor, Tensor | None)


class Comparison(NamedTuple):
    """Anchors and their candidates, which may have several axes: those of mixed examples are (anchor, left, right).

    Attributes:
        S: (a, …), similarity.
        Y: how positive, broadcastable to S: numbers from 0 to 1; booleans, none where not valid; or, as int64 (a, 1),
            which candidate of each anchor is its only positive, where all others are negative.
        valid: what counts, broadcastable to S: bool.
        spread: brings numbers Y, or a function of them, from a matrix over pairs to the pairs of each anchor, where
            that is broadcastable to S; None: they are there.
    """

    S: Tensor
    Y: Tensor
    valid: Tensor
    spread: Callable[[Tensor], Tensor] | None = None


class Comparisons(NamedTuple):
    """Comparisons in blocks.

    Attributes:
        blocks: what `compare` takes one by one; at least one.
        tensors: what a gradient goes to.
        compare: the comparison of a block, from the block and the tensors.
        prefixes: the tensors of each prefix of the embedding, whose comparisons differ in nothing else.
        weight: of the loss of each prefix.
    """

    blocks: Sequence[Any]
    tensors: Sequence[Tensor | None]
    compare: Callable[..., Comparison]
    prefixes: Sequence[Sequence[Tensor | None]] = ()
    weight: float = 1.0


def pick(x: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor, without a copy where they are all of them or a stretch."""
    if rows is None:
        return x
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)


@dataclass(frozen=True)
class Products:
    """Rows of the products ⟨l, r⟩ of two lists of vectors: of the whole matrix, if it is held, or computed when asked.

    Attributes:
        tensors: (matrix,) if it is held; (left, right); or (vectors,) for their Gram matrix.
    """

    tensors: tuple[Tensor, ...]
    held: bool

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Products:
        """The products of unit vectors or others; their whole matrix is held where it fits in memory."""
        if is_held(len(left), len(right), right):
            return cls((gram(right) if left is right else left @ right.T,), True)
        return cls((right,) if left is right else (left, right), False)

    def rows(self, rows: Rows, *tensors: Tensor) -> Tensor:
        """Some rows, from `tensors` in place of the own ones: (rows, right)."""
        if self.held:
            return pick(tensors[0], rows)
        if len(tensors) == 1:
            return rows_of_gram(tensors[0], rows)
        return pick(tensors[0], rows) @ tensors[1].T

    def detach(self) -> Products:
        """The same without a gradient."""
        return Products(tuple(x.detach() for x in self.tensors), self.held)


def to_device(numbers: Sequence[GivenTensor], device: torch.device) -> list[GivenTensor]:
    """Integers on a device; those of the host are copied in one piece."""
    given = [x for x in numbers if x is not None and x.device != device]
    if not given:
        return list(numbers)
    packed = torch.cat([x.reshape(-1) for x in given]) if len(given) != 1 else given[0].reshape(-1)
    if device.type == "cuda" and not torch.compiler.is_compiling() and torch.cuda.is_available():
        packed = packed.pin_memory()
    moved = iter(torch.split(packed.to(device, non_blocking=True), [x.numel() for x in given]))
    return [x if x is None or x.device == device else next(moved).view(x.shape) for x in numbers]
