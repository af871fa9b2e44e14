"""Confusion: literal loops over float64 similarities say the same, and ten thousand classes stay small."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.evaluate import Confusion, retrieval
from tests.evaluate import literal


def confused_literally(x: Any, labels: Any, gallery: Any = None, gallery_labels: Any = None) -> Counter[Any]:
    """(class of the query, class of its nearest example): how many queries with a positive to find."""
    shared = gallery is None
    x = literal.unit(x)
    gallery = x if shared else literal.unit(gallery)
    gallery_labels = labels if shared else gallery_labels
    found: Counter[Any] = Counter()
    for q in range(len(x)):
        rows = literal.ranking(q, x, gallery, shared)
        if any(gallery_labels[g] == labels[q] for g in rows):
            found[(labels[q], gallery_labels[rows[0]])] += 1
    return found


def counted(found: Confusion) -> Counter[Any]:
    rows, columns, counts = found.matrix()
    return Counter({(a, b): int(counts[i, j]) for i, a in enumerate(rows) for j, b in enumerate(columns)})


def clusters(seed: int, n: int, classes: int, d: int, noise: float) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    return rng.standard_normal((classes, d))[labels] + noise * rng.standard_normal((n, d)), [f"c{k}" for k in labels]


@pytest.mark.parametrize(("n", "classes", "noise"), [(60, 8, 1.0), (60, 25, 2.0), (40, 2, 3.0), (30, 1, 1.0)])
def test_the_matrix_is_that_of_a_literal_loop(n: int, classes: int, noise: float) -> None:
    x, labels = clusters(n + classes, n, classes, 4, noise)
    result = retrieval(x, labels, (2,), resamples=0, confusion=True)  # Recall@1 need not be among the measures
    found = result.confusion
    assert found is not None
    assert set(result.means) & {"recall@1"} == set()
    expected = confused_literally(x, labels)
    assert +counted(found) == +expected
    right = sum(count for (a, b), count in expected.items() if a == b)
    assert result.queries - found.wrong == right
    assert dict(zip(found.names.tolist(), found.images.tolist(), strict=True)) == dict(Counter(labels))


def test_queries_and_gallery_with_classes_that_nobody_asks_for() -> None:
    x, labels = clusters(0, 40, 6, 3, 1.5)
    gallery, others = clusters(1, 50, 9, 3, 1.5)
    result = retrieval(x, labels, (1,), gallery, others, resamples=0, confusion=True)
    assert result.confusion is not None
    assert +counted(result.confusion) == +confused_literally(x, labels, gallery, others)
    both = Counter(labels) + Counter(others)
    assert dict(zip(result.confusion.names.tolist(), result.confusion.images.tolist(), strict=True)) == dict(both)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies_and_ties_go_to_the_lowest_row(data: st.DataObject) -> None:
    """Few directions on a grid, so that most similarities tie."""
    n = data.draw(st.integers(3, 14))
    grid = st.lists(st.sampled_from([-1.0, 0.5, 1.0, 2.0]), min_size=2, max_size=2)
    x = np.array(data.draw(st.lists(grid, min_size=n, max_size=n)))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    if max(Counter(labels).values()) < 2:
        return
    result = retrieval(x, labels, (1,), resamples=0, confusion=True)
    assert result.confusion is not None
    assert +counted(result.confusion) == +confused_literally(x, labels)


def test_near_ties_are_decided_in_float64() -> None:
    """Two wrong classes whose cosines agree in float32, in both orders of their rows."""
    query, own, near = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.8, 0.6, 0.0]
    nearer = [0.8 + 1e-10, 0.6, 0.0]
    for vectors, names in (([near, nearer], ["far", "near"]), ([nearer, near], ["near", "far"])):
        x = np.array([query, own, *vectors, *vectors])
        found = retrieval(x, ["q", "q", *names, *names], (1,), resamples=0, confusion=True).confusion
        assert found is not None
        assert found.most_confused()["q"] == ("near", 1)


def test_pairs_join_both_directions_most_first() -> None:
    names = np.array(["a", "b", "c", "d"])
    own, found, counts = np.array([0, 0, 1, 2, 3]), np.array([2, 1, 0, 3, 2]), np.array([4, 3, 2, 1, 3])
    confusion = Confusion(names, np.full(4, 9), np.full(4, 9), own, found, counts)
    assert [tuple(pair) for pair in confusion.pairs(10)] == [("a", "b", 3, 2), ("a", "c", 4, 0), ("d", "c", 3, 1)]
    assert len(confusion.pairs(1)) == 1
    assert confusion.most_confused() == {"a": ("c", 4), "b": ("a", 2), "c": ("d", 1), "d": ("c", 3)}
    assert confusion.wrong == 13


def test_a_searcher_counts_what_it_found() -> None:
    from metrix.search import Index

    x, labels = clusters(5, 80, 9, 6, 1.3)
    exact = retrieval(x, labels, (1,), resamples=0, confusion=True).confusion
    found = retrieval(x, labels, (1,), resamples=0, confusion=True, searcher=Index.build(x)).confusion
    assert exact is not None
    assert found is not None
    assert exact.wrong > 5
    assert counted(found) == counted(exact)


def test_ten_thousand_classes_take_little_memory() -> None:
    import tracemalloc

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10_000), 2)
    x = rng.standard_normal((20_000, 8)).astype(np.float32)  # nearly every query is wrong
    from metrix.evaluate.ranks import BLOCK_BYTES

    tracemalloc.start()
    found = retrieval(x, labels, (1,), resamples=0, confusion=True).confusion
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert found.wrong > 19_000
    assert len(found.counts) <= found.wrong
    assert peak < 4 * BLOCK_BYTES  # a dense matrix of counts alone would be 800 MB
    assert len(found.pairs(20)) == 20
