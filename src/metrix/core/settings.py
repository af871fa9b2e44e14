"""Checks of the settings of losses and mixing methods.

A number may be finite and yet make a loss that is not: e^{γ s} is evaluated in the log domain, where γ = 1e300 is
infinite in float32. So numbers are bounded, at values that no use comes near: the product of any three of them, and
of their inverses, fits into float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrix.errors import InvalidInput, check_integer, check_number, describe_value

LARGEST = 1e9
SMALLEST = 1.0 / LARGEST


def check_scale(name: str, value: object) -> float:
    """A positive number that similarities are multiplied with or divided by.

    >>> check_scale("temperature", 0)
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: temperature: expected a number > 0, got 0
    """
    return check_number(name, value, above=0, least=SMALLEST, most=LARGEST)


def check_weight(name: str, value: object) -> float:
    """A number ≥ 0 that a part of a loss is multiplied with."""
    return check_number(name, value, least=0, most=LARGEST)


def check_margin(name: str, value: object) -> float:
    """A number of either sign that is added to similarities or distances.

    >>> check_margin("margin", -1)
    -1.0
    """
    check_number(name, value)
    return check_number(name, value, least=-LARGEST, most=LARGEST)


def make_room(**sizes: int) -> Tensor:
    """A tensor with an axis for each of the sizes, such as (num_classes, dim), for parameters of a loss.

    >>> make_room(num_classes=10, dim=0)
    Traceback (most recent call last):
    ...
    metrix.errors.InvalidInput: dim: expected an integer ≥ 1, got 0
    """
    shape = [check_integer(name, value, least=1) for name, value in sizes.items()]
    try:
        return torch.empty(shape)
    except (RuntimeError, TypeError, OverflowError):  # more than there is, or than torch can count
        product = " × ".join(map(describe_value, sizes.values()))
        raise InvalidInput(f"{', '.join(sizes)}: expected a size that fits into memory, got {product}") from None


def check_generator(generator: object) -> torch.Generator | None:
    """The generator of random choices, or None for torch's default one."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InvalidInput(
            "generator: expected a torch.Generator, such as torch.Generator().manual_seed(0), or None, got "
            f"{describe_value(generator)}"
        )
    return generator
