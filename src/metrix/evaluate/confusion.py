"""Which classes are taken for each other: the class of the nearest neighbour, where it is not that of the query.

A query is right if the nearest example of the gallery is of its class (Recall@1). For a wrong one, the class that it is
taken for is that of the nearest example: exact, with ties in the order of the rows as in `metrix.evaluate.ranks`. Only
pairs of classes that occur are kept, so ten thousand classes take no more memory than their wrong queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.approximate import RowSearcher, Searcher
from metrix.evaluate.ranks import BLOCK_BYTES, float32_slack, float64_tie
from metrix.evaluate.task import Task
from metrix.evaluate.vectors import Array

SEARCHED = 10  # neighbours that a searcher is asked for


class ConfusedPair(NamedTuple):
    """Two classes, and how many queries of each find the other first; more of the first do."""

    label: Any
    other: Any
    queries: int  # of `label` that find `other`
    reverse: int  # of `other` that find `label`


@dataclass(frozen=True, eq=False)
class Confusion:
    """The number of queries of a class that find another class first, for all pairs of classes where there are any."""

    names: Array  # of all classes of queries and gallery, in order
    images: NDArray[np.intp]  # (classes,) examples of each, queries and gallery together
    queries: NDArray[np.intp]  # (classes,) answered queries of each
    own: NDArray[np.intp]  # (pairs,) class of the queries, an index into `names`
    found: NDArray[np.intp]  # (pairs,) class that they find first
    counts: NDArray[np.intp]  # (pairs,) how many do, most first within a class

    @property
    def wrong(self) -> int:
        """The number of queries that find another class first."""
        return int(self.counts.sum())

    def most_confused(self) -> dict[Any, tuple[Any, int]]:
        """For each class with wrong queries, the class that most of them find, and how many do."""
        classes, first = np.unique(self.own, return_index=True)
        labels, others = self.names[classes].tolist(), self.names[self.found[first]].tolist()
        return dict(zip(labels, zip(others, self.counts[first].tolist(), strict=True), strict=True))

    def pairs(self, limit: int) -> list[ConfusedPair]:
        """The pairs of classes that are confused most, both directions together; ties in the order of the classes."""
        of = len(self.names)
        low, high = np.minimum(self.own, self.found), np.maximum(self.own, self.found)
        keys, place = np.unique(low * of + high, return_inverse=True)
        forward, backward = (
            np.bincount(place.reshape(-1), weights=self.counts * chosen, minlength=len(keys)).astype(np.intp)
            for chosen in (self.own == low, self.own != low)
        )
        pairs = []
        for n in np.argsort(-(forward + backward), kind="stable")[:limit]:
            a, b = (self.names[[int(keys[n] // of), int(keys[n] % of)]]).tolist()
            there, back = int(forward[n]), int(backward[n])
            pairs.append(ConfusedPair(a, b, there, back) if there >= back else ConfusedPair(b, a, back, there))
        return pairs

    def matrix(self) -> tuple[list[Any], list[Any], NDArray[np.intp]]:
        """Classes of queries, classes found, and how many queries of each find each first; only for few classes."""
        counts = np.zeros((len(self.names), len(self.names)), dtype=np.intp)
        counts[self.own, self.found] = self.counts
        np.fill_diagonal(counts, self.queries - counts.sum(axis=1))
        asked = self.queries > 0
        reached = asked | (counts.sum(axis=0) > 0)
        return self.names[asked].tolist(), self.names[reached].tolist(), counts[np.ix_(asked, reached)]


def count_confusion(
    task: Task,
    names: Array,
    wanted: NDArray[np.intp],
    right: NDArray[np.bool_],
    searcher: Searcher | RowSearcher | None = None,
) -> Confusion:
    """Count the classes that wrong queries find first.

    Args:
        task: queries and gallery.
        names: of the classes.
        wanted: row numbers of the answered queries.
        right: whether each of them finds its own class first.
        searcher: an index that found them, instead of the exact search.
    """
    rows = wanted[~right]
    nearest = _find_nearest_others(task, rows) if searcher is None else _ask_for_others(task, rows, searcher)
    known = nearest >= 0
    own, found = task.query_class[rows[known]], task.gallery_class[nearest[known]]
    keys, counts = np.unique(own * len(names) + found, return_counts=True)
    order = np.lexsort((-counts, keys // len(names)))
    keys, counts = keys[order], counts[order]
    sizes = np.bincount(task.gallery_class, minlength=len(names))
    if not task.shared:
        sizes = sizes + np.bincount(task.query_class, minlength=len(names))
    return Confusion(
        names,
        sizes.astype(np.intp),
        np.bincount(task.query_class[wanted], minlength=len(names)).astype(np.intp),
        (keys // len(names)).astype(np.intp),
        (keys % len(names)).astype(np.intp),
        counts.astype(np.intp),
    )


def _find_nearest_others(task: Task, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The nearest gallery example of another class for each query; -1 if there is none.

    Candidates come from float32 products, those too close to tell apart are compared again in float64.
    """
    if task.on_device:
        from metrix.evaluate.on_device import find_others_on_device

        return find_others_on_device(task, rows)
    nearest = np.full(len(rows), -1, dtype=np.intp)
    if len(rows) == 0:
        return nearest
    gallery = task.gallery.unit32()
    rows_at_once = max(1, min(2048, BLOCK_BYTES // (4 * len(gallery))))
    slack = np.float32(float32_slack(task.gallery.dim))
    for start in range(0, len(rows), rows_at_once):
        some = rows[start : start + rows_at_once]
        S = task.queries.unit(some, np.float32) @ gallery.T  # (some, gallery)
        S[task.query_class[some][:, None] == task.gallery_class[None, :]] = -np.inf
        task.hide(S, some)
        bars = S.max(axis=1) - slack
        for n, row in enumerate(some):
            if np.isfinite(bars[n]):
                close = np.flatnonzero(S[n] >= bars[n])
                nearest[start + n] = close[0] if len(close) == 1 else _find_first(task, int(row), close)
    return nearest


def _find_first(task: Task, row: int, close: NDArray[np.intp]) -> int:
    """The candidate with the largest float64 cosine; of those that it cannot tell apart, the lowest row."""
    query = task.queries.unit(np.array([row]))[0]
    cosines = np.concatenate([task.gallery.unit(close[at : at + 4096]) @ query for at in range(0, len(close), 4096)])
    return int(close[cosines >= cosines.max() - float64_tie(task.gallery.dim)][0])


def _ask_for_others(task: Task, rows: NDArray[np.intp], searcher: Searcher | RowSearcher) -> NDArray[np.intp]:
    """The first example of another class that a searcher returns for each query; -1 if it returns none."""
    nearest = np.full(len(rows), -1, dtype=np.intp)
    for start in range(0, len(rows), 4096):
        some = rows[start : start + 4096]
        depth = min(SEARCHED + int(task.hidden[some].max()), len(task.gallery))
        if isinstance(searcher, RowSearcher):
            ids = np.asarray(searcher.search_rows(some, depth))
        else:
            ids, _ = map(np.asarray, searcher.search(task.queries.unit(some, np.float32), depth))
        others = task.gallery_class[np.maximum(ids, 0)] != task.query_class[some][:, None]
        others &= ~task.is_hidden(some, ids)
        first = others.argmax(axis=1)
        chosen = ids[np.arange(len(some)), first]
        nearest[start : start + len(some)] = np.where(others.any(axis=1), chosen, -1)
    return nearest
