"""A search in a store with all its options: filters, an item left out, query expansion, re-ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.search.filters import EVERYTHING, Filter
from metrix.search.refining import expand_queries, rerank
from metrix.search.stores import Found, Neighbours, Store

QUERIES_AT_ONCE = 1024  # of a refined search, which holds the vectors of every candidate


def search_store(
    store: Store,
    queries: NDArray[np.float32],  # (q, d), unit
    k: int,
    where: Filter = EVERYTHING,
    exclude: Sequence[Any] | None = None,
    expand: int = 0,
    alpha: float = 3.0,
    depth: int = 0,
) -> Found:
    """The k nearest items of each query; `Index.search` describes the options (`depth` is its `rerank`)."""

    def find(vectors: NDArray[np.float32], count: int, rows: slice, with_vectors: bool) -> Neighbours:
        left_out = None if exclude is None else exclude[rows]
        more = int(left_out is not None)
        return _leave_out(store.search(vectors, count + more, where, with_vectors), left_out, count)

    if not expand and not depth:
        return Found(*find(queries, k, slice(None), False)[:2])
    parts = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        some = queries[rows]
        if expand:
            near = find(some, expand, rows, True).vectors
            assert near is not None
            some = expand_queries(some, near, alpha)
        found = find(some, max(k, depth), rows, bool(depth))
        parts.append(_rerank(some, found, depth, k) if depth else found)
    return _stack(parts)


def _leave_out(found: Neighbours, left_out: Sequence[Any] | None, count: int) -> Neighbours:
    """The first `count` neighbours of each query, without the id that it must not find."""
    if left_out is None:
        return found
    names = np.array(list(left_out), dtype=object).reshape(-1, 1)
    order = np.argsort(found.ids.astype(object) == names, axis=1, kind="stable")  # the left-out one to the end
    order = order[:, : min(count, order.shape[1])]
    ids = np.take_along_axis(found.ids, order, axis=1)
    similarities = np.take_along_axis(found.similarities, order, axis=1)
    gone = ids.astype(object) == names  # where nothing else is left
    if gone.any():
        ids = np.where(gone, "" if ids.dtype == object else -1, ids)
        similarities = np.where(gone, np.float32(np.nan), similarities)
    vectors = None
    if found.vectors is not None:
        vectors = np.take_along_axis(found.vectors, order[:, :, None], axis=1)
        vectors[gone] = 0
    return Neighbours(ids, similarities, vectors)


def _rerank(queries: NDArray[np.float32], found: Neighbours, depth: int, k: int) -> Neighbours:
    """Neighbours with the first `depth` in the order of k-reciprocal re-ranking, cut to k."""
    assert found.vectors is not None
    order = np.tile(np.arange(found.ids.shape[1]), (len(queries), 1))
    for q, query in enumerate(queries):
        real = int((~np.isnan(found.similarities[q, :depth])).sum())
        if real:
            order[q, :real] = np.argsort(rerank(query, found.vectors[q, :real]), kind="stable")
    order = order[:, :k]
    return Neighbours(
        np.take_along_axis(found.ids, order, axis=1), np.take_along_axis(found.similarities, order, axis=1)
    )


def _stack(parts: Sequence[Neighbours]) -> Found:
    """Answers to lots of queries as one; shorter lists are filled up with none."""
    width = max(part.ids.shape[1] for part in parts)
    text = parts[0].ids.dtype == object
    ids = np.full((sum(len(part.ids) for part in parts), width), "" if text else -1, dtype=parts[0].ids.dtype)
    similarities = np.full(ids.shape, np.nan, dtype=np.float32)
    start = 0
    for part in parts:
        rows, columns = slice(start, start + len(part.ids)), slice(0, part.ids.shape[1])
        ids[rows, columns], similarities[rows, columns] = part.ids, part.similarities
        start += len(part.ids)
    return Found(ids, similarities)
