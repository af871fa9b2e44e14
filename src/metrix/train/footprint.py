"""What a run trains and needs: parameters and peak memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def count_parameters(*modules: nn.Module) -> tuple[int, int]:
    """How many parameters are trained, and how many there are.

    >>> count_parameters(nn.Linear(2, 3))
    (9, 9)
    """
    found = [p for module in modules for p in module.parameters()]
    return sum(p.numel() for p in found if p.requires_grad), sum(p.numel() for p in found)


def measure_peak_memory(device: torch.device) -> dict[str, Any]:
    """The largest memory so far in bytes: of tensors on a GPU, or of the whole process on a CPU.

    >>> sorted(measure_peak_memory(torch.device("cpu")))
    ['bytes', 'of']
    """
    if device.type == "cuda":
        return {"bytes": int(torch.cuda.max_memory_allocated(device)), "of": "tensors on the GPU"}
    try:
        import resource
    except ImportError:  # Windows
        return {"bytes": None, "of": "the process"}
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"bytes": int(largest) * (1 if sys.platform == "darwin" else 1024), "of": "the process"}


def describe_footprint(trained: int, total: int) -> str:
    """How much of the network and the loss is trained, in words; nothing if all of it is.

    >>> describe_footprint(90, 1000)
    '90 of 1,000 parameters are trained (9 %)'
    """
    if trained == total:
        return ""
    return f"{trained:,} of {total:,} parameters are trained ({100 * trained / max(total, 1):.3g} %)"
