"""Probabilities of classes and of "unknown", calibrated on the items of an index themselves.

    P(known) = 1 / (1 + e^{-(slope · s₁ + offset)})         s₁: the similarity of the nearest item
    P(c)     = P(known) · e^{z_c} / (1 + Σ e^{z_c'})        z_c = votes · v_c + centroid · m_c + bias

with the sum over the candidates of a query (`ClassScores`) and 1 for the classes that are none. The numbers are those
of greatest likelihood on queries whose answer is known: items without their own vote, whose class is enrolled, and the
same items without their whole class, which are of none. Both kinds count for half.

That the nearest item alone decides on "unknown" was measured: on characters it was the best at 1 % of false accepts,
of ten sets of numbers (votes, centroids, margins, sums over classes), some of which had up to 0.03 more AUROC; on cars,
where the model was weak, nothing was better by more than 0.04 of AUROC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError
from metrix.search.class_scores import (
    VOTERS,
    ClassScores,
    EnrolledClasses,
    join_scores,
    score_classes,
    score_without_class,
    search_without_class,
)
from metrix.search.description import Calibration
from metrix.search.stores import Store

SAMPLE = 1000  # items that a calibration is fitted on
DEEPEST = 2048  # neighbours of a search for those of other classes; for larger classes, a filter is faster
MOST_FILTERED = 20  # large classes that are left out by a filter, each by a search of its own
QUERIES = 256  # of a deep search
RIDGE = 1e-6  # keeps the weights finite where the classes are far apart
SMALLEST, LARGEST = 1.0, 500.0  # weights: where nothing can be told apart, the nearer class still comes first


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """Scores of queries whose answer is known: some of enrolled classes, some of none."""

    known: ClassScores
    known_classes: NDArray[np.int64]  # (n,) the right answers
    unknown: ClassScores
    unknown_classes: NDArray[np.int64]  # (m,) the class that was left out, for intervals over classes


def known_probability(scores: ClassScores, calibration: Calibration) -> NDArray[np.float64]:
    """The probability (q,) that a query is of an enrolled class; 0 where nothing was found."""
    from scipy.special import expit

    found: NDArray[np.float64] = expit(calibration.slope * nearest_similarity(scores) + calibration.offset)
    return np.where((scores.neighbours.rows >= 0).any(axis=1), found, 0.0)


def class_probabilities(scores: ClassScores, calibration: Calibration) -> NDArray[np.float64]:
    """The probability (q, m) of each candidate; 0 for none. What is left to 1 is unknown, or of another class."""
    logits = _logits(scores, (calibration.votes, calibration.centroid, calibration.bias))
    shift = np.maximum(logits.max(axis=1, initial=-np.inf), 0.0)[:, None]
    odds = np.exp(logits - shift)
    share: NDArray[np.float64] = odds / (np.exp(-shift) + odds.sum(axis=1, keepdims=True))
    return share * known_probability(scores, calibration)[:, None]


def nearest_similarity(scores: ClassScores) -> NDArray[np.float64]:
    """The similarity (q,) of the nearest item that votes; -1 for none."""
    near = scores.neighbours
    values = np.where(near.rows >= 0, near.similarities.astype(np.float64), -1.0)
    found: NDArray[np.float64] = values.max(axis=1, initial=-1.0)
    return found


def _logits(scores: ClassScores, weights: Any) -> NDArray[np.float64]:
    votes, centroid, bias = weights
    return np.where(scores.classes < 0, -np.inf, votes * scores.votes + centroid * scores.centroids + bias)


def fit_calibration(answers: KnownAnswers, k: int = VOTERS) -> Calibration:
    """The numbers of greatest likelihood, where half of the queries are of no enrolled class."""
    votes, centroid, bias = _fit_classes(answers)
    slope, offset = _fit_known(answers)
    return Calibration(votes=votes, centroid=centroid, bias=bias, slope=slope, offset=offset, k=k)


def _fit_classes(answers: KnownAnswers) -> list[float]:
    """The weights of votes and centroids, and the bias against classes that are no candidates."""
    from scipy.special import logsumexp, softmax

    scores, right = answers.known, answers.known.classes == answers.known_classes[:, None]
    target = np.concatenate([~right.any(axis=1, keepdims=True), right], axis=1)
    features = (scores.votes, scores.centroids, np.ones_like(scores.votes))

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = np.concatenate([np.zeros((len(right), 1)), _logits(scores, weights)], axis=1)
        excess = (softmax(logits, axis=1) - target)[:, 1:]
        value = float((logsumexp(logits, axis=1) - logits[target]).mean())
        return value, np.array([(excess * one).sum() for one in features]) / len(right)

    both = (SMALLEST, LARGEST)
    return _minimise(loss, [10.0, 10.0, 0.0], [both, both, (-LARGEST, LARGEST)])


def _fit_known(answers: KnownAnswers) -> list[float]:
    """Slope and offset of the nearest item's similarity."""
    from scipy.special import expit

    kinds = [(nearest_similarity(answers.known), 1.0), (nearest_similarity(answers.unknown), -1.0)]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = 0.0, np.zeros(2)
        for similarity, sign in kinds:
            logits = sign * (weights[0] * similarity + weights[1])
            value += 0.5 * float(np.logaddexp(0.0, -logits).mean())
            pull = -0.5 * sign * expit(-logits) / len(logits)
            slope += np.array([(pull * similarity).sum(), pull.sum()])
        return value, slope

    return _minimise(loss, [10.0, -5.0], [(0.0, LARGEST), (-LARGEST, LARGEST)])


def _minimise(
    loss: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    start: list[float],
    bounds: list[tuple[float, float]],
) -> list[float]:
    """Where a convex loss, with a ridge that keeps the result finite, is least."""
    from scipy.optimize import minimize

    def ridged(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = loss(weights)
        return value + RIDGE / 2 * float(weights @ weights), slope + RIDGE * weights

    options = {"maxiter": 500, "ftol": 1e-14, "gtol": 1e-8}
    found = minimize(ridged, np.array(start), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return [float(one) for one in found.x]


def answer_items(
    store: Store,
    classes: EnrolledClasses,
    k: int = VOTERS,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> KnownAnswers:
    """Score a sample of the items of an index, each without itself and without its class.

    Items whose class has no other item cannot be found, and are only queries of no class.

    Raises:
        LabelError: there is only one class, or no class has two items.
    """
    require_several(classes)
    rows = np.flatnonzero(classes.of_row >= 0)
    if not (classes.sizes > 1).any():
        raise LabelError(
            "calibration: expected a class with two images or more, got one image of each, so that nothing says how "
            "alike images of one class are; add images, or measure it on the run: metrix threshold RUN --open-set "
            "--shots 1"
        )
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    vectors, codes = store.read_vectors(rows), classes.of_row[rows].astype(np.int64)
    found = classes.sizes[codes] > 1
    known = score_classes(vectors[found], store, classes, k, own=rows[found])
    unknown, unknown_codes = score_as_unknown(vectors, codes, store, classes, k, progress)
    return KnownAnswers(known, codes[found], unknown, unknown_codes)


def answer_queries_of_classes(
    vectors: NDArray[np.float32], codes: NDArray[np.int64], store: Store, classes: EnrolledClasses, k: int = VOTERS
) -> KnownAnswers:
    """Score queries that are not in the index, of its classes `codes`, with and without their class."""
    require_several(classes)
    unknown, unknown_codes = score_as_unknown(vectors, codes, store, classes, k)
    return KnownAnswers(score_classes(vectors, store, classes, k), codes, unknown, unknown_codes)


def require_several(classes: EnrolledClasses) -> None:
    """Raise a LabelError unless there are two classes or more."""
    if len(classes) < 2:
        raise LabelError(
            f"calibration: expected two classes or more, got only {classes.names[0]!r}, so that nothing says how "
            "images of other classes look; add images of another class"
        )


def score_as_unknown(
    vectors: NDArray[np.float32],
    codes: NDArray[np.int64],
    store: Store,
    classes: EnrolledClasses,
    k: int = VOTERS,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[ClassScores, NDArray[np.int64]]:
    """Scores of queries as if their class were not enrolled, and the class of each; some of very large classes."""
    depth = classes.sizes[codes]
    shallow = np.flatnonzero(depth + k <= DEEPEST)
    shallow = shallow[np.argsort(depth[shallow], kind="stable")]  # similar depths together
    batches = [shallow[start : start + QUERIES] for start in range(0, len(shallow), QUERIES)]
    parts, order = [], list(batches)
    for n, batch in enumerate(batches, 1):
        parts.append(score_without_class(vectors[batch], codes[batch], store, classes, k))
        if progress is not None:
            progress(n, len(batches))
    for code in np.unique(codes[depth + k > DEEPEST])[:MOST_FILTERED].tolist():
        lot = np.flatnonzero(codes == code)
        parts.append(search_without_class(vectors[lot], code, store, classes, k))
        order.append(lot)
    return join_scores(parts), codes[np.concatenate(order)]
