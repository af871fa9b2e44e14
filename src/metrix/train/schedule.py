"""The schedule of the learning rate."""

from __future__ import annotations

import math

from metrix.train.config import Training


def learning_rate_factor(settings: Training, epoch: int, step: int, total_steps: int) -> float:
    """The factor by which the schedule multiplies all learning rates in a step."""
    if settings.schedule == "step":
        return float(settings.decay_by ** (epoch // settings.decay_every))
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))
    return 1.0
