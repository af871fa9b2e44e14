"""Thresholds against counts over every pair."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.errors import ChoiceError, InvalidInput, LabelError, ShapeError
from metrix.search import pairs as counting
from metrix.search.pairs import BINS, count_pairs


def classes(seed: int = 0, n: int = 200, k: int = 12, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    x = rng.standard_normal((k, 16))[labels] + noise * rng.standard_normal((n, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def rates(x: np.ndarray, labels: np.ndarray, t: float) -> tuple[float, float, float]:
    """Precision, recall and false-accept rate over all pairs i < j."""
    similar = x @ x.T
    same = labels[:, None] == labels[None]
    above = similar >= t - 1e-7
    rows, columns = np.triu_indices(len(x), 1)
    true, false = (above & same)[rows, columns].sum(), (above & ~same)[rows, columns].sum()
    return true / (true + false), true / same[rows, columns].sum(), false / (~same)[rows, columns].sum()


@pytest.mark.parametrize(
    ("target", "wanted"), [("precision", 0.9), ("precision", 0.99), ("recall", 0.8), ("far", 0.01)]
)
def test_the_threshold_reaches_what_is_wanted_and_only_just(
    target: str, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = classes()
    monkeypatch.setattr(counting, "BLOCK_BYTES", 4 * 200 * 7)  # blocks of seven rows, classes across them
    found = count_pairs(x, labels, resamples=50).threshold(target, wanted)
    precision, recall, far = rates(x, labels, found.similarity)
    assert (found.precision, found.recall, found.far) == pytest.approx((precision, recall, far), abs=1e-12)
    step = 2 / BINS
    reached = {"precision": precision >= wanted, "recall": recall >= wanted, "far": far <= wanted}[target]
    assert reached
    beyond = rates(x, labels, found.similarity + (step if target == "recall" else -step))
    assert not {"precision": beyond[0] >= wanted, "recall": beyond[1] >= wanted, "far": beyond[2] <= wanted}[target]
    assert found.low <= found.similarity <= found.high
    assert found.low < found.high


def test_resampling_is_over_the_classes_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = classes(n=60, k=5)
    monkeypatch.setattr(counting, "BLOCK_BYTES", 4 * 60 * 7)
    found = count_pairs(x, labels, resamples=3, seed=4)
    draws = np.random.default_rng(4)
    bins = np.clip(((x @ x.T).astype(np.float64) + 1) * BINS / 2, 0, BINS - 1).astype(int)
    for b in range(3):
        times = np.bincount(draws.integers(5, size=5), minlength=5)
        same = np.zeros(BINS)
        different = np.zeros(BINS)
        for i in range(60):
            for j in range(60):
                if i != j:
                    if labels[i] == labels[j]:
                        same[bins[i, j]] += times[labels[i]]
                    else:  # 4/5 is the expected weight of two classes
                        different[bins[i, j]] += times[labels[i]] * times[labels[j]] / 0.8
        assert np.abs(found.resampled_same[b] - same).sum() <= 4  # an edge may fall otherwise in float32
        assert np.abs(found.resampled_different[b] - different).sum() <= 8


def test_many_classes_are_resampled_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = classes(n=300, k=60)
    whole = count_pairs(x, labels, resamples=400)
    monkeypatch.setattr(counting, "MOST_UNITS", 20)
    grouped = count_pairs(x, labels, resamples=400)
    assert (grouped.units, grouped.classes) == (20, len(np.unique(labels)))
    assert (grouped.same == whole.same).all()
    assert (grouped.different == whole.different).all()
    total = whole.different.sum()
    assert grouped.resampled_different.sum(axis=1).mean() == pytest.approx(total, rel=0.03)
    for name in ("recall", "far"):
        (a, b), (c, d) = whole.intervals(0.4)[name], grouped.intervals(0.4)[name]
        assert (d - c) == pytest.approx(b - a, rel=0.4)


def test_the_interval_narrows_with_more_classes() -> None:
    def width(k: int) -> float:
        found = [count_pairs(*classes(seed, 10 * k, k), resamples=100).threshold("recall", 0.8) for seed in range(4)]
        return float(np.mean([one.high - one.low for one in found]))

    assert width(100) < width(8)
    plain = count_pairs(*classes(), resamples=0).threshold("recall", 0.9)
    assert plain.low == plain.similarity == plain.high


def test_curves_are_the_rates() -> None:
    x, labels = classes()
    curves = count_pairs(x, labels, resamples=0).curves()
    for j in range(0, BINS, 777):
        t = curves["similarity"][j]
        if not np.isnan(curves["precision"][j]):
            found = [curves[name][j] for name in ("precision", "recall", "far")]
            assert found == pytest.approx(rates(x, labels, t), abs=1e-3)
    assert (np.diff(curves["recall"]) <= 0).all()
    assert curves["recall"][0] == curves["far"][0] == 1


def test_what_cannot_be_reached_or_counted_is_refused() -> None:
    x, labels = classes(noise=3.0)
    same = np.concatenate([x, x])  # the nearest pairs are of two classes
    pairs = count_pairs(same, np.concatenate([labels, labels + 100]), resamples=0)
    with pytest.raises(InvalidInput, match="precision: expected at most"):
        pairs.threshold("precision", 0.999)
    for target, wanted, error in (
        ("precision", 1.0, InvalidInput),
        ("far", 0.0, InvalidInput),
        ("f1", 0.5, ChoiceError),
    ):
        with pytest.raises(error):
            pairs.threshold(target, wanted)
    with pytest.raises(LabelError):
        count_pairs(x, np.arange(len(x)))
    with pytest.raises(LabelError):
        count_pairs(x, np.zeros(len(x)))
    with pytest.raises(ShapeError):
        count_pairs(x, labels[:-1])
    assert pairs.threshold("far", 1e-9).recall < 1e-9 + 1
