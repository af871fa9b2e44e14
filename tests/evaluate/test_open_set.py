"""Open-set measures against scikit-learn and literal loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import normalize

from metrix.errors import LabelError
from metrix.evaluate.open_set import OpenSetAnswers, few_shot, resample_open_set


def draw(seed: int, count: int = 300, digits: int = 8) -> OpenSetAnswers:
    """Answers with ties where `digits` is small."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 20, count)
    enrolled = classes < 12
    score = np.round(rng.normal(size=count) + enrolled, digits)
    return OpenSetAnswers(
        classes, enrolled, enrolled & (rng.random(count) < 0.7), score, rng.random(count), rng.random(count) < 0.5
    )


def repeat(answers: OpenSetAnswers, times: Any) -> OpenSetAnswers:
    """The same answers, each so many times."""
    fields = ("classes", "enrolled", "right", "score", "probability", "accepted")
    return OpenSetAnswers(*(np.repeat(getattr(answers, name), times) for name in fields))


def literal_ece(answers: OpenSetAnswers) -> float:
    """Fifteen bins; the queries of enrolled classes weigh as much as the others, all together."""
    assert answers.probability is not None
    weight = np.where(answers.enrolled, 0.5 / answers.enrolled.sum(), 0.5 / (~answers.enrolled).sum())
    total = 0.0
    for b in range(15):
        rows = [n for n, p in enumerate(answers.probability) if b / 15 <= p < (b + 1) / 15 or (b == 14 and p == 1)]
        share = sum(weight[n] for n in rows)
        if share:
            sure = sum(weight[n] * answers.probability[n] for n in rows) / share
            right = sum(weight[n] * answers.right[n] for n in rows) / share
            total += share * abs(sure - right)
    return total


def literal_accuracy_at(answers: OpenSetAnswers, rate: float) -> float:
    """The best of all thresholds that accept few enough unknown queries."""
    best = 0.0
    for threshold in np.append(answers.score, np.inf):
        if (answers.score[~answers.enrolled] >= threshold).mean() <= rate:
            accepted = answers.right[answers.enrolled] & (answers.score[answers.enrolled] >= threshold)
            best = max(best, float(accepted.mean()))
    return best


@pytest.mark.parametrize("digits", [8, 1, 0])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_measures_are_those_of_independent_computations(digits: int, rate: float) -> None:
    answers = draw(digits, digits=digits)
    found = answers.measure(rate)
    assert answers.accepted is not None
    assert found["auroc"] == pytest.approx(roc_auc_score(answers.enrolled, answers.score), abs=1e-12)
    assert found["accuracy"] == pytest.approx(answers.right[answers.enrolled].mean(), abs=1e-12)
    assert found["accuracy@false-accept"] == pytest.approx(literal_accuracy_at(answers, rate), abs=1e-12)
    assert found["ece"] == pytest.approx(literal_ece(answers), abs=1e-12)
    assert found["false-accept"] == pytest.approx(answers.accepted[~answers.enrolled].mean())
    assert found["false-reject"] == pytest.approx(1 - answers.accepted[answers.enrolled].mean())


def test_weights_are_repetitions() -> None:
    answers = draw(5, digits=1)
    times = np.random.default_rng(0).integers(0, 4, len(answers.score))
    assert answers.measure(0.05, times.astype(float)) == pytest.approx(repeat(answers, times).measure(0.05))


def test_classes_are_drawn_with_all_their_queries() -> None:
    draws = [draw(7), draw(8)]
    (found,) = resample_open_set(draws, 0.1, 1, np.random.default_rng(3))
    times = np.bincount(np.random.default_rng(3).integers(20, size=20), minlength=20)
    both = [repeat(one, times[one.classes]).measure(0.1) for one in draws]
    assert found == pytest.approx({name: (both[0][name] + both[1][name]) / 2 for name in both[0]})


def test_one_kind_of_queries_only_is_an_error() -> None:
    alone = OpenSetAnswers(np.array([1, 2]), np.array([True, True]), np.array([True, True]), np.array([0.1, 0.2]))
    with pytest.raises(LabelError, match="got only one of the two"):
        alone.measure(0.1)


@pytest.mark.parametrize("shots", [1, 5])
def test_episodes_are_those_of_scikit_learn(shots: int) -> None:
    """The same draws, classified by scikit-learn's nearest centroid of unit vectors."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 25)
    vectors = rng.normal(size=(8, 6))[labels] + 1.2 * rng.normal(size=(200, 6))
    found = few_shot(vectors, labels, shots, episodes=40, seed=1)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    again, scores = np.random.default_rng(1), []
    for _ in range(40):
        chosen = [again.permutation(np.flatnonzero(labels == n)) for n in again.choice(8, 5, replace=False)]
        enrolled, asked = (
            np.concatenate([rows[part] for rows in chosen]) for part in (slice(shots), slice(shots, shots + 15))
        )
        names = np.unique(labels[enrolled])
        centroids = normalize([unit[[n for n in enrolled if labels[n] == name]].mean(axis=0) for name in names])
        peer = KNeighborsClassifier(1).fit(centroids, names)
        scores.append((peer.predict(unit[asked]) == labels[asked]).mean())
    assert float(found) == pytest.approx(np.mean(scores))
    assert found.standard_error == pytest.approx(np.std(scores, ddof=1) / np.sqrt(40))
    assert found.sampled == 40
    with pytest.raises(LabelError, match="expected 5 classes with 30 examples"):
        few_shot(vectors, labels, 15)
