"""Negatives before each positive, counted in the neighbour lists that an index returns.

`metrix.evaluate.ranks` counts them exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.evaluate.ranks import Counts
from metrix.evaluate.task import Task

NOT_FOUND = 1 << 60
BLOCK_BYTES = 64 << 20


class Searcher(Protocol):
    """An index that finds nearest neighbours: `metrix.search.Index`, or any object with such a `search`."""

    def search(self, queries: Any, k: int, /) -> Iterable[Any]:
        """Row numbers (q, k) of the nearest gallery embeddings, nearest first, -1 for none, and their similarities."""


@runtime_checkable
class RowSearcher(Protocol):
    """A search that is told which queries it answers, so that it can leave each out of its own neighbours."""

    def search_rows(self, rows: NDArray[np.intp], k: int, /) -> Any:
        """Row numbers (q, k) of the gallery embeddings nearest to the queries `rows`, nearest first, -1 for none."""


def count_in_neighbours(
    task: Task, wanted: NDArray[np.intp], k: int, searcher: Searcher | RowSearcher
) -> Iterator[Counts]:
    """before(q, p) for the positives among the max(k, R) nearest neighbours that the searcher returns."""
    relevant = task.relevant
    needed = np.maximum(k, relevant) + task.hidden  # neighbours of each query
    wanted = wanted[np.argsort(needed[wanted], kind="stable")]  # similar depths together: little is searched in vain
    start = 0
    while start < len(wanted):
        first = int(needed[wanted[start]])
        rows = wanted[start : start + max(1, BLOCK_BYTES // (16 * first))]
        # Depths grow along the list: end the block before a query that needs more than twice the depth of the first.
        rows = rows[needed[rows] <= 2 * first]
        start += len(rows)
        depth = min(int(needed[rows].max()), len(task.gallery))
        if isinstance(searcher, RowSearcher):
            ids = np.asarray(searcher.search_rows(rows, depth))
        else:
            ids, _ = map(np.asarray, searcher.search(task.queries.unit(rows, np.float32), depth))
        if ids.shape[0] != len(rows) or ids.dtype.kind not in "iu" or ids.max() >= len(task.gallery):
            raise InvalidInput(
                f"searcher: expected {len(rows)} lists with row numbers of the {len(task.gallery)} gallery "
                f"embeddings, got ids of type {ids.dtype}, shape {ids.shape} and maximum {ids.max()}; build the index "
                "without ids of your own"
            )
        yield _count(task, rows, ids, relevant[rows])


def _count(task: Task, rows: NDArray[np.intp], ids: NDArray[np.intp], relevant: NDArray[np.intp]) -> Counts:
    real = ~task.is_hidden(rows, ids)
    positive = real & (task.gallery_class[np.maximum(ids, 0)] == task.query_class[rows][:, None])
    negatives = np.cumsum(real & ~positive, axis=1)
    offsets = np.concatenate([[0], np.cumsum(relevant)])
    before = np.full(offsets[-1], NOT_FOUND, dtype=np.int64)
    found = np.cumsum(positive, axis=1) - 1  # index among the positives of the query
    at = np.nonzero(positive)
    before[offsets[at[0]] + found[at]] = negatives[at]
    return Counts(rows, offsets, before)
