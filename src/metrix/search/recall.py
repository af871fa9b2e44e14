"""How much of the true neighbours an approximate store finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrix.search.faiss_store import nearest
from metrix.search.stores import Best, Store

SCAN_ROWS = 65_536


def measure_recall(store: Store, k: int = 10, sample: int = 1000, seed: int = 0) -> float:
    """The share of the true k nearest neighbours that a search finds, over a sample of the items.

    1 for an exact store; the item itself does not count.
    """
    count = len(store)
    k = min(k, count - 1)
    if store.kind == "exact" or k < 1:
        return 1.0
    rows = np.sort(np.random.default_rng(seed).permutation(count)[: max(1, sample)])
    queries, own = _sample(store, rows)
    truth, ids = _compare_with_all(store, queries, k + 1)
    found = store.search(queries, k + 1).ids
    hits = 0
    for one, near, exact in zip(own, found.tolist(), truth.tolist(), strict=True):
        real = [ids[row] for row in exact if ids[row] != one][:k]
        hits += len(set(real) & set([other for other in near if other != one][:k]))
    return hits / (len(queries) * k)


def _sample(store: Store, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], list[Any]]:
    """Vectors and ids of some rows, in the order of a scan."""
    vectors, ids, start = [], list[Any](), 0
    for lot in store.scan():
        here = rows[(rows >= start) & (rows < start + len(lot))] - start
        vectors.append(np.array(lot.vectors[here]))
        ids += lot.ids.take(pa.array(here)).to_pylist()
        start += len(lot)
    return np.concatenate(vectors), ids


def _compare_with_all(store: Store, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], list[Any]]:
    """Rows of the k nearest by comparing with everything, and the ids of all rows."""
    best, ids = Best(len(queries), k), list[Any]()
    for lot in store.scan(SCAN_ROWS):
        similarities, rows = nearest(queries, np.ascontiguousarray(lot.vectors), min(k, len(lot)))
        best.add(similarities, rows + len(ids))
        ids += lot.ids.to_pylist()
    return best.rows, ids
