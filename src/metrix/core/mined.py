"""Pairs that a miner chose, in the form of pytorch-metric-learning: numbers of anchors, positives and negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metrix.errors import InvalidInput, describe_value

Indices = Sequence[Tensor]  # (anchors, positives, anchors, negatives) of pairs, or (anchors, positives, negatives)


def mark_mined(indices: Any, anchors: int, candidates: int, device: torch.device) -> Tensor:
    """Which pairs a miner chose: bool (anchors, candidates).

    >>> mark_mined((torch.tensor([0]), torch.tensor([1]), torch.tensor([2])), 3, 3, torch.device("cpu")).int().tolist()
    [[0, 1, 1], [0, 0, 0], [0, 0, 0]]
    """
    if not isinstance(indices, tuple | list) or len(indices) not in (3, 4):
        raise InvalidInput(
            "indices_tuple: expected what a miner returns, (anchors, positives, anchors, negatives) or (anchors, "
            f"positives, negatives), got {describe_value(indices)}"
        )
    parts = [torch.as_tensor(part, device=device) for part in indices]
    for part in parts:
        if part.ndim != 1 or part.is_floating_point() or part.dtype == torch.bool:
            raise InvalidInput(
                f"indices_tuple: expected lists of numbers of examples, got {part.dtype} {tuple(part.shape)}"
            )
    first, positive, second, negative = parts if len(parts) == 4 else (parts[0], parts[1], parts[0], parts[2])
    if len(first) != len(positive) or len(second) != len(negative):
        raise InvalidInput(f"indices_tuple: expected lists of equal length, got {[len(part) for part in parts]}")
    rows, columns = torch.cat([first, second]).long(), torch.cat([positive, negative]).long()
    for numbers, most, what in ((rows, anchors, "anchors"), (columns, candidates, "candidates")):
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < most:
            raise InvalidInput(
                f"indices_tuple: expected numbers from 0 to {most - 1} of {most} {what}, got "
                f"{int(numbers.min())} to {int(numbers.max())}; mine the batch that the loss is given"
            )
    mined = torch.zeros(anchors, candidates, dtype=torch.bool, device=device)
    mined[rows, columns] = True
    return mined
