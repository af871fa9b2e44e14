"""Which labels are asked about, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metrix.errors import InvalidInput, LabelError
from metrix.retrieve.label_queue import list_questions
from metrix.search import Index, find_suspects
from metrix.search.class_scores import TEMPERATURE


def clouds(labels: dict[int, Any] | None = None, spread: float = 0.05) -> tuple[Index, list[Any]]:
    """Three clouds of eight vectors, and one vector between two of them; some labels are others."""
    rng = np.random.default_rng(0)
    centres = np.eye(3, 8)
    vectors = np.concatenate([np.repeat(centres, 8, axis=0), [centres[0] + centres[1]]])
    vectors = vectors + spread * rng.normal(size=vectors.shape)
    names: list[Any] = ["a"] * 8 + ["b"] * 8 + ["c"] * 8 + ["a"]
    for row, label in (labels or {}).items():
        names[row] = label
    return Index.build(vectors, [f"{n}.jpg" for n in range(25)], columns={"label": names}), names


def test_suspects_come_first_then_unsure_then_unlabelled() -> None:
    index, _ = clouds({3: "b", 20: "a", 10: None})
    found = list_questions(index)
    assert [one.reason for one in found] == sorted(
        (one.reason for one in found), key=["suspect", "unsure", "unlabelled"].index
    )
    suspects = [one for one in found if one.reason == "suspect"]
    assert [one.id for one in suspects] == [one.id for one in find_suspects(index, 10)]
    assert {(one.id, one.label, one.proposed) for one in suspects} >= {("3.jpg", "b", "a"), ("20.jpg", "a", "c")}
    (unlabelled,) = (one for one in found if one.reason == "unlabelled")
    assert (unlabelled.id, unlabelled.label, unlabelled.proposed) == ("10.jpg", None, "b")
    for one in found:
        assert one.id not in {near["id"] for near in one.neighbours}
        similarities = [near["similarity"] for near in one.neighbours]
        assert similarities == sorted(similarities, reverse=True)
    assert len({one.id for one in found}) == len(found)


def test_unsure_items_are_those_of_a_small_margin_of_votes() -> None:
    index, names = clouds(spread=0.3)
    found = {one.id: one for one in list_questions(index, k=5, reasons=["unsure"])}
    assert 2 <= len(found) <= 15
    vectors = index.get([f"{n}.jpg" for n in range(25)]).vectors.astype(np.float64)
    for n in range(25):
        order = [m for m in np.argsort(-vectors @ vectors[n]) if m != n][:5]
        votes: dict[str, float] = {}
        for m in order:
            votes[names[m]] = votes.get(names[m], 0) + float(np.exp(vectors[m] @ vectors[n] / TEMPERATURE))
        total = sum(votes.values())
        best_other = max((vote for name, vote in votes.items() if name != names[n]), default=0) / total
        margin = votes.get(names[n], 0) / total - best_other
        assert (f"{n}.jpg" in found) == (margin < 0.2), n
        if margin < 0.2:
            assert found[f"{n}.jpg"].proposed == max((v, k) for k, v in votes.items() if k != names[n])[1]


def test_odd_indexes() -> None:
    with pytest.raises(LabelError, match="expected an index with labels"):
        list_questions(Index.build(np.eye(3)))
    one = Index.build(np.eye(3), columns={"label": ["x", "x", None]})
    assert [question.reason for question in list_questions(one)] == ["unlabelled"]
    assert list_questions(Index.build(np.eye(1), columns={"label": ["x"]})) == []
    alone = Index.build(np.eye(4), columns={"label": ["a", "b", "c", "d"]})
    assert all(question.label is not None for question in list_questions(alone))
    numbers = Index.build(np.eye(3), [7, 8, 9], columns={"label": ["x", "y", None]})
    assert "9" in {question.id for question in list_questions(numbers)}
    with pytest.raises(InvalidInput, match="unknown reason 'suspects'"):
        list_questions(one, reasons=["suspects"])
    with pytest.raises(InvalidInput, match="k: expected"):
        list_questions(one, k=0)
