"""How much of the true neighbours an approximate store finds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metrix.search.nearest import leave_out, nearest, nearest_others
from metrix.search.stores import Best, Neighbours, Store, TrueNeighbours

SCAN_ROWS = 65_536
LARGE = 1_000_000  # items from which on fewer queries are compared with all of them


def measure_recall(store: Store, k: int = 10, sample: int | None = None, seed: int = 0) -> float:
    """The share of the true k nearest neighbours that a search finds, over a sample of the items.

    1 for an exact store; the item itself does not count. The sample is of 1,000 items, of 200 past a million.
    """
    k = min(k, len(store) - 1)
    if store.kind == "exact" or k < 1:
        return 1.0
    return recall_of(store, find_true_neighbours(store, k, sample, seed))


def find_true_neighbours(store: Store, k: int = 10, sample: int | None = None, seed: int = 0) -> TrueNeighbours:
    """The true k nearest of a sample of the items, without the item itself."""
    count = len(store)
    chosen = sample or (1000 if count <= LARGE else 200)
    places = np.sort(np.random.default_rng(seed).permutation(count)[:chosen])
    own, queries = _sample(store, places)
    truth = leave_out(_compare_with_all(store, queries, k + 1), own[:, None], k)
    return TrueNeighbours(own, queries, truth.rows)


def recall_of(store: Store, known: TrueNeighbours) -> float:
    """The share of true neighbours that a search finds."""
    found = nearest_others(known.queries, store, known.rows.shape[1], known.own)
    hits = (known.rows[:, :, None] == found.rows[:, None, :]).any(axis=2) & (known.rows >= 0)
    return float(hits.sum() / known.rows.size)


def _sample(store: Store, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and vectors of some items, by their places in a scan."""
    rows, vectors, start = [], [], 0
    for numbers, items in store.scan():
        here = places[(places >= start) & (places < start + len(items))] - start
        rows.append(numbers[here])
        vectors.append(np.array(items.vectors[here]))
        start += len(items)
    return np.concatenate(rows), np.concatenate(vectors)


def _compare_with_all(store: Store, queries: NDArray[np.float32], k: int) -> Neighbours:
    best = Best(len(queries), k)
    for numbers, items in store.scan(SCAN_ROWS):
        similarities, places = nearest(queries, np.ascontiguousarray(items.vectors), min(k, len(items)))
        best.add(similarities, numbers[places])
    return Neighbours(best.rows, best.similarities)
