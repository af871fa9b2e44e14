"""Query expansion and re-ranking against their definitions, written out in loops."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.search import Index
from metrix.search.refining import expand_queries, rerank


def unit(seed: int, n: int, d: int = 6) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def literal_expansion(query: np.ndarray, neighbours: np.ndarray, alpha: float) -> np.ndarray:
    total = query.astype(np.float64).copy()
    for x in neighbours.astype(np.float64):
        total += max(float(query @ x), 0.0) ** alpha * x
    return total / np.linalg.norm(total)


def literal_rerank(query: np.ndarray, candidates: np.ndarray, k1: int, k2: int, lam: float) -> list[float]:
    """Zhong et al., section 3, set by set."""
    pool = [query, *candidates]

    def d(p: int, g: int) -> float:
        return 0.0 if p == g else 1 - float(pool[p].astype(np.float64) @ pool[g].astype(np.float64))

    def N(p: int, k: int) -> list[int]:  # p itself first, then its k nearest
        return [p, *sorted((g for g in range(len(pool)) if g != p), key=lambda g: (d(p, g), g))[:k]]

    def R(p: int, k: int) -> set[int]:
        return {g for g in N(p, k) if p in N(g, k)}

    def extended(p: int) -> set[int]:
        found = set(R(p, k1))
        for g in R(p, k1):
            half = R(g, round(k1 / 2))
            if len(half & R(p, k1)) >= 2 / 3 * len(half):
                found |= half
        return found

    def V(p: int) -> np.ndarray:
        row = np.zeros(len(pool))
        for g in extended(p):
            row[g] = np.exp(-d(p, g))
        return row / row.sum()

    rows = [V(p) for p in range(len(pool))]
    local = [np.mean([rows[g] for g in N(p, k2 - 1)], axis=0) for p in range(len(pool))]
    out = []
    for g in range(1, len(pool)):
        smaller, larger = np.minimum(local[0], local[g]).sum(), np.maximum(local[0], local[g]).sum()
        out.append((1 - lam) * (1 - smaller / larger) + lam * d(0, g))
    return out


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_expansion_is_its_formula(alpha: float) -> None:
    queries, neighbours = unit(0, 4), unit(1, 20).reshape(4, 5, 6)
    found = expand_queries(queries, neighbours, alpha)
    for q in range(4):
        np.testing.assert_allclose(found[q], literal_expansion(queries[q], neighbours[q], alpha), atol=1e-6)


@pytest.mark.parametrize(
    ("count", "k1", "k2"), [(40, 20, 6), (40, 5, 3), (15, 20, 6), (3, 20, 6), (1, 20, 6), (30, 7, 1)]
)
def test_reranking_is_its_definition(count: int, k1: int, k2: int) -> None:
    for seed in range(3):
        query, candidates = unit(seed, 1)[0], unit(100 + seed, count)
        found = rerank(query, candidates, k1, k2, 0.3)
        np.testing.assert_allclose(found, literal_rerank(query, candidates, k1, k2, 0.3), atol=1e-9)


def test_a_refined_search_is_its_steps_in_turn() -> None:
    x, queries = unit(3, 120), unit(4, 7)
    names = [f"p{i}" for i in range(120)]
    index = Index.build(x, names)
    plain = np.argsort(-(queries @ x.T), axis=1, kind="stable")
    expanded = np.stack([literal_expansion(q, x[row[:4]], 3.0) for q, row in zip(queries, plain, strict=True)])
    order = np.argsort(-(expanded @ x.T), axis=1, kind="stable")
    assert index.search(queries, 9, expand=4).ids.tolist() == [[names[i] for i in row[:9]] for row in order]
    for q, row in enumerate(plain):
        again = row[:50][np.argsort(literal_rerank(queries[q], x[row[:50]], 20, 6, 0.3), kind="stable")]
        wanted = [names[i] for i in np.concatenate([again, row[50:60]])]
        found = index.search(queries[q : q + 1], 60, rerank=50)
        assert found.ids[0].tolist() == wanted
        np.testing.assert_allclose(found.similarities[0], x[[int(n[1:]) for n in wanted]] @ queries[q], atol=1e-6)
    both = index.search(queries, 3, expand=2, rerank=30, exclude=[None] * 7)
    assert both.ids.shape == (7, 3)


def test_a_query_in_the_index_is_expanded_by_others() -> None:
    x = unit(3, 60)
    index = Index.build(x)
    found = index.search(x, 5, expand=3, rerank=20, exclude=list(range(60)))
    assert not (found.ids == np.arange(60)[:, None]).any()
    near = np.argsort(-(x @ x.T), axis=1)
    expanded = np.stack([literal_expansion(x[q], x[[i for i in near[q] if i != q][:3]], 3.0) for q in range(60)])
    order = [[i for i in row if i != q][:5] for q, row in enumerate(np.argsort(-(expanded @ x.T), axis=1).tolist())]
    assert index.search(x, 5, expand=3, exclude=list(range(60))).ids.tolist() == order


def test_refinements_help_where_classes_are_crooked() -> None:
    """Points along arcs: a neighbour of a neighbour is of the class where a neighbour alone may not be."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 1.2, (4, 40))
    x = np.concatenate([[np.cos(a), np.sin(a), np.full_like(a, 0.25 * c)] for c, a in enumerate(angles)], axis=1).T
    labels = np.repeat(np.arange(4), 40)
    x = x + 0.015 * rng.standard_normal(x.shape)
    index = Index.build(x)
    own = list(range(len(x)))

    def precision(**options: int) -> float:
        found = index.search(x, 20, exclude=own, **options).ids
        return float((labels[found] == labels[:, None]).mean())

    assert precision(rerank=100) > precision() + 0.02


def test_fewer_items_than_asked_for() -> None:
    x = unit(0, 3)
    index = Index.build(x, columns={"label": ["a", "b", "b"]})
    assert index.search(x[:1], 10, rerank=50, expand=9).ids.shape == (1, 3)
    assert index.search(x[:1], 10, rerank=50, where=["label=b"]).ids.shape == (1, 2)
    assert index.search(x[:1], 10, rerank=50, where=["label=c"]).ids.shape == (1, 0)
    assert index.search(x[:1], 10, expand=5, where=["label=c"]).ids.shape == (1, 0)
