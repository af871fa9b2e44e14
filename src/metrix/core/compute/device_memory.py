"""The memory of a device that is free for blocks of intermediate results."""

from __future__ import annotations

import torch

ASSUMED = 8 << 30  # bytes, where the device does not say how much is free
SHARE = 4  # a block takes at most one part in so many of what is free


def block_bytes(device: torch.device) -> int:
    """How many bytes the intermediate results of one block may take on a GPU.

    Asking does not wait for the device. What torch holds in its cache without using it counts as free.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = ASSUMED
    return free // SHARE
