"""Two limits that bound the memory of a loss: what is held in one piece, and what is computed at a time."""

from __future__ import annotations

from torch import Tensor

# Bytes of the largest matrix (anchors, candidates) that is held: 2,048 × 2,048 numbers of float32.
HELD = 2**24
# Similarities evaluated at a time. About twenty numbers live for each of them in forward and backward.
BLOCK = 2**22


def is_held(rows: int, columns: int, like: Tensor) -> bool:
    """Whether a matrix of this size, with the numbers of `like`, is held in one piece."""
    return rows * columns * like.element_size() <= HELD


def rows_in_block(per_row: int) -> int:
    """How many rows of `per_row` numbers make a block; one at least.

    >>> rows_in_block(2**20), rows_in_block(2**30)
    (4, 1)
    """
    return max(1, BLOCK // max(1, per_row))
