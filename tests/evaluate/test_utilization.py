from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrix.errors import ChoiceError, EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.evaluate import mixed_embeddings, utilization
from tests.evaluate import literal


def points(seed: int, n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * rng.uniform(0.1, 10, (n, 1))).astype(dtype)


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


# ---- mixed embeddings

TRAIN = points(3, 60, 4)
LABELS = np.repeat(np.arange(12), 5)


@pytest.mark.parametrize("pairs", ["pos-neg", "anc-neg", "pos-pos", "neg-neg", ("pos-neg", "anc-neg")])
def test_each_anchor_is_mixed_once_an_epoch(pairs: Any) -> None:
    blocks = list(mixed_embeddings(TRAIN, LABELS, epochs=3, pairs=pairs, rows_at_once=25))
    assert [len(block) for block in blocks] == [25, 25, 10] * 3
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(blocks), axis=1), 1, atol=1e-12)
    assert blocks[0].dtype == np.float64
    assert next(mixed_embeddings(TRAIN.astype(np.float32), LABELS, epochs=1)).dtype == np.float32


@pytest.mark.parametrize(
    ("pairs", "same", "different"),
    [("pos-neg", False, True), ("anc-neg", False, True), ("pos-pos", True, False), ("neg-neg", True, True)],
)
def test_pairs_are_of_the_classes_they_say(pairs: str, same: bool, different: bool) -> None:
    # On basis vectors a mixed embedding shows what it was made of.
    train = np.eye(12)
    labels = np.repeat(np.arange(4), 3)
    seen = set()
    for block in mixed_embeddings(train, labels, epochs=40, pairs=pairs, renormalise=False):
        np.testing.assert_allclose(block.sum(axis=1), 1, atol=1e-12)
        for v in block:
            parts = np.flatnonzero(v)
            assert len(parts) in (1, 2)
            seen.add(len(set(labels[parts])) == 1)
    assert seen == ({True} if same else set()) | ({False} if different else set())


def test_the_anchor_is_not_among_its_positives() -> None:
    # In classes of two the only positive is the other one: each comes once an epoch, mixed with itself.
    for block in mixed_embeddings(np.eye(8), np.arange(8) // 2, epochs=5, pairs="pos-pos"):
        np.testing.assert_allclose(block.sum(axis=0), 1, atol=1e-12)


def test_lambda_is_beta_and_the_generator_decides() -> None:
    train, labels = np.eye(4), [0, 0, 1, 1]

    def draw(seed: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(seed)
        blocks = mixed_embeddings(
            train, labels, epochs=2000, alpha=2.0, pairs="anc-neg", generator=generator, renormalise=False
        )
        return np.concatenate(list(blocks))

    v = draw(0)
    assert np.array_equal(v, draw(0))
    assert not np.array_equal(v, draw(1))
    lam = v[:, :2].sum(axis=1)  # λ for an anchor of class 0, 1-λ for class 1: the same law
    assert lam.mean() == pytest.approx(0.5, abs=0.01)
    assert lam.var() == pytest.approx(1 / 20, rel=0.05)  # Beta(2, 2)
    # Every negative of an anchor comes, equally often.
    partner = (v[:, 2:] > 0).sum(axis=0)
    assert partner / len(v) == pytest.approx([0.5, 0.5], abs=0.03)


def test_mixing_lowers_utilization_and_anchors_without_a_pair_are_left_out() -> None:
    Q = points(9, 40, 4)
    assert utilization(Q, TRAIN, mixed_embeddings(TRAIN, LABELS, epochs=10)) < utilization(Q, TRAIN)
    lonely = np.concatenate([np.zeros(58, dtype=int), [1, 2]])
    assert sum(map(len, mixed_embeddings(TRAIN, lonely, epochs=1))) == 58
    assert sum(map(len, mixed_embeddings(TRAIN, lonely, epochs=1, pairs="anc-neg"))) == 60


def test_unusable_settings_are_refused_at_the_call() -> None:
    with pytest.raises(ChoiceError, match="did you mean 'pos-neg'"):
        mixed_embeddings(TRAIN, LABELS, 1, pairs="pos-ned")
    for wrong in ({"epochs": 0}, {"epochs": 1, "alpha": 0.0}, {"epochs": 1, "pairs": ()}):
        with pytest.raises(InvalidInput, match="expected"):
            mixed_embeddings(TRAIN, LABELS, **wrong)
    with pytest.raises(LabelError, match="positives need a class of two"):
        mixed_embeddings(TRAIN, np.arange(60), epochs=1)
    with pytest.raises(LabelError, match="a second class"):
        mixed_embeddings(TRAIN, np.zeros(60), epochs=1)
