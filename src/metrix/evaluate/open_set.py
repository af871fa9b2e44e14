"""Measures of labelling where some queries are of no enrolled class, and of few-shot classification.

accuracy                of the queries of enrolled classes, the share with the right label, if none may be refused
auroc                   the probability that one of an enrolled class has a higher score than one of none
accuracy@false-accept   of the queries of enrolled classes, the share that is accepted and has the right label, where
                        at most a given share of the others is accepted ("detection and identification rate")
ece                     expected calibration error of the probability that the label is right, where half of the
                        queries are of no enrolled class and no label is right
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError, check_integer
from metrix.evaluate.estimate import Estimate

BINS = 15  # of the calibration error, of equal width


@dataclass(frozen=True, eq=False)
class OpenSetAnswers:
    """The answers to queries, some of which are of enrolled classes.

    >>> answers = OpenSetAnswers(
    ...     classes=np.array(["a", "a", "b", "c"]),
    ...     enrolled=np.array([True, True, True, False]),
    ...     right=np.array([True, False, True, False]),
    ...     score=np.array([0.9, 0.3, 0.8, 0.4]),
    ...     probability=np.array([0.9, 0.4, 0.7, 0.2]),
    ... )
    >>> {name: round(value, 3) for name, value in answers.measure(0.01).items()}
    {'accuracy': 0.667, 'auroc': 0.667, 'accuracy@false-accept': 0.667, 'ece': 0.233}
    """

    classes: NDArray[Any]  # (n,) the true class of each query
    enrolled: NDArray[np.bool_]  # (n,) whether that is enrolled
    right: NDArray[np.bool_]  # (n,) whether the label is right; never of a query whose class is not enrolled
    score: NDArray[np.float64]  # (n,) the higher, the more likely of an enrolled class
    probability: NDArray[np.float64] | None = None  # (n,) that the label is right
    accepted: NDArray[np.bool_] | None = None  # (n,) whether the chosen threshold accepts the query

    def measure(self, rate: float, weights: NDArray[np.float64] | None = None) -> dict[str, float]:
        """All measures, with at most the share `rate` of false accepts.

        `weights` (n,) say how often each query counts, as in a bootstrap; once by default.
        """
        counted = np.ones(len(self.score)) if weights is None else weights
        known, unknown = np.where(self.enrolled, counted, 0.0), np.where(self.enrolled, 0.0, counted)
        if not known.sum() or not unknown.sum():
            raise LabelError("open set: expected queries of enrolled classes and of others, got only one of the two")
        known, unknown = known / known.sum(), unknown / unknown.sum()
        levels = self._levels
        at_level = [np.bincount(levels, one) for one in (known, unknown, known * self.right)]
        below = np.cumsum(at_level[1]) - at_level[1]
        accepted = np.cumsum(at_level[1][::-1])[::-1]  # share of unknown queries at this level or above
        found = {
            "accuracy": float((known * self.right).sum()),
            "auroc": float((at_level[0] * (below + at_level[1] / 2)).sum()),
            "accuracy@false-accept": float(at_level[2][accepted <= rate * (1 + 1e-12)].sum()),
        }
        if self.probability is not None:
            gaps = (known + unknown) / 2 * (self.probability - self.right)
            found["ece"] = float(np.abs(np.bincount(self._bins, gaps, minlength=BINS)).sum())
        if self.accepted is not None:
            found["false-accept"] = float((unknown * self.accepted).sum())
            found["false-reject"] = float((known * ~self.accepted).sum())
        return found

    @cached_property
    def _levels(self) -> NDArray[np.intp]:
        return np.unique(self.score, return_inverse=True)[1].reshape(-1)

    @cached_property
    def _bins(self) -> NDArray[np.intp]:
        assert self.probability is not None
        return np.minimum((self.probability * BINS).astype(np.intp), BINS - 1)


def resample_open_set(
    draws: list[OpenSetAnswers], rate: float, resamples: int, rng: np.random.Generator
) -> Iterator[dict[str, float]]:
    """The mean of each measure over draws, for classes drawn with replacement, each with all of its queries.

    A class counts as often in every draw, whether it is enrolled there or not. Resamples without any class of one of
    the two kinds in some draw, which happens with a handful of classes, leave out that draw.
    """
    names, codes = np.unique(np.concatenate([one.classes for one in draws]), return_inverse=True)
    ends = np.cumsum([len(one.classes) for one in draws])
    parts = np.split(codes.reshape(-1), ends[:-1])
    for _ in range(resamples):
        times = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names)).astype(np.float64)
        found = [
            answers.measure(rate, times[part])
            for answers, part in zip(draws, parts, strict=True)
            if times[part[answers.enrolled]].any() and times[part[~answers.enrolled]].any()
        ]
        if found:
            yield {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def few_shot(
    vectors: NDArray[Any],
    labels: NDArray[Any],
    shots: int,
    *,
    ways: int = 5,
    queries: int = 15,
    episodes: int = 600,
    seed: int = 0,
) -> Estimate:
    """The mean accuracy of n-way k-shot episodes by the nearest class centroid, with its standard error.

    An episode draws `ways` classes, `shots` examples of each to enrol and `queries` others of each to label. The field
    reports the mean ± 1.96 standard errors over 600 episodes: how far other draws would be, not other classes.

    Raises:
        LabelError: fewer than `ways` classes have as many examples.
    """
    for name, value in (("shots", shots), ("ways", ways - 1), ("queries", queries), ("episodes", episodes)):
        check_integer(name, value, 1)
    unit = np.asarray(vectors, dtype=np.float64)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    names, codes = np.unique(labels, return_inverse=True)
    order = np.argsort(codes.reshape(-1), kind="stable")
    members = np.split(order, np.cumsum(np.bincount(codes.reshape(-1)))[:-1])
    large = [rows for rows in members if len(rows) >= shots + queries]
    if len(large) < ways:
        raise LabelError(
            f"few-shot: expected {ways} classes with {shots + queries} examples or more, got {len(large)} of "
            f"{len(names)}"
        )
    rng = np.random.default_rng(seed)
    scores = np.empty(episodes)
    for episode in range(episodes):
        chosen = [rng.permutation(large[n]) for n in rng.choice(len(large), ways, replace=False)]
        centroids = np.stack([unit[rows[:shots]].sum(axis=0) for rows in chosen])
        centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
        asked = unit[np.concatenate([rows[shots : shots + queries] for rows in chosen])]
        scores[episode] = ((asked @ centroids.T).argmax(axis=1) == np.repeat(np.arange(ways), queries)).mean()
    return Estimate(float(scores.mean()), float(scores.std(ddof=1)) / math.sqrt(episodes), episodes)
