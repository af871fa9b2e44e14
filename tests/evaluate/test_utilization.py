from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import EmbeddingError, InvalidInput, ShapeError
from metrix.evaluate import utilization
from tests.evaluate import literal
from tests.evaluate.vectors import points


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("blocks", [None, 7])
def test_utilization_is_its_definition(monkeypatch: pytest.MonkeyPatch, dtype: Any, blocks: Any) -> None:
    if blocks:
        module = importlib.import_module("metrix.evaluate.utilization")
        monkeypatch.setattr(module, "QUERIES_AT_ONCE", blocks)
        monkeypatch.setattr(module, "EXAMPLES_AT_ONCE", blocks + 2)
    queries, train, mixed = points(0, 30, 6, dtype), points(1, 50, 6, dtype), points(2, 40, 6, dtype)
    everything = np.concatenate([train, mixed])
    assert utilization(queries, train) == pytest.approx(literal.utilization(queries, train), abs=1e-9)
    expected = literal.utilization(queries, everything)
    for form in (mixed, torch.from_numpy(mixed), mixed.tolist(), [mixed[:15], mixed[15:]]):
        if dtype == np.float64 or not isinstance(form, list):
            assert utilization(queries, train, form) == pytest.approx(expected, abs=1e-9)
    assert utilization(queries, train, (mixed[i : i + 9] for i in range(0, 40, 9))) == pytest.approx(expected, abs=1e-9)


def test_candidates_closer_than_float32_are_told_apart() -> None:
    # Distances of 1e-8 and less vanish in a float32 cosine of unit vectors.
    angle = np.array([1e-4, 2e-4, 0.5e-4, 3e-4])
    train = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert utilization([[1.0, 0.0]], train) == pytest.approx((0.5e-4) ** 2, rel=1e-6)


def test_a_collapsed_training_set() -> None:
    # All examples are within float32's doubt of each other: too many candidates to measure one by one.
    train = [1.0, 2.0, 3.0, 4.0] + 1e-7 * np.random.default_rng(0).standard_normal((500, 4))
    queries = points(0, 20, 4)
    assert utilization(queries, train) == pytest.approx(literal.utilization(queries, train), abs=1e-9)
    same = np.tile(train[:1], (500, 1))
    assert utilization(queries, same) == pytest.approx(literal.utilization(queries, train[:1]), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 30), st.integers(1, 30))
def test_laws(seed: int, queries: int, train: int, mixed: int) -> None:
    Q, X, M = points(seed, queries, 3), points(seed + 1, train, 3), points(seed + 2, mixed, 3)
    clean, more = utilization(Q, X), utilization(Q, X, M)
    assert more <= clean  # X is part of X̂
    assert 0 <= more <= clean <= 4
    order = np.random.default_rng(seed).permutation(queries)
    assert utilization(Q[order], 3 * X[::-1]) == pytest.approx(clean, abs=1e-12)
    assert utilization(X, X) == pytest.approx(0, abs=1e-20)


def test_sampled_queries_state_an_error_that_covers_the_truth() -> None:
    Q, X = points(0, 300, 4), points(1, 50, 4)
    exact = utilization(Q, X)
    assert exact.exact
    off = []
    for seed in range(40):
        drawn = utilization(Q, X, max_queries=60, generator=torch.Generator().manual_seed(seed))
        assert drawn.sampled == 60
        off.append((drawn - exact) / drawn.standard_error)
    assert 0.7 < np.std(off) < 1.3
    assert utilization(Q, X, max_queries=300).exact


def test_a_stream_is_taken_block_by_block() -> None:
    alive, most = 0, 0

    class Block(np.ndarray):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[np.ndarray]:
        nonlocal alive, most
        for seed in range(10):
            block = points(seed, 5, 3).view(Block)
            alive += 1
            most = max(most, alive)
            yield block
            del block

    utilization(points(0, 4, 3), points(1, 4, 3), stream())
    assert most <= 3


def test_unusable_input_is_refused() -> None:
    Q, X = points(0, 5, 3), points(1, 5, 3)
    with pytest.raises(ShapeError, match="queries of 3 columns and train embeddings of 2"):
        utilization(Q, X[:, :2])
    with pytest.raises(ShapeError, match="mixed embeddings of 2"):
        utilization(Q, X, [X[:, :2]])
    with pytest.raises(InvalidInput, match=r"mixed: expected .* got int"):
        utilization(Q, X, 7)
    with pytest.raises(EmbeddingError, match="train embeddings hold NaN"):
        utilization(Q, X * np.nan)
    with pytest.raises(InvalidInput, match=r"max_queries: expected .* got 1"):
        utilization(Q, X, max_queries=1)
