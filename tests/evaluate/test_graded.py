"""Retrieval with labels in degrees against loops over the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from metrix import labels
from metrix.evaluate import graded, recall_at_k, retrieval
from metrix.evaluate.retrieval import count_hits
from tests.evaluate import literal

KS = (1, 2, 3, 50)
RELATIONS = {
    "two levels": labels.Hierarchy([0, 0, 1, 1], weight=0.4),
    "two levels, the coarse one counts": labels.Hierarchy([0, 0, 1, 1], weight=0.8),
    "sets": labels.LabelSets([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]),
    "any": labels.LabelSets([[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]], "any"),
    "matrix": labels.ClassMatrix([[0.3, 0.9, 0.0, 0.1], [0.2, 1.0, 0.6, 0.0], [0.0, 0.0, 0.7, 0.5], [0, 0, 0, 1.0]]),
}


def table_of(relation: labels.Relation) -> list[list[float]]:
    numbers = torch.arange(relation.num_classes)
    return relation.between(numbers, numbers, torch.float64).tolist()


def examples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 3))
    x[n // 2] = x[0]  # a copy: a tie
    return x, random.integers(0, 4, n)


def agree(found, expected) -> None:
    assert set(found.per_query) == set(expected)
    for key, values in expected.items():
        assert found.per_query[key] == pytest.approx(values, abs=1e-12), key


@pytest.mark.parametrize("name", RELATIONS)
def test_among_each_other(name, monkeypatch):
    x, y = examples(30)
    expected = literal.measures(x, y, KS, Y=table_of(RELATIONS[name]), above=RELATIONS[name].positive_above)
    agree(retrieval(x, y, KS, resamples=0, relation=RELATIONS[name]), expected)
    monkeypatch.setattr(graded, "BLOCK_BYTES", 64 * 30 * 4)  # four queries at a time
    agree(retrieval(x, y, KS, resamples=0, relation=RELATIONS[name]), expected)


@pytest.mark.parametrize("name", RELATIONS)
def test_against_a_gallery(name):
    (x, y), (gallery, other) = examples(12), examples(25, seed=1)
    expected = literal.measures(
        x, y, KS, gallery, other, Y=table_of(RELATIONS[name]), above=RELATIONS[name].positive_above
    )
    found = retrieval(x, y, KS, gallery, other, resamples=0, relation=RELATIONS[name])
    agree(found, expected)
    assert found.left_out == len(x) - len(expected["recall@1"])


def test_hits_of_all_processes_add_up():
    (x, y), relation = examples(30), RELATIONS["sets"]
    expected = literal.measures(x, y, KS, Y=table_of(relation), above=relation.positive_above)
    found = [count_hits(x, y, KS, share=(rank, 3), relation=relation) for rank in range(3)]
    queries = sum(one.queries for one in found)
    assert queries == len(expected["recall@1"])
    for k in KS:
        assert sum(one.hits[k] for one in found) == sum(expected[f"recall@{k}"])
        assert sum(one.ndcg[k] for one in found) == pytest.approx(sum(expected[f"ndcg@{k}"]))
    assert recall_at_k(x, y, KS, relation=relation)[2] == pytest.approx(np.mean(expected["recall@2"]))


def test_ndcg_is_that_of_scikit_learn():
    (x, y), (gallery, other) = examples(12), examples(25, seed=1)
    Y = np.array(table_of(RELATIONS["two levels"]))[y][:, other]
    found = retrieval(x, y, (5,), gallery, other, resamples=0, relation=RELATIONS["two levels"])
    unit, searched = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, gallery))
    for row, value in zip(found.query_rows, found.per_query["ndcg@5"], strict=True):
        # ties are averaged there: leave out the queries whose first places are tied
        S = unit[row] @ searched.T
        if len(np.unique(np.sort(S)[::-1][:6].round(12))) == 6:
            assert value == pytest.approx(ndcg_score(Y[row : row + 1], S[None], k=5), abs=1e-12)


def test_labels_of_one_batch():
    x, _ = examples(4)
    given = labels.multi_label([{"a", "b"}, {"a", "b", "c"}, {"a"}, {"z"}])
    found = retrieval(x, given, (1,), resamples=0)
    assert found.queries == 3
    assert found.left_out == 1


def test_classes_are_degrees_of_one_and_zero():
    x, y = examples(30)
    plain = retrieval(x, y, KS, resamples=0)
    found = retrieval(x, y, KS, resamples=0, relation=labels.ClassMatrix(torch.eye(4)))
    for key in plain.per_query:
        assert found.per_query[key] == pytest.approx(plain.per_query[key], abs=1e-12)


def test_refusals():
    x, y = examples(6)
    with pytest.raises(ValueError, match="from 0 to 3, got 5"):
        retrieval(x, y + 5, relation=RELATIONS["sets"])
    with pytest.raises(ValueError, match="about one batch"):
        retrieval(x, labels.multi_label([{1}] * 6), gallery=x, gallery_labels=y)
    with pytest.raises(ValueError, match="none of the 6 queries"):
        retrieval(x, [3] * 6, relation=RELATIONS["sets"])
