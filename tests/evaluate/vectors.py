"""Random vectors of different norms."""

from __future__ import annotations

from typing import Any

import numpy as np


def points(seed: int, n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))).astype(dtype)
