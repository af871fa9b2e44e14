from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metrix import losses
from metrix.errors import ChoiceError, InvalidInput, LabelError
from metrix.evaluate import positivity
from tests.evaluate import literal

LAMS = np.linspace(0, 1, 11)


class LiteralMultiSimilarity:
    """eq. MS over mixed examples, to the letter."""

    def __init__(self, beta: float = 18.0, gamma: float = 75.0, margin: float = 0.77) -> None:
        self.beta, self.gamma, self.margin = beta, gamma, margin

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
        pos = (Y * torch.exp(-self.beta * (S - self.margin)) * valid).sum(1)
        neg = ((1 - Y) * torch.exp(self.gamma * (S - self.margin)) * valid).sum(1)
        return torch.log1p(pos) / self.beta + torch.log1p(neg) / self.gamma


class Hinge:
    """eq. contr: flat, so with derivative zero, where a negative is far."""

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
        return ((-Y * S + (1 - Y) * torch.relu(S - 0.5)) * valid).sum(1)


def clusters(seed: int, n: int, classes: int, d: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    return rng.standard_normal((classes, d))[labels] + noise * rng.standard_normal((n, d)), labels


def literal_curves(x: Any, labels: Any, lams: Any, loss: Any, renormalise: bool) -> tuple[list, list]:
    """Both curves over one batch, each mixed embedding formed, each derivative taken alone."""
    x = literal.unit(x)
    n, empirical, theoretical = len(x), [], []
    for lam in lams:
        positive, below, total = 0, 0, 0
        for a in range(n):
            S = []
            for i in range(n):
                for j in range(n):
                    if i != a and labels[i] == labels[a] != labels[j]:
                        v = lam * x[i] + (1 - lam) * x[j]
                        S.append(float(x[a] @ v) / (float(np.linalg.norm(v)) if renormalise else 1.0))
            if not S:
                continue
            s = torch.tensor([S], dtype=torch.float64, requires_grad=True)
            loss.rows(s, torch.full_like(s, lam), torch.ones_like(s, dtype=torch.bool)).sum().backward()
            positive += int((s.grad <= 0).sum())
            threshold = (
                math.copysign(math.inf, lam - 0.5)
                if lam in (0, 1)
                else math.log(lam / (1 - lam)) / (loss.beta + loss.gamma) + loss.margin
            )
            below += sum(value <= threshold for value in S)
            total += len(S)
        empirical.append(positive / total)
        theoretical.append(below / total)
    return empirical, theoretical


@pytest.mark.parametrize("renormalise", [True, False])
def test_curves_are_their_definition(renormalise: bool) -> None:
    x, labels = clusters(0, 18, 4, 5)
    labels[:2] = [8, 9]  # alone in their class: negatives, but not anchors
    loss = LiteralMultiSimilarity(margin=0.3)
    empirical, theoretical = literal_curves(x, labels, LAMS, loss, renormalise)
    curves = positivity(x, labels, LAMS, loss, renormalise=renormalise, lam_per="batch")
    np.testing.assert_allclose(curves.empirical, empirical, atol=1e-12)
    np.testing.assert_allclose(curves.theoretical, theoretical, atol=1e-12)
    assert 0.02 < np.mean(empirical) < 0.98


class Recording(LiteralMultiSimilarity):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(margin=0.3)
        self.calls: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
        if valid.shape[1] > 1:  # not a probe of the threshold
            self.calls.append((S.detach().numpy(), Y.numpy(), valid.numpy()))
        return super().rows(S, Y, valid)


def test_each_pair_meets_every_lambda_once_beside_pairs_of_other_lambdas() -> None:
    x, labels = clusters(0, 18, 3, 5)
    loss = Recording()
    curves = positivity(x, labels, LAMS, loss)
    S, Y, valid = (np.stack(part) for part in zip(*loss.calls, strict=True))  # (turns, anchors, pairs)
    assert (valid == valid[0]).all()
    assert valid[0].sum() == curves.similarities == 18 * 5 * 12
    np.testing.assert_array_equal(np.sort(Y, axis=0), np.broadcast_to(LAMS[:, None, None], Y.shape))
    assert len(np.unique(Y[0, 0])) > 5
    # The curve is the share of derivatives <= 0 among the pairs of each λ, by the formula of the paper.
    t = S - loss.margin
    pos, neg = valid * Y * np.exp(-loss.beta * t), valid * (1 - Y) * np.exp(loss.gamma * t)
    slope = -pos / (1 + pos.sum(2, keepdims=True)) + neg / (1 + neg.sum(2, keepdims=True))
    np.testing.assert_allclose(curves.empirical, [(slope[(lam == Y) & valid] <= 0).mean() for lam in LAMS])
    theory = positivity(x, labels, LAMS, LiteralMultiSimilarity(margin=0.3), lam_per="batch").theoretical
    np.testing.assert_array_equal(curves.theoretical, theory)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(1, 40), st.floats(1, 90), st.floats(-0.5, 0.9), st.integers(0, 10_000))
def test_both_curves_are_one_for_a_single_pair(lam: float, beta: float, gamma: float, margin: float, seed: int) -> None:
    # Two of a class and one of another: each of the two anchors has exactly one mixed embedding.
    x = np.random.default_rng(seed).standard_normal((3, 4))
    curves = positivity(x, [0, 0, 1], [lam], losses.MultiSimilarity(beta, gamma, margin))
    assert curves.similarities == 2
    assert curves.empirical[0] == curves.theoretical[0]


def epoch_zero() -> tuple[np.ndarray, np.ndarray]:
    """An untrained head: all similarities are near the margin 0.77, whatever the class."""
    rng = np.random.default_rng(1)
    labels = np.arange(200) % 40
    return 1.83 + 0.2 * rng.standard_normal((40, 1024))[labels] + rng.standard_normal((200, 1024)), labels


def test_the_sigmoid_of_the_figure() -> None:
    x, labels = epoch_zero()
    curves = positivity(x, labels, LAMS, losses.MultiSimilarity(), renormalise=False)
    for curve in (curves.empirical, curves.theoretical):
        assert curve[0] == 0.0
        assert curve[-1] == 1.0
        assert (np.diff(curve) >= 0).all()
        assert curve[1] < 0.2
        assert curve[-2] > 0.8
        assert curve[6] - curve[4] > curve[2] - curve[0]  # steepest in the middle
    np.testing.assert_allclose(curves.empirical, curves.theoretical, atol=0.25)  # "agree in general"


def test_one_lambda_for_all_pairs_cancels_out() -> None:
    x, labels = epoch_zero()
    flat = positivity(x, labels, [0.2, 0.8], losses.MultiSimilarity(), renormalise=False, lam_per="batch")
    assert abs(flat.empirical[1] - flat.empirical[0]) < 0.15


def test_the_limits_at_zero_and_one() -> None:
    x, labels = clusters(2, 60, 6, 8)
    curves = positivity(x, labels, [0.0, 1.0], losses.MultiSimilarity())
    assert curves.empirical.tolist() == curves.theoretical.tolist() == [0.0, 1.0]
    assert curves.zero.tolist() == [0.0, 0.0]


def test_the_library_loss_is_the_literal_one() -> None:
    x, labels = clusters(3, 60, 8, 8)
    ours = positivity(x, labels, LAMS, losses.MultiSimilarity())
    assert np.array_equal(ours.empirical, positivity(x, labels, LAMS, LiteralMultiSimilarity()).empirical)


def test_every_example_is_an_anchor_once() -> None:
    x, labels = clusters(4, 100, 20, 6)  # five of each class: one batch of 20 x 5
    assert positivity(x, labels, [0.5], LiteralMultiSimilarity()).similarities == 100 * 4 * 95
    halves = positivity(x, labels, [0.5], LiteralMultiSimilarity(), batch_size=50)
    assert halves.similarities == 100 * 4 * 45


def test_order_does_not_matter_within_one_batch() -> None:
    x, labels = clusters(5, 60, 6, 8)
    order = np.random.default_rng(0).permutation(60)
    names = np.array(list("abcdef"))[labels]
    loss = losses.MultiSimilarity(margin=0.2)
    first = positivity(x, labels, LAMS, loss, lam_per="batch")
    other = positivity(9 * x[order], names[order], LAMS, loss, lam_per="batch")
    np.testing.assert_allclose(other.empirical, first.empirical, atol=1e-12)
    np.testing.assert_allclose(other.theoretical, first.theoretical, atol=1e-12)


def test_a_loss_without_the_closed_form_has_only_the_empirical_curve() -> None:
    x, labels = clusters(6, 60, 6, 8)
    for loss in (Hinge(), losses.Contrastive(), losses.BinomialDeviance(beta=2.0, gamma=50.0, margin=0.5)):
        curves = positivity(x, labels, [0.2, 0.5, 0.8], loss)
        assert np.isnan(curves.theoretical).all()
        assert ((curves.empirical >= 0) & (curves.empirical <= 1)).all()


def test_flat_parts_count_as_positive_and_are_stated() -> None:
    x, labels = clusters(6, 60, 6, 8)
    curves = positivity(x, labels, [0.0, 0.4, 0.6], Hinge())
    assert curves.empirical[0] == curves.zero[0] > 0.5  # λ=0: a far negative is left alone
    assert curves.zero[1:].tolist() == [0.0, 0.0]


def test_an_undefined_end_is_not_a_number() -> None:
    x, labels = clusters(6, 60, 6, 8)
    curves = positivity(x, labels, [0.0, 0.5, 1.0], losses.NCA(), lam_per="batch")
    assert np.isnan(curves.empirical).tolist() == [True, False, True]
    among_others = positivity(x, labels, [0.0, 0.5, 1.0], losses.NCA())
    assert among_others.empirical.tolist()[::2] == [0.0, 1.0]


def test_csv(tmp_path: Path) -> None:
    x, labels = clusters(7, 60, 6, 8)
    for loss, empty in ((losses.MultiSimilarity(), False), (Hinge(), True)):
        curves = positivity(x, labels, [0.1, 0.5], loss)
        curves.to_csv(tmp_path / "curves.csv")
        with (tmp_path / "curves.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["lam"]) for row in rows] == [0.1, 0.5]
        assert [float(row["empirical"]) for row in rows] == curves.empirical.tolist()
        assert all((row["theoretical"] == "") == empty for row in rows)


def test_unusable_input_is_refused() -> None:
    x, labels = clusters(8, 20, 4, 3)
    loss = LiteralMultiSimilarity()
    for lams in ([], [1.1], [-0.1], [math.nan], [[0.5]]):
        with pytest.raises(InvalidInput, match="lams"):
            positivity(x, labels, lams, loss)
    with pytest.raises(InvalidInput, match="has no rows"):
        positivity(x, labels, [0.5], torch.nn.ReLU())  # type: ignore[arg-type]
    for wrong in ({"per_class": 1}, {"batch_size": 5}):
        with pytest.raises(InvalidInput, match="positive and a negative"):
            positivity(x, labels, [0.5], loss, **wrong)
    with pytest.raises(ChoiceError, match="did you mean 'pair'"):
        positivity(x, labels, [0.5], loss, lam_per="pairs")
    with pytest.raises(LabelError, match="two classes"):
        positivity(x, np.zeros(20, dtype=int), [0.5], loss)
    with pytest.raises(LabelError, match="two classes"):
        positivity(x, np.arange(20), [0.5], loss)
