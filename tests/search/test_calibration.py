"""Probabilities against their formula, scikit-learn and a literal likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from metrix.errors import InvalidInput, LabelError
from metrix.search import Index
from metrix.search import calibration as module
from metrix.search.calibration import (
    KnownAnswers,
    answer_items,
    class_probabilities,
    fit_calibration,
    known_probability,
    nearest_similarity,
)
from metrix.search.class_scores import EnrolledClasses, score_classes
from metrix.search.description import Calibration
from metrix.search.open_set import choose_open_set
from tests.search.test_class_scores import draw


def build(seed: int = 0, **settings: Any) -> tuple[Index, EnrolledClasses]:
    vectors, labels = draw(seed, **{"classes": 20, "most": 12, "dim": 8, **settings})
    index = Index.build(vectors, columns={"label": labels})
    return index, EnrolledClasses.read(index.store)


@pytest.fixture(scope="module")
def answers() -> KnownAnswers:
    return answer_items(*(lambda index, classes: (index.store, classes))(*build()))


def test_probabilities_are_those_of_the_formula() -> None:
    index, classes = build(3)
    queries, _ = draw(4, classes=5, dim=8)
    scores = score_classes(queries, index.store, classes, 4)
    numbers = Calibration(votes=7.0, centroid=3.0, bias=-4.0, slope=5.0, offset=-2.0, k=4)
    found, known = class_probabilities(scores, numbers), known_probability(scores, numbers)
    for n in range(len(queries)):
        expected = 1 / (1 + np.exp(-(5.0 * float(scores.neighbours.similarities[n, 0]) - 2.0)))
        assert known[n] == pytest.approx(expected, rel=1e-6)
        there = [m for m in range(found.shape[1]) if scores.classes[n, m] >= 0]
        odds = {m: np.exp(7.0 * scores.votes[n, m] + 3.0 * scores.centroids[n, m] - 4.0) for m in there}
        for m in there:
            assert found[n, m] == pytest.approx(expected * odds[m] / (1 + sum(odds.values())), rel=1e-6)
        assert found[n].sum() < known[n] < 1


def test_large_logits_do_not_overflow() -> None:
    index, classes = build(3)
    scores = score_classes(index.store.read_vectors(np.arange(5)), index.store, classes, 4)
    found = class_probabilities(
        scores, Calibration(votes=500.0, centroid=500.0, bias=500.0, slope=500.0, offset=0, k=4)
    )
    assert np.isfinite(found).all()
    assert (found.sum(axis=1) <= 1).all()


def test_the_known_part_is_that_of_scikit_learn(answers: KnownAnswers) -> None:
    values = np.concatenate([nearest_similarity(answers.known), nearest_similarity(answers.unknown)])
    target = np.repeat([1, 0], [len(answers.known.classes), len(answers.unknown.classes)])
    peer = LogisticRegression(C=1e8, class_weight="balanced", tol=1e-12, max_iter=10_000).fit(values[:, None], target)
    found = fit_calibration(answers)
    assert found.slope == pytest.approx(float(peer.coef_[0, 0]), rel=0.02)
    assert found.offset == pytest.approx(float(peer.intercept_[0]), rel=0.02)


def test_the_classes_have_the_greatest_likelihood(answers: KnownAnswers) -> None:
    scores, right = answers.known, answers.known_classes

    def literal(weights: Any) -> float:
        total = 0.0
        for n in range(len(right)):
            logits = [0.0]
            own = 0.0  # of a class that is no candidate
            for c, v, m in zip(scores.classes[n], scores.votes[n], scores.centroids[n], strict=True):
                if c >= 0:
                    logits.append(weights[0] * v + weights[1] * m + weights[2])
                    own = logits[-1] if c == right[n] else own
            total += np.logaddexp.reduce(logits) - own
        return total / len(right)

    found = fit_calibration(answers)
    numbers = np.array([found.votes, found.centroid, found.bias])
    peer = minimize(literal, numbers + np.array([2.0, -1.0, 1.0]), method="Nelder-Mead", options={"maxfev": 400})
    assert literal(numbers) <= peer.fun + 2e-3


def test_where_nothing_can_be_told_apart_the_nearer_class_still_comes_first() -> None:
    rng = np.random.default_rng(0)
    index = Index.build(rng.normal(size=(60, 30)), columns={"label": [f"{n % 20}" for n in range(60)]})
    classes = EnrolledClasses.read(index.store)
    found = fit_calibration(answer_items(index.store, classes))
    assert min(found.votes, found.centroid) >= 1


def test_a_deep_search_and_filters_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    index, classes = build(5)
    deep = answer_items(index.store, classes)
    monkeypatch.setattr(module, "DEEPEST", 15)  # classes of more than five items are filtered out
    both = answer_items(index.store, classes)
    assert sorted(deep.unknown_classes) == sorted(both.unknown_classes)
    for code in np.unique(deep.unknown_classes):
        mine = [np.sort(nearest_similarity(one.unknown)[one.unknown_classes == code]) for one in (deep, both)]
        assert mine[0] == pytest.approx(mine[1], abs=1e-6)


def test_what_cannot_be_calibrated_is_said() -> None:
    vectors, _ = draw(1)
    one_each = Index.build(vectors, columns={"label": [str(n) for n in range(len(vectors))]})
    with pytest.raises(LabelError, match="two images or more, got one image of each"):
        answer_items(one_each.store, EnrolledClasses.read(one_each.store))
    alone = Index.build(vectors, columns={"label": ["cat"] * len(vectors)})
    with pytest.raises(LabelError, match="two classes or more, got only 'cat'"):
        answer_items(alone.store, EnrolledClasses.read(alone.store))


@pytest.mark.parametrize(("target", "wanted"), [("false_accept", 0.05), ("false_reject", 0.1)])
def test_a_threshold_is_the_best_that_keeps_the_wanted_share(answers: KnownAnswers, target: str, wanted: float) -> None:
    _, classes = build()
    found = choose_open_set(answers, classes, target, wanted, resamples=50)
    chosen = found.open_set
    accepted, rejected = (found.unknown >= chosen.probability).mean(), (found.known < chosen.probability).mean()
    assert (chosen.false_accept, chosen.false_reject) == (accepted, rejected)
    limited, other = (accepted, rejected) if target == "false_accept" else (rejected, accepted)
    assert limited <= wanted
    for threshold in np.unique(np.concatenate([found.known, found.unknown])):
        a, r = (found.unknown >= threshold).mean(), (found.known < threshold).mean()
        if (a if target == "false_accept" else r) <= wanted:
            assert other <= (r if target == "false_accept" else a)
    for name, value in (("false_accept", accepted), ("false_reject", rejected)):
        low, high = found.intervals[name]
        assert low <= value <= high


def test_a_share_that_cannot_be_measured_is_refused(answers: KnownAnswers) -> None:
    _, classes = build()
    with pytest.raises(InvalidInput, match="expected at least 1 in"):
        choose_open_set(answers, classes, "false_accept", 1e-6)
    with pytest.raises(InvalidInput, match="--false-reject: expected a share between 0 and 1"):
        choose_open_set(answers, classes, "false_reject", 1.5)
