"""The nearest vectors by inner product, exactly, and without a query's own row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrix.extras import import_extra
from metrix.search.filters import EVERYTHING, Filter
from metrix.search.stores import Best, Neighbours, Store
from metrix.search.vectors import MappedVectors

ONE_THREAD = 1 << 30  # entries that one thread compares with a query
SEVERAL = 4  # queries from which on matrix products are faster than one query after another


def nearest_others(
    queries: NDArray[np.float32],  # (q, d), unit
    gallery: NDArray[np.float32] | Store,
    k: int,
    own: ArrayLike | None = None,
    where: Filter = EVERYTHING,
) -> Neighbours:
    """The k nearest rows of a gallery, an array (n, d) or a store, for each query, without its own row.

    Args:
        queries: unit vectors.
        gallery: what is searched.
        k: how many; fewer if the gallery is smaller.
        own: the row that each query must not find, -1 for none; None if no query is of the gallery.
        where: a filter on the columns of a store.

    >>> nearest_others(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1, own=[0, -1]).rows.tolist()
    [[1], [1]]
    """
    wanted = k + int(own is not None)
    if isinstance(gallery, np.ndarray):
        similarities, rows = nearest(queries, gallery, min(wanted, len(gallery)))
        found = Neighbours(rows, similarities)
    else:
        found = gallery.search(queries, wanted, where)
    return found if own is None else leave_out(found, np.asarray(own)[:, None], k)


def leave_out(found: Neighbours, unwanted: NDArray[np.int64], k: int) -> Neighbours:
    """The first k neighbours of each query without the rows (q, m) that it must not find; none where too few are left.

    >>> both = Neighbours(np.array([[3, 5]]), np.array([[0.9, 0.8]], np.float32))
    >>> leave_out(both, np.array([[3]]), 1).rows.tolist()
    [[5]]
    """
    gone = (found.rows[:, :, None] == unwanted[:, None, :]).any(axis=2)
    order = np.argsort(gone, axis=1, kind="stable")[:, :k]  # what is left out goes to the end
    gone = np.take_along_axis(gone, order, axis=1)
    rows = np.where(gone, -1, np.take_along_axis(found.rows, order, axis=1))
    similarities = np.where(gone, np.float32(np.nan), np.take_along_axis(found.similarities, order, axis=1))
    width = int((rows >= 0).sum(axis=1).max(initial=0))
    return Neighbours(rows[:, :width], similarities[:, :width])


def nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float32] | MappedVectors, k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and rows of the k nearest by inner product, exactly; `vectors` may be mapped from files.

    >>> nearest(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)[1].tolist()
    [[0], [1]]
    """
    blocks = vectors if isinstance(vectors, MappedVectors) else MappedVectors([vectors])
    best = Best(len(queries), k)
    for first, block in blocks.blocks():
        if not len(block):
            continue
        similarities, rows = _nearest_in(queries, block, min(k, len(block)))
        if len(block) == len(blocks):
            return similarities, rows
        best.add(similarities, rows + first)
    return best.similarities, best.rows


def nearest_among(
    queries: NDArray[np.float32], vectors: MappedVectors, k: int, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """As `nearest`, among some rows in their order; ties come as they would among all.

    >>> nearest_among(np.eye(2, dtype=np.float32), MappedVectors([np.eye(2, dtype=np.float32)]), 1, np.array([1]))[1]
    array([[1],
           [1]])
    """
    best = Best(len(queries), k)
    for first, stop in vectors.bounds():
        some = rows[np.searchsorted(rows, first) : np.searchsorted(rows, stop)]
        if not len(some):
            continue
        similarities, places = _nearest_in(queries, vectors[some], min(k, len(some)))
        if len(some) == len(rows):
            return similarities, some[places]
        best.add(similarities, some[places])
    return best.similarities, best.rows


def _nearest_in(
    queries: NDArray[np.float32], block: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    faiss = import_extra("faiss")

    plain = np.asarray(block)  # what faiss.contrib.torch_utils puts in place of knn knows no np.memmap
    asked = np.ascontiguousarray(queries)
    with _kernel_for(faiss, len(asked), plain):
        found: tuple[NDArray[np.float32], NDArray[np.int64]] = faiss.knn(
            asked, plain, k, metric=faiss.METRIC_INNER_PRODUCT
        )
    return found


@contextlib.contextmanager
def _kernel_for(faiss: Any, queries: int, vectors: NDArray[np.float32]) -> Iterator[None]:
    """Let faiss compare a few queries one by one, and search with matrix products from SEVERAL on.

    By default newer versions do from 128,000 entries of all queries on (older ones from 20 queries on); measured on one
    core, products are 3 to 7 times faster from 8 queries on. For a single query and several threads, faiss 1.15 takes a
    product, too, at four times the processor time of a thread and with other roundings.
    """
    before, threads = faiss.cvar.distance_compute_blas_threshold, faiss.omp_get_max_threads()
    if before > 1000:  # counts entries, not queries
        faiss.cvar.distance_compute_blas_threshold = SEVERAL * vectors.shape[1]
    alone = queries == 1 and vectors.size <= ONE_THREAD
    if alone:
        faiss.omp_set_num_threads(1)  # of this thread alone
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before
        if alone:
            faiss.omp_set_num_threads(threads)
