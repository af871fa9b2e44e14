"""Nearest vectors by inner product, for few queries and for all images of a collection at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from metrix.search.faiss_store import nearest
from metrix.search.stores import Best

MANY = 64  # queries from which on matrix products are several times faster than faiss
BLOCK = 16_384  # vectors in one product
QUERIES = 2048


def find_nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and rows (queries, k) of the k nearest vectors, nearest first.

    >>> find_nearest(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)[1].tolist()
    [[0], [1]]
    """
    if len(queries) < MANY:
        return nearest(np.ascontiguousarray(queries), vectors, k)
    similarities = np.empty((len(queries), k), np.float32)
    rows = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), QUERIES):
        some = queries[start : start + QUERIES]
        best = Best(len(some), k)
        for at in range(0, len(vectors), BLOCK):
            products = torch.from_numpy(some @ vectors[at : at + BLOCK].T)
            values, places = torch.topk(products, min(k, products.shape[1]))
            best.add(values.numpy(), places.numpy() + at)
        similarities[start : start + QUERIES], rows[start : start + QUERIES] = best.similarities, best.rows
    return similarities, rows
