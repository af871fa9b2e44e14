"""Two limits that bound the memory of a loss: what is held in one piece, and what is computed at a time.

A CPU has fixed ones. Those of an accelerator follow from the memory that it has free when a loss is first computed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from metrix.core.compute.device_memory import block_bytes

# Bytes of the largest matrix (anchors, candidates) that is held: 2,048 × 2,048 numbers of float32.
HELD = 2**24
# Similarities evaluated at a time.
BLOCK = 2**22
# Bytes that live for each similarity in forward and backward: about twenty numbers of float32.
LIVE = 80


def is_held(rows: int, columns: int, like: Tensor) -> bool:
    """Whether a matrix of this size, with the numbers of `like`, is held in one piece."""
    most = HELD if like.device.type == "cpu" else 4 * block_on(like.device)
    return rows * columns * like.element_size() <= most


def rows_in_block(per_row: int, device: torch.device | None = None) -> int:
    """How many rows of `per_row` numbers make a block; one at least.

    >>> rows_in_block(2**20), rows_in_block(2**30)
    (4, 1)
    """
    most = BLOCK if device is None or device.type == "cpu" else block_on(device)
    return max(1, most // max(1, per_row))


@cache
def block_on(device: torch.device) -> int:
    """Similarities that an accelerator evaluates at a time."""
    return max(BLOCK, block_bytes(device) // LIVE)
