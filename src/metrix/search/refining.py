"""Two refinements of a search that need no training: query expansion and k-reciprocal re-ranking."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALPHA = 3.0  # of query expansion
K1, K2, LAMBDA = 20, 6, 0.3  # of re-ranking, as published
DEPTH = 100  # candidates that are re-ranked


def expand_queries(
    queries: NDArray[np.float32],  # (q, d), unit
    neighbours: NDArray[np.float32],  # (q, n, d), unit; zeros where there are fewer
    alpha: float = ALPHA,
) -> NDArray[np.float32]:
    """α-weighted query expansion (Radenović et al., TPAMI 2019): q' = unit(q + Σ_i max(s_i, 0)^α x_i).

    >>> expand_queries(np.array([[1.0, 0.0]]), np.array([[[0.6, 0.8]]]), alpha=1.0).round(3)
    array([[0.943, 0.333]])
    """
    similarities = np.einsum("qd,qnd->qn", queries, neighbours)
    weights = np.maximum(similarities, 0) ** alpha
    moved = queries + np.einsum("qn,qnd->qd", weights, neighbours)
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), dtype=queries.dtype)


def rerank(
    query: NDArray[np.float32],  # (d,), unit
    candidates: NDArray[np.float32],  # (m, d), unit, nearest first
    k1: int = K1,
    k2: int = K2,
    lam: float = LAMBDA,
) -> NDArray[np.float64]:
    """d*(q, g) = (1-λ) d_J(q, g) + λ d(q, g) for each candidate g (Zhong et al., CVPR 2017); smaller is nearer.

    Neighbours are taken within the query and its candidates, so nothing but their vectors is needed. d is half the
    squared distance, 1 - cosine. N(p, k) are the k nearest of p, and

        R(p, k)  = {g in N(p, k) : p in N(g, k)}
        R*(p)    = R(p, k1) and every R(g, k1/2), g in R(p, k1), of which two thirds are in R(p, k1)
        V_p[g]   = e^{-d(p, g)} on R*(p), summing to one; then averaged over p and its k2 - 1 nearest
        d_J(p,g) = 1 - Σ min(V_p, V_g) / Σ max(V_p, V_g)
    """
    pool = np.concatenate([query[None], candidates]).astype(np.float64)
    distances = 1.0 - pool @ pool.T
    np.fill_diagonal(distances, -np.inf)  # each is its own nearest
    order = np.argsort(distances, axis=1, kind="stable")
    np.fill_diagonal(distances, 0.0)
    whole = _reciprocal(order, k1)
    half = _reciprocal(order, round(k1 / 2))
    shared = whole.astype(np.float32) @ half.T.astype(np.float32)  # |R(p, k1) ∩ R(g, k1/2)|
    taken = whole & (3 * shared >= 2 * half.sum(axis=1))
    extended = whole | (taken.astype(np.float32) @ half.astype(np.float32) > 0)
    V = np.where(extended, np.exp(-distances), 0.0)
    V /= V.sum(axis=1, keepdims=True)
    if k2 > 1:
        V = V[order[:, :k2]].mean(axis=1)
    overlap = np.minimum(V[0], V[1:]).sum(axis=1)
    jaccard = 1.0 - overlap / (2.0 - overlap)  # both sum to one
    return np.asarray((1 - lam) * jaccard + lam * distances[0, 1:])


def _reciprocal(order: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """R(p, k) as rows of a matrix; each is in its own."""
    near = np.zeros(order.shape, dtype=np.bool_)
    np.put_along_axis(near, order[:, : k + 1], True, axis=1)
    return np.asarray(near & near.T)
