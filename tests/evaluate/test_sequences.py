"""Examples of a query's own sequence are left out of its gallery: compared with a literal loop, in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix import labels as graded_labels
from metrix.errors import InvalidInput, LabelError, ShapeError
from metrix.evaluate import ranks, recall_at_k, retrieval
from metrix.evaluate.retrieval import count_hits, find_first_classes
from tests.evaluate import literal
from tests.evaluate.test_retrieval import KS, agree, clusters


def tracks(seed: int, n: int, sequences: int, missing: float = 0.3) -> list[str | None]:
    rng = np.random.default_rng(seed)
    numbers, gone = rng.integers(sequences, size=n), rng.random(n) < missing
    return [None if none else f"track {number}" for number, none in zip(numbers, gone, strict=True)]


@pytest.mark.parametrize("sort_past", [0, 192])
@pytest.mark.parametrize(("classes", "sequences", "missing"), [(6, 4, 0.3), (6, 30, 0.0), (2, 2, 0.0), (6, 4, 1.0)])
def test_every_measure_is_its_definition(
    classes: int, sequences: int, missing: float, sort_past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = clusters(classes, 60, classes, 5)
    x[20:24] = x[3]  # copies, in several sequences and classes
    shots = tracks(100 + sequences, 60, sequences, missing)
    expected = literal.measures(x, labels, KS, sequences=shots)
    monkeypatch.setattr(ranks, "BLOCK_BYTES", 4 * 60 * 7)  # seven rows a block
    monkeypatch.setattr(ranks, "SORT_PAST", sort_past)
    found = retrieval(x, labels, KS, resamples=0, sequences=shots)
    agree(found, expected)
    assert recall_at_k(x, labels, KS, sequences=shots) == pytest.approx(found.recall)
    assert found.sequences == len(set(shots) - {None})


def test_queries_and_gallery() -> None:
    (x, labels), (gallery, gallery_labels) = clusters(0, 40, 8, 4), clusters(1, 50, 6, 4)
    shots, gallery_shots = tracks(2, 40, 5), tracks(3, 50, 7)  # two of the gallery's are of no query
    both = {"sequences": shots, "gallery_sequences": gallery_shots}
    found = retrieval(x, labels, KS, gallery, gallery_labels, resamples=0, **both)
    agree(found, literal.measures(x, labels, KS, gallery, gallery_labels, **both))
    assert recall_at_k(x, labels, KS, gallery, gallery_labels, **both) == pytest.approx(found.recall)
    nobody = {"sequences": [None] * 40, "gallery_sequences": gallery_shots}
    plain = retrieval(x, labels, KS, gallery, gallery_labels, resamples=0)
    assert retrieval(x, labels, KS, gallery, gallery_labels, resamples=0, **nobody).means == plain.means


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_small_grid_with_ties_and_duplicates(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    corners = st.tuples(st.integers(-1, 1), st.integers(-1, 1)).filter(any)
    x = np.array(data.draw(st.lists(corners, min_size=n, max_size=n)), dtype=np.float64)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    shots = data.draw(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=n, max_size=n))
    expected = literal.measures(x, labels, (1, 2, 5), sequences=shots)
    if not expected:
        with pytest.raises(LabelError, match="outside its own sequence"):
            retrieval(x, labels, sequences=shots)
        return
    agree(retrieval(x, labels, (1, 2, 5), resamples=0, sequences=shots), expected)


def test_queries_whose_class_is_only_in_their_sequence_are_left_out_and_counted() -> None:
    x, _ = clusters(0, 7, 2, 3)
    labels = ["a", "a", "a", "b", "b", "c", "b"]
    shots = ["s", "s", None, "t", "t", None, None]
    found = retrieval(x, labels, (1,), resamples=0, sequences=shots)
    assert found.left_out == 1  # the only c
    assert found.only_in_own_sequence == 0
    shots[2], shots[6] = "s", "u"
    found = retrieval(x, labels, (1,), resamples=0, sequences=shots)
    assert (found.left_out, found.only_in_own_sequence, found.sequences) == (4, 3, 3)
    assert found.query_rows.tolist() == [3, 4, 6]
    assert found.to_dict()["only_in_own_sequence"] == 3


def test_all_of_one_sequence_can_find_nothing() -> None:
    x, labels = clusters(0, 20, 4, 3)
    for measure in (recall_at_k, retrieval, find_first_classes):
        with pytest.raises(LabelError, match="outside its own sequence"):
            measure(x, labels, sequences=[7] * 20)


@pytest.mark.parametrize(
    "given",
    [
        np.array([1.0, np.nan, 1.0, 2.0]),
        ["x", "", "x", "y"],
        np.array(["x", "nan", "x", "y"]),
        [5, None, 5, 6],
        ["x", float("nan"), "x", "y"],
    ],
)
def test_a_missing_value_is_no_sequence(given: Any) -> None:
    x, labels = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]]), [0, 1, 0, 0]
    same = retrieval(x, labels, (1, 2), resamples=0, sequences=["one", None, "one", "two"])
    found = retrieval(x, labels, (1, 2), resamples=0, sequences=given)
    assert found.means == same.means
    assert found.sequences == 2


def test_which_classes_are_confused_leaves_the_own_sequence_out() -> None:
    #     0 and 1 are frames of one film; 0 would be taken for 1's class, and is taken for that of 3
    x = np.array([[1.0, 0.0], [1.0, 0.01], [0.5, 1.0], [1.0, 0.3], [-1.0, 0.1], [-1.0, 0.0]])
    labels = ["a", "b", "a", "c", "b", "c"]
    shots = ["film", "film", None, None, None, None]
    found = retrieval(x, labels, (1,), resamples=0, confusion=True, sequences=shots)
    assert found.confusion is not None
    assert found.confusion.most_confused()["a"] == ("c", 2)
    first = find_first_classes(x, labels, sequences=shots)
    assert first.confusion.most_confused()["a"] == ("c", 2)
    assert first.right.tolist() == (found.per_query["recall@1"] > 0).tolist()
    assert find_first_classes(x, labels).confusion.most_confused()["a"] == ("b", 1)


class Exact:
    """An index that returns the true neighbours."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x / np.linalg.norm(x, axis=1, keepdims=True)

    def search(self, queries: Any, k: int, /) -> tuple[Any, Any]:
        S = queries @ self.x.T
        order = np.argsort(-S, axis=1, kind="stable")[:, :k]
        return order, np.take_along_axis(S, order, axis=1)


def test_a_searcher_is_asked_deep_enough() -> None:
    x, labels = clusters(8, 60, 6, 5)
    shots = [f"film {n % 3}" for n in range(60)]  # twenty frames each
    exact = retrieval(x, labels, (1, 4), resamples=0, confusion=True, sequences=shots)
    found = retrieval(x, labels, (1, 4), resamples=0, confusion=True, sequences=shots, searcher=Exact(x))
    for name, values in found.per_query.items():
        np.testing.assert_allclose(values, exact.per_query[name], atol=1e-9, err_msg=name)
    assert found.confusion is not None
    assert exact.confusion is not None
    np.testing.assert_array_equal(found.confusion.counts, exact.confusion.counts)


def test_labels_in_degrees() -> None:
    relation = graded_labels.Hierarchy([0, 0, 1, 1], weight=0.5)
    Y = relation.between(torch.arange(4), torch.arange(4), torch.float64).tolist()
    x, labels = clusters(5, 40, 4, 4)
    x[7] = x[9]
    shots = tracks(6, 40, 5)
    expected = literal.measures(x, labels, KS, Y=Y, above=relation.positive_above, sequences=shots)
    agree(retrieval(x, labels, KS, resamples=0, relation=relation, sequences=shots), expected)


def test_the_hits_of_all_processes_add_up() -> None:
    x, labels = clusters(2, 50, 6, 4)
    shots = tracks(1, 50, 6)
    whole = count_hits(x, labels, (1, 4), sequences=shots)
    parts = [count_hits(x, labels, (1, 4), share=(rank, 3), sequences=shots) for rank in range(3)]
    assert sum(part.queries for part in parts) == whole.queries
    assert {k: sum(part.hits[k] for part in parts) for k in (1, 4)} == whole.hits


def test_unusable_sequences_are_refused() -> None:
    x, labels = clusters(0, 6, 2, 3)
    with pytest.raises(ShapeError, match=r"sequences: expected shape \(6,\)"):
        retrieval(x, labels, sequences=[1, 2])
    with pytest.raises(InvalidInput, match="expected gallery_sequences with them"):
        retrieval(x, labels, (1,), x, labels, sequences=[1] * 6)
    with pytest.raises(InvalidInput, match="expected gallery with them"):
        retrieval(x, labels, sequences=[1] * 6, gallery_sequences=[1] * 6)
    with pytest.raises(InvalidInput, match="expected sequences with them"):
        retrieval(x, labels, (1,), x, labels, gallery_sequences=[1] * 6)
    with pytest.raises(LabelError, match="sequences: expected integers or strings"):
        retrieval(x, labels, sequences=[0.5] * 6)
