"""Batches that break careless code."""

from __future__ import annotations

import torch


def labels_of(name: str) -> torch.Tensor:
    return torch.tensor(
        {
            "balanced": [0, 1, 2, 0, 1, 2],
            "unbalanced": [0, 0, 0, 1, 1, 2, 0],
            "singletons": [0, 1, 2, 2, 3],
            "all_singletons": [0, 1, 2, 3],
            "one_class": [1, 1, 1, 1],
            "two_alike": [2, 2],
            "two_unlike": [0, 2],
            "duplicates": [0, 0, 1, 1, 1],
            "opposed": [0, 0, 1, 1],
        }[name]
    )


NAMES = (
    "balanced",
    "unbalanced",
    "singletons",
    "all_singletons",
    "one_class",
    "two_alike",
    "two_unlike",
    "duplicates",
    "opposed",
)


def points(name: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """Inputs for the labels of that name, (n, *shape), in float64."""
    n = len(labels_of(name))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    if name == "duplicates":
        x[1], x[3] = x[0], x[2]
    if name == "opposed":  # every similarity negative or one
        x[2:] = -x[:2] + 0.1 * x[2:]
    return x
