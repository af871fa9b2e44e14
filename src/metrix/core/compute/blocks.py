"""Limits of what is held and computed at a time: the memory of a loss is bounded by these two numbers."""

from __future__ import annotations

from torch import Tensor

# Bytes of the largest matrix (anchors, candidates) that is held: 2,048 × 2,048 numbers of float32.
HELD = 2**24
# Similarities evaluated at a time. About twenty numbers live for each of them in forward and backward.
BLOCK = 2**22


def is_held(rows: int, columns: int, like: Tensor) -> bool:
    """Whether a matrix of this size is held in one piece."""
    return rows * columns * like.element_size() <= HELD


def rows_in_block(per_row: int) -> int:
    """How many rows of so many numbers make a block; one at least."""
    return max(1, BLOCK // max(1, per_row))
