"""Every measure again, as a loop over its definition in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def unit(x: Any) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    return np.stack([row / math.sqrt(sum(v * v for v in row)) for row in x])


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    # Rounded so that two copies of one vector tie, whatever the last bit says.
    return round(float(sum(a * b for a, b in zip(x, y, strict=True))), 12)


def ranking(q: int, x: np.ndarray, gallery: np.ndarray, shared: bool) -> list[int]:
    """The gallery rows for query q, nearest first, lower row number first on ties, itself left out."""
    rows = [g for g in range(len(gallery)) if not (shared and g == q)]
    return sorted(rows, key=lambda g: (-similarity(x[q], gallery[g]), g))


def measures(
    x: Any,
    labels: Any,
    ks: Any,
    gallery: Any = None,
    gallery_labels: Any = None,
    Y: Any = None,
    above: float = 0.5,
    sequences: Any = None,
    gallery_sequences: Any = None,
) -> dict[str, list]:
    """Every measure of every query that has a positive; Y[label][label] are degrees, if labels have them.

    With sequences, None for none, a query's own sequence is not in its gallery.
    """
    shared = gallery is None
    searched = sequences if shared else gallery_sequences
    x = unit(x)
    gallery = x if shared else unit(gallery)
    gallery_labels = labels if shared else gallery_labels
    out: dict[str, list] = {}
    for q in range(len(x)):
        ranked = ranking(q, x, gallery, shared)
        if sequences is not None and sequences[q] is not None:
            ranked = [g for g in ranked if searched[g] != sequences[q]]
        if Y is None:
            degrees = [float(gallery_labels[g] == labels[q]) for g in ranked]
        else:
            degrees = [Y[labels[q]][gallery_labels[g]] for g in ranked]
        hits = [degree > above for degree in degrees]
        R = sum(hits)
        if R == 0:
            continue

        def average_precision(K: int, hits: list = hits, R: int = R) -> float:
            precisions = [sum(hits[: i + 1]) / (i + 1) for i in range(min(K, len(hits))) if hits[i]]
            return sum(precisions) / min(K, R)

        def discounted(gains: list, K: int) -> float:
            return sum(gain / math.log2(r + 1) for r, gain in enumerate(gains[:K], start=1))

        for K in ks:
            best = discounted(sorted(degrees, reverse=True), K)
            out.setdefault(f"ndcg@{K}", []).append(discounted(degrees, K) / best)
            out.setdefault(f"recall@{K}", []).append(float(any(hits[:K])))
            out.setdefault(f"precision@{K}", []).append(sum(hits[:K]) / K)
            out.setdefault(f"map@{K}", []).append(average_precision(K))
        out.setdefault("map@r", []).append(average_precision(R))
        out.setdefault("r_precision", []).append(sum(hits[:R]) / R)
        out.setdefault("map", []).append(average_precision(len(hits)))
    return out


def squared(x: np.ndarray, y: np.ndarray) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def alignment(x: Any, labels: Any) -> float:
    x = unit(x)
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i != j and labels[i] == labels[j]]
    return sum(squared(x[i], x[j]) for i, j in pairs) / len(pairs)


def uniformity(x: Any, t: float) -> float:
    x = unit(x)
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i != j]
    return math.log(sum(math.exp(-t * squared(x[i], x[j])) for i, j in pairs) / len(pairs))


def utilization(queries: Any, train: Any) -> float:
    queries, train = unit(queries), unit(train)
    return sum(min(squared(q, x) for x in train) for q in queries) / len(queries)
