"""The retrieval metrics as functions of the ranks at which a query finds its class.

With r_1 < r_2 < … the ranks of the R gallery examples of the query's class, and K the cut-off:

    recall              1 if r_1 ≤ K else 0
    precision           #{j : r_j ≤ K} / K
    average_precision   Σ_{r_j ≤ K} (j / r_j) / min(K, R)
    ndcg                Σ_{r_j ≤ K} 1 / log2(r_j + 1), divided by the same sum for the ranks 1 to min(K, R)

The table in `metrix.evaluate.metrics` says which of them is reported under which name and cut-off.

Every function takes the same arguments and fills `out`, one value per query: `ranks[offsets[q]:offsets[q + 1]]` are
the ranks of query q in ascending order, `relevant[q]` is its R and `cutoffs[q]` its K. The functions are plain
Python, compiled by `metrix.evaluate.counting.compile_metric`, so each must be self-contained: loops over arrays, no
calls to other functions of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
RankMetric: TypeAlias = Callable[[Integers, Integers, Integers, Integers, NDArray[np.float64]], None]


def recall(ranks: Integers, offsets: Integers, relevant: Integers, cutoffs: Integers, out: NDArray[np.float64]) -> None:
    """1 for a query whose first positive is within the cut-off, 0 otherwise."""
    for q in range(len(out)):
        out[q] = 1.0 if ranks[offsets[q]] <= cutoffs[q] else 0.0


def precision(
    ranks: Integers, offsets: Integers, relevant: Integers, cutoffs: Integers, out: NDArray[np.float64]
) -> None:
    """The fraction of the first K results that are positives."""
    for q in range(len(out)):
        hits = 0
        for rank in ranks[offsets[q] : offsets[q + 1]]:
            if rank > cutoffs[q]:
                break
            hits += 1
        out[q] = hits / cutoffs[q]


def average_precision(
    ranks: Integers, offsets: Integers, relevant: Integers, cutoffs: Integers, out: NDArray[np.float64]
) -> None:
    """The precision at each positive within the cut-off, averaged over min(K, R) positives."""
    for q in range(len(out)):
        total = 0.0
        for j, rank in enumerate(ranks[offsets[q] : offsets[q + 1]], 1):
            if rank > cutoffs[q]:
                break
            total += j / rank
        out[q] = total / min(cutoffs[q], relevant[q])


def ndcg(ranks: Integers, offsets: Integers, relevant: Integers, cutoffs: Integers, out: NDArray[np.float64]) -> None:
    """The gain of the positives within the cut-off, discounted by their rank, as a share of the largest possible."""
    for q in range(len(out)):
        gain, best = 0.0, 0.0
        for rank in ranks[offsets[q] : offsets[q + 1]]:
            if rank > cutoffs[q]:
                break
            gain += 1.0 / np.log2(rank + 1.0)
        for rank in range(1, min(cutoffs[q], relevant[q]) + 1):
            best += 1.0 / np.log2(rank + 1.0)
        out[q] = gain / best
