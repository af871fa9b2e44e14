from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import Estimate, alignment, geometry, uniformity
from tests.evaluate import literal


def points(seed: int, n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1)) + 0.3).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "d", "classes"), [(40, 5, 6), (40, 70, 40), (2, 3, 1), (40, 3, 1)])
def test_alignment_is_its_definition(n: int, d: int, classes: int, dtype: Any) -> None:
    x, labels = points(n, n, d, dtype), np.random.default_rng(0).integers(classes, size=n)
    labels[:2] = 0
    assert alignment(x, labels) == pytest.approx(literal.alignment(x, labels), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("t", [0.5, 2.0, 30.0])
def test_uniformity_is_its_definition(monkeypatch: pytest.MonkeyPatch, t: float, dtype: Any) -> None:
    x = points(1, 50, 4, dtype)
    expected = literal.uniformity(x, t)
    assert uniformity(x, t) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr(geometry, "ROWS_AT_ONCE", 7)
    assert uniformity(x, t) == pytest.approx(expected, abs=1e-9)


def test_a_large_t_does_not_end_in_log_zero() -> None:
    assert uniformity([[1.0, 0.0], [-1.0, 0.0]], t=1e4) == pytest.approx(-4e4)


def test_distinct_means_another_row() -> None:
    # Two copies and their opposite: pairs at squared distance 0, 4, 4.
    x = [[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]
    assert uniformity(x, 2.0) == pytest.approx(np.log((1 + 2 * np.exp(-8)) / 3), abs=1e-12)
    assert alignment(x, [0, 0, 0]) == pytest.approx(8 / 3, abs=1e-12)
    assert alignment(x, [0, 0, 1]) == pytest.approx(0, abs=1e-30)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40), st.integers(2, 6))
def test_order_scale_and_rotation_change_nothing(seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    x, labels = points(seed, n, d), rng.integers(3, size=n)
    labels[:2] = 0
    order, (rotation, _) = rng.permutation(n), np.linalg.qr(rng.standard_normal((d, d)))
    for y, y_labels in ((x[order], labels[order]), (5 * x, labels), (x @ rotation, labels)):
        assert alignment(y, y_labels) == pytest.approx(alignment(x, labels), abs=1e-10)
        assert uniformity(y) == pytest.approx(uniformity(x), abs=1e-10)
    assert 0 <= alignment(x, labels) <= 4 + 1e-12
    assert -8 - 1e-12 <= uniformity(x) <= 1e-12
    # e^-t is convex: the log of the mean is at least minus the mean distance of all pairs.
    assert uniformity(x, t=1.0) >= -alignment(x, np.zeros(n, dtype=int)) - 1e-12


def test_sampled_uniformity_states_an_error_that_covers_the_truth() -> None:
    x = points(2, 400, 5)
    exact = uniformity(x)
    assert exact.exact
    assert exact.standard_error == 0.0
    off = []
    for seed in range(40):
        drawn = uniformity(x, max_pairs=500, generator=torch.Generator().manual_seed(seed))
        assert drawn.sampled == 500
        off.append((drawn - exact) / drawn.standard_error)
    assert 0.7 < np.std(off) < 1.3
    assert abs(np.mean(off)) < 0.6
    assert uniformity(x, max_pairs=400 * 399 // 2).exact


def test_an_estimate_is_a_number() -> None:
    value = Estimate(0.5, standard_error=0.1, sampled=10)
    assert value * 2 == 1.0
    assert "standard_error=0.1" in repr(value)
    assert copy.deepcopy(value).standard_error == 0.1
    assert repr(Estimate(0.5)) == "Estimate(0.5)"


def test_what_has_no_pairs_is_refused() -> None:
    with pytest.raises(LabelError, match="no class has two of the 2 examples"):
        alignment([[1.0, 0.0], [0.0, 1.0]], ["a", "b"])
    with pytest.raises(ShapeError, match="at least two embeddings"):
        uniformity([[1.0, 0.0]])
    with pytest.raises(EmbeddingError, match="NaN"):
        uniformity([[1.0, np.nan], [1.0, 0.0]])
    with pytest.raises(EmbeddingError, match="norm zero"):
        alignment([[0.0, 0.0], [1.0, 0.0]], [0, 0])
    for t in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InvalidInput, match="t: expected"):
            uniformity([[1.0, 0.0], [0.0, 1.0]], t)
    with pytest.raises(InvalidInput, match=r"max_pairs: expected .* got 1"):
        uniformity([[1.0, 0.0], [0.0, 1.0]], max_pairs=1)
