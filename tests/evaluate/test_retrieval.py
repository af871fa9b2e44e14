from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import ranks, recall_at_k, retrieval
from tests.evaluate import literal

KS = (1, 2, 4, 8, 500)


def clusters(seed: int, n: int, classes: int, d: int, noise: float = 1.0, dtype: Any = np.float64) -> tuple:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    x = rng.standard_normal((classes, d))[labels] + noise * rng.standard_normal((n, d))
    return (x * rng.uniform(0.1, 10, size=(n, 1))).astype(dtype), labels


def agree(result: Any, expected: dict[str, list]) -> None:
    assert set(result.per_query) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(result.per_query[name], values, rtol=0, atol=1e-9, err_msg=name)
        assert result.means[name] == pytest.approx(sum(values) / len(values), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "classes"), [(60, 10), (60, 50), (60, 2), (2, 1), (60, 1)])
def test_every_measure_is_its_definition(n: int, classes: int, dtype: Any) -> None:
    x, labels = clusters(n + classes, n, classes, 5, dtype=dtype)
    expected = literal.measures(x, labels, KS)
    agree(retrieval(x, labels, ks=KS, resamples=0), expected)
    assert recall_at_k(x, labels, KS) == pytest.approx({k: np.mean(expected[f"recall@{k}"]) for k in KS})


def test_query_and_gallery() -> None:
    x, labels = clusters(0, 40, 8, 4)
    gallery, gallery_labels = clusters(1, 50, 6, 4)  # classes 6 and 7 have nobody there
    expected = literal.measures(x, labels, KS, gallery, gallery_labels)
    result = retrieval(x, labels, KS, gallery, gallery_labels, resamples=0)
    agree(result, expected)
    assert result.left_out == int((labels >= 6).sum()) > 0
    assert recall_at_k(x, labels, KS, gallery, gallery_labels) == pytest.approx(result.recall)


def test_a_gallery_does_not_leave_the_query_out() -> None:
    x, labels = clusters(0, 20, 4, 4)
    assert recall_at_k(x, labels, (1,), gallery=x, gallery_labels=labels) == {1: 1.0}
    assert recall_at_k(x, labels, (1,))[1] < 1.0


@pytest.mark.parametrize("sort_past", [0, 192])
def test_blocks_and_sorting_change_nothing(monkeypatch: pytest.MonkeyPatch, sort_past: int) -> None:
    x, labels = clusters(3, 70, 7, 6)
    labels[:3] = [100, 101, 102]
    expected = literal.measures(x, labels, KS)
    monkeypatch.setattr(ranks, "BLOCK_BYTES", 4 * 70 * 9)  # nine rows a block
    monkeypatch.setattr(ranks, "SORT_PAST", sort_past)
    result = retrieval(x, labels, ks=KS, resamples=0)
    agree(result, expected)
    assert result.left_out == 3


def test_agrees_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    x, labels = clusters(4, 300, 30, 16, dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_average_precision")
    theirs = AccuracyCalculator(include=names, k=299, device=torch.device("cpu")).get_accuracy(
        torch.from_numpy(x), torch.from_numpy(labels)
    )
    ours = retrieval(x, labels, resamples=0)
    assert ours.recall[1] == pytest.approx(theirs["precision_at_1"], abs=1e-9)
    assert ours.r_precision == pytest.approx(theirs["r_precision"], abs=1e-9)
    assert ours.map_at_r == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-9)
    assert ours.mean_average_precision == pytest.approx(theirs["mean_average_precision"], abs=1e-9)


# ---- ties and duplicates


def test_the_query_is_left_out_by_its_row_not_by_its_rank() -> None:
    # Rows 0 and 1 are copies in different classes, so are rows 2 and 3: each copy is the other's nearest
    # neighbour. Second comes row 2 or 0, the lower of two that tie: right for both a, wrong for both b.
    x = [[1.0, 0.0], [1.0, 0.0], [0.9, 0.1], [0.9, 0.1]]
    assert recall_at_k(x, ["a", "b", "a", "b"], (1, 2, 3)) == {1: 0.0, 2: 0.5, 3: 1.0}


def test_copies_of_one_vector_rank_by_row_number() -> None:
    x = np.tile([[0.3, -0.7, 0.2]], (6, 1)) * np.arange(1, 7)[:, None]  # scaled copies tie as well
    labels = [0, 0, 1, 1, 2, 2]
    agree(retrieval(x, labels, ks=(1, 2, 3), resamples=0), literal.measures(x, labels, (1, 2, 3)))
    assert recall_at_k(x, labels, (1,)) == {1: pytest.approx(2 / 6)}


@pytest.mark.parametrize("n", [40, 700])
def test_a_collapsed_model_is_not_flattered(n: int) -> None:
    x, labels = np.ones((n, 3), dtype=np.float32), np.arange(n) % 20
    result = retrieval(x, labels, ks=(1, 20), resamples=0)
    # Everybody's nearest neighbour is row 0 (row 1 for row 0 itself), which is of class 0.
    assert result.recall[1] == (n // 20 - 1) / n


@pytest.mark.parametrize("seed", range(4))
def test_near_ties_below_float32_are_told_apart(seed: int) -> None:
    # A gallery around one point, at distances that float32 cosines of 64 terms get in the wrong order.
    rng = np.random.default_rng(seed)
    queries, centre = rng.standard_normal((20, 64)), rng.standard_normal(64)
    gallery = centre + 3e-8 * rng.standard_normal((30, 64))
    labels, gallery_labels = rng.integers(4, size=20), np.arange(30) % 4
    expected = literal.measures(queries, labels, KS, gallery, gallery_labels)
    agree(retrieval(queries, labels, KS, gallery, gallery_labels, resamples=0), expected)
    recall = recall_at_k(queries, labels, KS, gallery, gallery_labels)
    assert recall == pytest.approx({k: np.mean(expected[f"recall@{k}"]) for k in KS})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_small_grid_with_ties_and_duplicates(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 14))
    coordinate = st.integers(-2, 2).map(float)
    row = st.lists(coordinate, min_size=2, max_size=2).filter(any)
    x = np.array(data.draw(st.lists(row, min_size=n, max_size=n)))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    expected = literal.measures(x, labels, (1, 2, 5))
    if expected:
        agree(retrieval(x, labels, ks=(1, 2, 5), resamples=0), expected)
        recall = {k: np.mean(expected[f"recall@{k}"]) for k in (1, 2, 5)}
        assert recall_at_k(x, labels, (1, 2, 5)) == pytest.approx(recall)
    else:
        with pytest.raises(LabelError, match="none of the"):
            retrieval(x, labels)


# ---- laws


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40), st.integers(1, 8))
def test_order_scale_and_label_names_change_nothing(seed: int, n: int, classes: int) -> None:
    x, labels = clusters(seed, n, classes, 6)
    labels[:2] = 0  # somebody has a positive
    order = np.random.default_rng(seed).permutation(n)
    first = retrieval(x, labels, resamples=0)
    names = np.array([f"class {label}" for label in labels])
    for other in (
        retrieval(x[order], labels[order], resamples=0),
        retrieval(1e-3 * x, labels, resamples=0),
        retrieval(1e200 * x, names, resamples=0),
        retrieval(torch.from_numpy(x), torch.from_numpy(labels), resamples=0),
    ):
        assert other.means == pytest.approx(first.means, abs=1e-12)
        assert other.left_out == first.left_out


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40))
def test_measures_order_as_they_must(seed: int, n: int) -> None:
    x, labels = clusters(seed, n, 5, 4)
    labels[:2] = 0
    result = retrieval(x, labels, ks=(1, 2, 3, n - 1), resamples=0)
    assert list(result.recall.values()) == sorted(result.recall.values())
    assert result.recall[n - 1] == 1.0
    assert result.recall[1] == result.precision[1] == result.map_at_k[1]
    assert result.map_at_r <= result.r_precision + 1e-12
    assert result.map_at_k[n - 1] == pytest.approx(result.mean_average_precision)
    assert all(0 <= value <= 1 for value in result.means.values())


def test_half_precision_and_gradients_are_accepted() -> None:
    x, labels = clusters(0, 30, 4, 8, noise=0.1)
    exact = recall_at_k(x, labels)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert recall_at_k(torch.tensor(x, dtype=dtype, requires_grad=True), labels) == exact


# ---- the result


def test_per_class_and_dict() -> None:
    x, labels = clusters(5, 50, 4, 4)
    names = np.array(["ant", "bee", "cat", "dog"])[labels]
    result = retrieval(x, names, ks=(1, 2), generator=torch.Generator().manual_seed(3))
    assert sum(row["queries"] for row in result.per_class.values()) == result.queries == 50
    bee = result.per_query["map@r"][names[result.query_rows] == "bee"]
    assert result.per_class["bee"]["map@r"] == pytest.approx(bee.mean())
    written = json.loads(json.dumps(result.to_dict()))
    assert written["measures"]["recall@1"] == result.recall[1]
    assert written["search"] == "exact"


def test_intervals_hold_the_mean_and_repeat() -> None:
    x, labels = clusters(6, 200, 10, 6, noise=1.5)
    first, again = retrieval(x, labels, over="queries"), retrieval(x, labels, over="queries")
    assert first.intervals == again.intervals
    assert first.to_dict()["intervals_over"] == "queries"
    assert retrieval(x, labels).to_dict()["intervals_over"] == "classes"
    for name, (low, high) in first.intervals.items():
        assert low <= first.means[name] <= high
        # The normal approximation of the same interval.
        width = 2 * 1.96 * first.per_query[name].std() / np.sqrt(200)
        assert high - low == pytest.approx(width, rel=0.2)
    other = retrieval(x, labels, over="queries", generator=torch.Generator().manual_seed(1))
    assert other.intervals != first.intervals
    assert other.means == first.means
    assert retrieval(x, labels, resamples=0).intervals == {}


def test_the_generator_is_the_only_randomness() -> None:
    x, labels = clusters(6, 40, 4, 6)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    retrieval(x, labels)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


# ---- somebody's index


class Neighbours:
    """An exact searcher that may forget some rows."""

    def __init__(self, x: np.ndarray, forget: Any = ()) -> None:
        self.x = x / np.linalg.norm(x, axis=1, keepdims=True)
        self.forget = list(forget)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        S = queries.astype(np.float64) @ self.x.T
        S[:, self.forget] = -np.inf
        ids = np.argsort(-S, axis=1)[:, :k]
        found = np.take_along_axis(S, ids, axis=1)
        return np.where(np.isinf(found), -1, ids), found


@pytest.mark.parametrize("gallery", [False, True])
def test_a_searcher_that_forgets_nothing_loses_nothing(gallery: bool) -> None:
    x, labels = clusters(7, 120, 9, 6)
    labels[:40] = 0  # one class is much larger
    y, y_labels = clusters(8, 90, 9, 6) if gallery else (None, None)
    exact = retrieval(x, labels, (1, 3), y, y_labels, resamples=0)
    found = retrieval(x, labels, (1, 3), y, y_labels, resamples=0, searcher=Neighbours(y if gallery else x))
    assert exact.search_loss is None
    assert found.mean_average_precision is None
    assert set(found.search_loss or {}) == set(found.per_query) == set(exact.per_query) - {"map"}
    for name, values in found.per_query.items():
        np.testing.assert_allclose(values, exact.per_query[name], atol=1e-12)
        assert (found.search_loss or {})[name] == pytest.approx(0, abs=1e-12)
    assert found.to_dict()["search"] == "approximate"


def test_a_searcher_that_forgets_states_its_loss() -> None:
    x, labels = clusters(7, 120, 9, 6)
    exact = retrieval(x, labels, resamples=0)
    found = retrieval(x, labels, resamples=0, searcher=Neighbours(x, forget=range(0, 120, 2)))
    assert found.loss_sample == found.queries  # the whole set is the sample
    for name, lost in (found.search_loss or {}).items():
        assert lost == pytest.approx(exact.means[name] - found.means[name], abs=1e-12)
    assert (found.search_loss or {})["map@r"] > 0.05


def test_a_searcher_with_ids_of_its_own_is_refused() -> None:
    class Foreign(Neighbours):
        def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            ids, S = super().search(queries, k)
            return ids + 1000, S

    x, labels = clusters(7, 30, 3, 6)
    with pytest.raises(InvalidInput, match="row numbers of the 30 gallery"):
        retrieval(x, labels, searcher=Foreign(x))


# ---- what is refused

X, LABELS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 0, 1]


@pytest.mark.parametrize("measure", [recall_at_k, retrieval])
@pytest.mark.parametrize(
    ("x", "labels", "error", "message"),
    [
        (X, [0, 0], ShapeError, "2 labels for 3 embeddings"),
        (X, [[1, 0], [1, 0], [0, 1]], LabelError, "argmax"),
        (X, [0, "a", 1], LabelError, "got strings mixed with int"),
        (X, [0, None, 1], LabelError, "integers or strings"),
        (X, [0.5, 1.0, 1.0], LabelError, "integers or strings"),
        (X, [0, 1, 2], LabelError, "none of the 3 queries has another member"),
        ([1.0, 2.0], LABELS, ShapeError, r"expected shape \(n, d\) .* got \(2,\)"),
        (np.empty((0, 4)), [], ShapeError, "n ≥ 1"),
        (np.empty((3, 0)), LABELS, ShapeError, "d ≥ 1"),
        ([[1.0], [1.0, 2.0], [1.0]], LABELS, ShapeError, "do not form"),
        ([["a"], ["b"], ["c"]], LABELS, EmbeddingError, "real numbers"),
        ([[1.0, np.nan], [0, 1], [np.inf, 0]], LABELS, EmbeddingError, r"2 of 3 rows \(row 0, 2\)"),
        ([[1.0, 0], [0, 0], [0, 1]], LABELS, EmbeddingError, r"norm zero in 1 of 3 rows \(row 1\)"),
    ],
)
def test_unusable_input_is_refused(measure: Any, x: Any, labels: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        measure(x, labels)


@pytest.mark.parametrize("ks", [(), (0,), (1, -2), (1.5,), (True,), ("1",)])
def test_unusable_ks_are_refused(ks: Any) -> None:
    with pytest.raises(InvalidInput, match="ks"):
        recall_at_k(X, LABELS, ks)


def test_unusable_galleries_are_refused() -> None:
    with pytest.raises(InvalidInput, match="gallery_labels is missing"):
        recall_at_k(X, LABELS, gallery=X)
    with pytest.raises(InvalidInput, match="gallery is missing"):
        recall_at_k(X, LABELS, gallery_labels=LABELS)
    with pytest.raises(ShapeError, match="2 columns and gallery embeddings of 3"):
        recall_at_k(X, LABELS, gallery=np.eye(3), gallery_labels=LABELS)
    with pytest.raises(LabelError, match="no label could ever be equal"):
        recall_at_k(X, LABELS, gallery=X, gallery_labels=["0", "0", "1"])
    with pytest.raises(LabelError, match="a member in the gallery"):
        recall_at_k(X, LABELS, gallery=X, gallery_labels=[7, 8, 9])


def test_unusable_settings_are_refused() -> None:
    for wrong in ({"resamples": -1}, {"confidence": 1.0}, {"confidence": 95}, {"loss_sample": 0}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            retrieval(X, LABELS, **wrong)


def test_vectors_too_small_or_large_to_square_keep_their_direction() -> None:
    x, labels = clusters(9, 30, 3, 4)
    for scale in (1e-200, 1e200):
        assert recall_at_k(x * scale, labels) == recall_at_k(x, labels)
