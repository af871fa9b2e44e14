"""The same counts from the neighbour lists of somebody's index, exact or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.evaluate.ranks import Counts, Task

NOT_FOUND = 1 << 60
BLOCK_BYTES = 64 << 20


class Searcher(Protocol):
    """Anything that finds neighbours: `metrix.search.Index`, or an index of one's own."""

    def search(self, queries: Any, k: int, /) -> tuple[Any, Any]:
        """Ids (q, k) of the nearest gallery rows, nearest first, and their similarities; -1 for none."""


def neighbours_before(task: Task, wanted: NDArray[np.intp], k: int, searcher: Searcher) -> Iterator[Counts]:
    """before(q, p) for the positives among the max(k, R) nearest that the searcher returns."""
    relevant = task.relevant
    wanted = wanted[np.argsort(relevant[wanted], kind="stable")]  # like sizes together: little is wasted
    start = 0
    while start < len(wanted):
        deepest = max(k, int(relevant[wanted[start]])) + int(task.shared)
        rows = wanted[start : start + max(1, BLOCK_BYTES // (16 * deepest))]
        # The next block may hold larger classes: no query in a block needs twice the depth of the first.
        rows = rows[relevant[rows] <= 2 * deepest]
        start += len(rows)
        depth = min(max(k, int(relevant[rows].max())) + int(task.shared), len(task.gallery))
        ids = np.asarray(searcher.search(task.queries.unit(rows, np.float32), depth)[0])
        if ids.shape[0] != len(rows) or ids.dtype.kind not in "iu" or ids.max() >= len(task.gallery):
            raise InvalidInput(
                f"the searcher returned ids of type {ids.dtype} and shape {ids.shape} up to {ids.max()} for "
                f"{len(rows)} queries: accepted are row numbers of the {len(task.gallery)} gallery "
                "embeddings, one list per query; build the index without ids of your own"
            )
        yield _counts(task, rows, ids, relevant[rows])


def _counts(task: Task, rows: NDArray[np.intp], ids: NDArray[np.intp], relevant: NDArray[np.intp]) -> Counts:
    real = ids >= 0
    if task.shared:
        real &= ids != rows[:, None]
    positive = real & (task.gallery_class[np.maximum(ids, 0)] == task.query_class[rows][:, None])
    negatives = np.cumsum(real & ~positive, axis=1)
    offsets = np.concatenate([[0], np.cumsum(relevant)])
    before = np.full(offsets[-1], NOT_FOUND, dtype=np.int64)
    found = np.cumsum(positive, axis=1) - 1  # which positive of its query it is
    at = np.nonzero(positive)
    before[offsets[at[0]] + found[at]] = negatives[at]
    return Counts(rows, offsets, before)
