"""Votes and centroids against literal loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metrix.errors import LabelError
from metrix.search import Index
from metrix.search.class_scores import (
    TEMPERATURE,
    EnrolledClasses,
    score_classes,
    score_without_class,
    search_without_class,
)
from metrix.search.filters import read_filter


def draw(seed: int, classes: int = 7, most: int = 9, dim: int = 6, unlabelled: int = 0) -> tuple[Any, list[str | None]]:
    """Unit vectors of classes of 1 to `most` items, some of them without a label, in random order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, classes)
    centres = rng.normal(size=(classes, dim))
    vectors = np.concatenate([centres[c] + 0.7 * rng.normal(size=(size, dim)) for c, size in enumerate(sizes)])
    labels: list[str | None] = [f"class {c}" for c, size in enumerate(sizes) for _ in range(size)]
    order = rng.permutation(len(vectors))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    labels = [labels[n] for n in order]
    for n in range(unlabelled):
        labels[3 * n] = None
    return vectors[order], labels


def literal(query: Any, vectors: Any, labels: Any, k: int, *, own: int = -1, gone: str | None = None) -> dict[str, Any]:
    """(votes, centroid) of each candidate of one query, item by item."""
    rows = [n for n in range(len(vectors)) if labels[n] is not None and n != own and labels[n] != gone]
    ordered = sorted(rows, key=lambda n: -float(vectors[n] @ query))[:k]
    votes: dict[str, float] = {}
    for n in ordered:
        votes[labels[n]] = votes.get(labels[n], 0.0) + np.exp(float(vectors[n] @ query) / TEMPERATURE)
    last = min(float(vectors[n] @ query) for n in ordered)
    cosines = {}
    for name in {labels[n] for n in range(len(vectors)) if labels[n] is not None}:
        whole = np.sum([vectors[n] for n in range(len(vectors)) if labels[n] == name], axis=0, dtype=np.float64)
        cosines[name] = whole @ query / np.linalg.norm(whole)
    near = sorted(cosines, key=lambda name: -cosines[name])[:k]
    found = {}
    for name in {*votes, *near}:
        mine = [n for n in rows if labels[n] == name]
        if not mine:
            continue
        rest = np.sum([vectors[n] for n in mine], axis=0, dtype=np.float64)
        cosine = rest @ query / np.linalg.norm(rest)
        found[name] = (TEMPERATURE * np.log(votes[name]) if name in votes else last, cosine)
    return found


def as_dicts(scores: Any, classes: EnrolledClasses) -> list[dict[str, Any]]:
    return [
        {classes.names[c]: (v, m) for c, v, m in zip(*row, strict=True) if c >= 0}
        for row in zip(scores.classes, scores.votes, scores.centroids, strict=True)
    ]


def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=2e-5), name


@pytest.mark.parametrize("k", [1, 3, 10, 200])
@pytest.mark.parametrize("unlabelled", [0, 5])
def test_scores_are_those_of_a_literal_loop(k: int, unlabelled: int) -> None:
    vectors, labels = draw(k, unlabelled=unlabelled)
    index = Index.build(vectors, columns={"label": labels})
    classes = EnrolledClasses.read(index.store)
    queries, _ = draw(100 + k)
    for n, found in enumerate(as_dicts(score_classes(queries, index.store, classes, k), classes)):
        agree(found, literal(queries[n], vectors, labels, k))


@pytest.mark.parametrize("k", [1, 4, 200])
def test_an_item_neither_votes_for_itself_nor_counts_for_its_centroid(k: int) -> None:
    vectors, labels = draw(7)
    index = Index.build(vectors, columns={"label": labels})
    classes = EnrolledClasses.read(index.store)
    rows = np.arange(len(vectors))
    for n, found in enumerate(as_dicts(score_classes(vectors, index.store, classes, k, own=rows), classes)):
        agree(found, literal(vectors[n], vectors, labels, k, own=n))


@pytest.mark.parametrize("k", [1, 4, 200])
def test_without_its_class_by_depth_and_by_filter(k: int) -> None:
    vectors, labels = draw(11, unlabelled=3)
    index = Index.build(vectors, columns={"label": labels})
    classes = EnrolledClasses.read(index.store)
    rows = np.flatnonzero(classes.of_row >= 0)
    codes = classes.of_row[rows].astype(np.int64)
    deep = as_dicts(score_without_class(vectors[rows], codes, index.store, classes, k), classes)
    for n, row in enumerate(rows):
        expected = literal(vectors[row], vectors, labels, k, gone=labels[row])
        agree(deep[n], expected)
        (filtered,) = as_dicts(
            search_without_class(vectors[row : row + 1], int(codes[n]), index.store, classes, k), classes
        )
        agree(filtered, expected)


def test_only_items_that_meet_a_filter_vote() -> None:
    vectors, labels = draw(13)
    price = [n % 5 for n in range(len(vectors))]
    index = Index.build(vectors, columns={"label": labels, "price": price})
    classes = EnrolledClasses.read(index.store)
    scores = score_classes(vectors[:9], index.store, classes, 5, where=read_filter(["price<2"], index.columns))
    assert {price[row] for row in scores.neighbours.rows.reshape(-1) if row >= 0} <= {0, 1}
    cheap = {labels[n] for n in range(len(vectors)) if price[n] < 2}
    assert all(found.keys() <= cheap for found in as_dicts(scores, classes))


def test_labels_may_be_numbers() -> None:
    vectors, labels = draw(17)
    numbers = [None if n == 0 else int(str(label).split()[1]) for n, label in enumerate(labels)]
    index = Index.build(vectors, columns={"label": numbers})
    classes = EnrolledClasses.read(index.store)
    assert set(classes.names) == set(numbers) - {None}
    assert 0 not in score_classes(vectors, index.store, classes, 3).neighbours.rows  # it has no label


def test_an_index_without_labels_is_one_error() -> None:
    vectors, labels = draw(19)
    with pytest.raises(LabelError, match="expected an index with labels"):
        EnrolledClasses.read(Index.build(vectors).store)
    with pytest.raises(LabelError, match="expected an index with labels"):
        EnrolledClasses.read(Index.build(vectors, columns={"label": [None] * len(labels)}).store)
