"""The inner loops of retrieval metrics and utilization, compiled with numba.

Importing this module imports numba, which takes long: import it inside the function that calls a kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.rank_metrics import RankMetric

compiled = numba.njit(nogil=True, cache=True)
# Sums may be reordered and products fused, which vectorises them; NaN and infinity keep their meaning.
summed = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})

CHUNK = 512
NEVER = 1 << 60  # negatives before a positive that was not found; a rank beyond every other


@summed
def dot(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Σ x_k y_k in float64."""
    total = 0.0
    for k in range(len(x)):
        total += np.float64(x[k]) * np.float64(y[k])
    return total


@summed
def squared_distance(x: NDArray[Any], x_norm: float, y: NDArray[Any], y_norm: float) -> float:
    """‖x/‖x‖ - y/‖y‖‖² in float64, without the cancellation of 2 - 2s."""
    total = 0.0
    for k in range(len(x)):
        gap = np.float64(x[k]) / x_norm - np.float64(y[k]) / y_norm
        total += gap * gap
    return total


@summed
def _count_above_and_reaching(
    part: NDArray[np.float32], low: np.float32, high: np.float32
) -> tuple[np.float32, np.float32]:
    """How many of at most `CHUNK` entries exceed `high`, and how many are at least `low`.

    Counted in float32, which is exact for so few and counts as many at a time as there are lanes of float32.
    """
    one, zero = np.float32(1), np.float32(0)
    above, reaching = zero, zero
    for k in range(len(part)):
        above += one if part[k] > high else zero
        reaching += one if part[k] >= low else zero
    return above, reaching


@compiled
def _count_negatives_before(
    row: NDArray[np.float32],
    begin: int,
    end: int,
    positive: int,
    slack: float,
    tie: float,
    query: NDArray[Any],
    query_norm: float,
    values: NDArray[Any],
    norms: NDArray[np.float64],
    order: NDArray[np.intp],
    budget: int,
) -> tuple[int, int]:
    """before(q, p), and the number of float64 products it took; beyond `budget` products, the count is incomplete."""
    low, high = np.float32(row[positive] - slack), np.float32(row[positive] + slack)
    mine = order[positive]
    exact, before, work = np.nan, 0, 0
    for start, stop in ((0, begin), (end, len(row))):
        for left in range(start, stop, CHUNK):
            right = min(left + CHUNK, stop)
            above, reaching = _count_above_and_reaching(row[left:right], low, high)
            before += int(above)
            if reaching == above:
                continue
            work += int(reaching - above)
            if work > budget:
                return before, work
            if np.isnan(exact):
                exact = dot(query, values[mine]) / (query_norm * norms[mine])
            for k in range(left, right):
                if low <= row[k] <= high:
                    other = order[k]
                    gap = dot(query, values[other]) / (query_norm * norms[other]) - exact
                    before += gap > tie or (gap >= -tie and other < mine)
    return before, work


@compiled
def count_negatives(
    S: NDArray[np.float32],  # (queries, gallery), the gallery sorted by class; -∞ for what a query never finds
    begin: NDArray[np.intp],  # (queries,) the query's class is gallery[begin:end]
    end: NDArray[np.intp],
    offsets: NDArray[np.intp],  # (queries,) where the counts of each query start
    first_only: bool,
    slack: float,
    tie: float,
    queries: NDArray[Any],
    query_norms: NDArray[np.float64],
    values: NDArray[Any],
    norms: NDArray[np.float64],
    order: NDArray[np.intp],  # (gallery,) from the sorted gallery to rows of `values`
    budget: int,
    counts: NDArray[np.int64],  # out: negatives before each positive
    unsettled: NDArray[np.bool_],  # in: queries to skip; out: also those with too many near-ties
) -> None:
    """Count the negatives before each positive, from float32 similarities with an error of at most slack / 2.

    A negative further than `slack` from the positive is certainly on the right side of it. The few within are
    compared again in float64.
    """
    for q in range(len(S)):
        if unsettled[q]:
            continue
        row, a, b, place = S[q], begin[q], end[q], offsets[q]
        least = -np.inf
        if first_only:
            counts[place] = NEVER
            for p in range(a, b):
                least = max(least, row[p])
            least -= slack  # every positive above this may be the nearest
        left = budget
        for p in range(a, b):
            if row[p] == -np.inf or row[p] < least:
                continue
            before, work = _count_negatives_before(
                row, a, b, p, slack, tie, queries[q], query_norms[q], values, norms, order, left
            )  # fmt: skip
            left -= work
            if left < 0:
                unsettled[q] = True
                break
            if first_only:
                counts[place] = min(counts[place], before)
            else:
                counts[place] = before
                place += 1


@compiled
def ranks_of_positives(counts: NDArray[np.int64], offsets: NDArray[np.intp]) -> NDArray[np.int64]:
    """The ranks of each query's positives in ascending order, from the number of negatives before each.

    The j-th positive of a query has rank r_j = counts_j + j, with the counts ascending and j from 1.
    """
    ranks = np.empty(len(counts), dtype=np.int64)
    for q in range(len(offsets) - 1):
        found = np.sort(counts[offsets[q] : offsets[q + 1]])
        for j in range(len(found)):
            ranks[offsets[q] + j] = found[j] + j + 1
    return ranks


@cache
def compile_metric(function: RankMetric) -> RankMetric:
    """A function of `metrix.evaluate.rank_metrics`, compiled once per process and kept on disk between processes."""
    fast: RankMetric = compiled(function)
    return fast


@compiled
def lower_distances(
    S: NDArray[np.float32],  # (queries, examples), with an error of at most slack / 2
    slack: float,
    queries: NDArray[Any],
    query_norms: NDArray[np.float64],
    values: NDArray[Any],
    norms: NDArray[np.float64],
    budget: int,
    squared: NDArray[np.float64],  # in and out: squared distance to the nearest example so far
    crowded: NDArray[np.bool_],  # out: queries with more candidates than the budget, left unfinished
) -> None:
    """Lower `squared` where an example is nearer; only candidates for the nearest are measured in float64."""
    for q in range(len(S)):
        row = S[q]
        measured = 0
        # ‖q-x‖² = 2 - 2s: an example below this similarity is certainly not the nearest.
        bar = np.float32(1.0 - squared[q] / 2.0 - slack)
        for left in range(0, len(row), CHUNK):
            right = min(left + CHUNK, len(row))
            if _count_above_and_reaching(row[left:right], bar, bar)[1] == 0:
                continue
            for k in range(left, right):
                if row[k] >= bar:
                    measured += 1
                    if measured > budget:
                        break
                    away = squared_distance(queries[q], query_norms[q], values[k], norms[k])
                    squared[q] = min(squared[q], away)
                    bar = np.float32(1.0 - squared[q] / 2.0 - slack)
            if measured > budget:
                crowded[q] = True
                break
