"""A search in a store with all its options: a filter, items left out, query expansion, re-ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import ShapeError
from metrix.search.filters import EVERYTHING, Filter
from metrix.search.nearest import nearest_others
from metrix.search.refining import expand_queries, rerank
from metrix.search.stores import Neighbours, Store

QUERIES_AT_ONCE = 1024  # of a refined search, which holds the vectors of every candidate


def search_store(
    store: Store,
    queries: NDArray[np.float32],  # (q, d), unit
    k: int,
    where: Filter = EVERYTHING,
    own: NDArray[np.int64] | None = None,  # (q,) rows
    expand: int = 0,
    alpha: float = 3.0,
    depth: int = 0,
) -> Neighbours:
    """The k nearest items of each query; `Index.search` describes the options (`depth` is its `rerank`)."""
    if not expand and not depth:
        return nearest_others(queries, store, k, own, where)
    parts = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        some = queries[start : start + QUERIES_AT_ONCE]
        mine = None if own is None else own[start : start + QUERIES_AT_ONCE]
        if expand:
            near = nearest_others(some, store, expand, mine, where)
            some = expand_queries(some, _vectors_of(store, near), alpha)
        found = nearest_others(some, store, max(k, depth), mine, where)
        parts.append(_rerank(some, found, _vectors_of(store, found), depth, k) if depth else found)
    return _stack(parts)


def rows_of_own(
    store: Store, exclude: Sequence[Any] | None, own: Sequence[int] | None, count: int
) -> NDArray[np.int64] | None:
    """The row that each of so many queries must not find, -1 for none: by id (`exclude`) or by row (`own`)."""
    given = exclude if own is None else own
    if given is None:
        return None
    if len(given) != count:
        raise ShapeError(f"exclude: expected an id or None for each of {count} queries, got {len(given)}")
    if own is not None:
        return np.asarray(own, dtype=np.int64)
    rows = np.full(count, -1, dtype=np.int64)
    known = np.flatnonzero([one is not None for one in given])
    rows[known] = store.find([given[int(n)] for n in known])
    return rows


def _vectors_of(store: Store, found: Neighbours) -> NDArray[np.float32]:
    """The vectors (q, k, d) of neighbours, zeros where there are fewer."""
    there = found.rows >= 0
    vectors = np.zeros((*found.rows.shape, store.dim), dtype=np.float32)
    if there.any():
        distinct, places = np.unique(found.rows[there], return_inverse=True)
        vectors[there] = store.read_vectors(distinct)[places]
    return vectors


def _rerank(
    queries: NDArray[np.float32], found: Neighbours, vectors: NDArray[np.float32], depth: int, k: int
) -> Neighbours:
    """Neighbours with the first `depth` in the order of k-reciprocal re-ranking, cut to k."""
    order = np.tile(np.arange(found.rows.shape[1]), (len(queries), 1))
    for q, query in enumerate(queries):
        real = int((found.rows[q, :depth] >= 0).sum())
        if real:
            order[q, :real] = np.argsort(rerank(query, vectors[q, :real]), kind="stable")
    order = order[:, :k]
    return Neighbours(
        np.take_along_axis(found.rows, order, axis=1), np.take_along_axis(found.similarities, order, axis=1)
    )


def _stack(parts: Sequence[Neighbours]) -> Neighbours:
    """Answers to batches of queries as one; shorter lists are filled up with none."""
    width = max(part.rows.shape[1] for part in parts)
    rows = np.full((sum(len(part.rows) for part in parts), width), -1, dtype=np.int64)
    similarities = np.full(rows.shape, np.nan, dtype=np.float32)
    start = 0
    for part in parts:
        here = slice(start, start + len(part.rows)), slice(0, part.rows.shape[1])
        rows[here], similarities[here] = part.rows, part.similarities
        start += len(part.rows)
    return Neighbours(rows, similarities)
