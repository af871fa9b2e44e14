"""What users give in place of tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metrix.errors import InvalidInput

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, *SIGNED)


def as_tensor(name: str, given: object) -> Tensor:
    """What was given as a dense tensor: a tensor as it is, NumPy arrays and lists of numbers converted.

    >>> as_tensor("labels", [0, 0, 1])
    tensor([0, 0, 1])
    """
    if not isinstance(given, Tensor):
        return _converted(name, given)
    if given.is_nested or given.layout != torch.strided:
        kind = "a nested tensor" if given.is_nested else f"{given.layout}"
        raise InvalidInput(f"{name}: expected a dense tensor, got {kind}; call .to_dense() or pad it")
    if given.is_meta:
        raise InvalidInput(f"{name}: expected a tensor with values, got one on the meta device, which has only a shape")
    return given


def as_real(name: str, given: object) -> Tensor:
    """What was given as a dense tensor of integers, or of floating point numbers that can be computed with.

    >>> as_real("Y", [[1.0, 0.5], [0.5, 1.0]]).dtype
    torch.float64
    """
    found = as_tensor(name, given)
    if found.dtype not in (*FLOATS, *INTEGERS):
        raise InvalidInput(
            f"{name}: expected integers or floating point numbers of 16, 32 or 64 bits, got {found.dtype}"
        )
    return found


def _converted(name: str, given: object) -> Tensor:
    try:
        array = np.array(given)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError, RuntimeError) as error:
        given_type = type(given).__name__
        raise InvalidInput(
            f"{name}: expected a tensor, or a NumPy array or list of numbers, got {given_type} ({error}); stack a list "
            "of tensors with torch.stack, and number classes that have names"
        ) from None
