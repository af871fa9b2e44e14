"""Pairs of a query and an item, where both are the same images under two models."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrix.errors import LabelError, ShapeError
from metrix.search.items import unit_vectors
from metrix.search.pairs import BINS, Pairs

ROWS = 512  # of similarities at a time


def count_cross_pairs(queries: object, items: object, labels: Any, resamples: int = 500, seed: int = 0) -> Pairs:
    """Count all pairs of a query and another image's item by similarity; `count_pairs` with a side for each model.

    Args:
        queries, items: (n, d) the same images; a pair of an image with itself does not count.
        labels: (n,) the class of each.
        resamples: of the classes of the queries, for intervals; 0 for none.
        seed: of the resamples.

    >>> pairs = count_cross_pairs([[1, 0], [0.8, 0.6], [0, 1]], [[1, 0], [0.8, 0.6], [0, 1]], ["a", "a", "b"], 0)
    >>> int(pairs.same.sum()), int(pairs.different.sum()), pairs.threshold("recall", 0.9).similarity
    (2, 4, 0.8)
    """
    asked, there = unit_vectors(queries, "queries"), unit_vectors(items, "items")
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    if asked.shape != there.shape or codes.shape != (len(asked),):
        raise ShapeError(f"pairs: expected as many queries, items and labels, got {asked.shape}, {there.shape}")
    if len(names) < 2 or len(names) == len(codes):
        raise LabelError(
            f"labels: expected two classes, one of them with two examples, got {len(names)} in {len(codes)} examples"
        )
    same, different = np.zeros((2, len(names), BINS), np.int64)
    for start in range(0, len(asked), ROWS):
        rows = np.arange(start, min(start + ROWS, len(asked)))
        bins = np.clip((asked[rows] @ there.T + 1.0) * (BINS / 2), 0, BINS - 1).astype(np.int64)
        for row, mine in zip(rows, bins, strict=True):
            alike = codes == codes[row]
            different[codes[row]] += np.bincount(mine[~alike], minlength=BINS)
            alike[row] = False
            same[codes[row]] += np.bincount(mine[alike], minlength=BINS)
    draws = np.random.default_rng(seed)
    drawn = (draws.integers(len(names), size=len(names)) for _ in range(resamples))
    times = np.array([np.bincount(one, minlength=len(names)) for one in drawn]).reshape(resamples, len(names))
    return Pairs(
        same.sum(axis=0), different.sum(axis=0), len(asked), len(names), len(names), times @ same, times @ different
    )
