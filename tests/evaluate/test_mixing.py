"""Mixed embeddings as a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from metrix.errors import ChoiceError, InvalidInput, LabelError
from metrix.evaluate import mixed_embeddings, utilization
from tests.evaluate.vectors import points

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
    with pytest.raises(LabelError, match=r"in 1 class of at most 60: .* a second class"):
        mixed_embeddings(TRAIN, np.zeros(60), epochs=1)
