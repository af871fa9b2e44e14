"""How well classes that were never trained on are told apart, and from unknown ones, with few images enrolled.

In each draw, half of the classes are enrolled and a quarter is unknown; the rest is kept to calibrate on where each
class has one image. What is enrolled is an index in memory, and is calibrated as `metrix classify` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, check_integer
from metrix.evaluate.bootstrap import expanded_tail
from metrix.evaluate.open_set import OpenSetAnswers, few_shot, resample_open_set
from metrix.runs.evaluation import Examples
from metrix.runs.open_set import answer_others, draw_shots
from metrix.runs.output import write_output
from metrix.runs.trained_model import TrainedModel
from metrix.search import LABEL, Index
from metrix.search.calibration import (
    answer_items,
    class_probabilities,
    fit_calibration,
    known_probability,
    nearest_similarity,
)
from metrix.search.class_scores import VOTERS, EnrolledClasses, join_scores, score_classes
from metrix.search.items import unit_vectors
from metrix.search.open_set import accept_at_most
from metrix.train.batches import Report, ignore_report

FILE = "open_set_evaluation.json"
FORMAT = 1
FEWEST = 8  # classes: four enrolled, two unknown, two to calibrate on
WAYS, QUERIES = 5, (15, 5)  # of few-shot episodes; fewer queries where classes are small


@dataclass(frozen=True)
class OpenSetMeasure:
    """A measure: its mean over draws, half its 95 % interval over draws, and its 95 % interval over classes."""

    mean: float
    over_draws: float | None  # None for one draw
    over_classes: tuple[float, float] | None  # None without resamples


@dataclass(frozen=True)
class ShotsResult:
    """All measures with so many images of each class enrolled; None: all."""

    shots: int | None
    classes: float  # enrolled, in the mean over draws
    queries: tuple[int, int]  # of enrolled and of unknown classes, over all draws
    measures: dict[str, OpenSetMeasure]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        measures = {
            name: {"mean": one.mean, "over_draws": one.over_draws, "over_classes": one.over_classes}
            for name, one in self.measures.items()
        }
        counts = {"classes": self.classes, "chance": 1 / self.classes, "queries": list(self.queries)}
        return {"shots": self.shots, **counts, "measures": measures}


@dataclass(frozen=True)
class OpenSetEvaluation:
    """What was measured, and on what."""

    about: dict[str, Any]
    results: tuple[ShotsResult, ...]
    episodes: dict[str, tuple[float, float]]  # "5-way 1-shot, …": mean accuracy and 1.96 standard errors

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        episodes = {name: {"mean": mean, "margin": margin} for name, (mean, margin) in self.episodes.items()}
        results = [one.to_dict() for one in self.results]
        return {"format": FORMAT, **self.about, "results": results, "few_shot": episodes}


def evaluate_open_set(
    examples: Examples,
    shots: Sequence[int | None] = (1, 5, None),
    *,
    draws: int = 10,
    rate: float = 0.01,
    resamples: int = 200,
    k: int = VOTERS,
    seed: int = 0,
    report: Report = ignore_report,
) -> OpenSetEvaluation:
    """Measure labelling and refusing on classes never seen in training.

    Args:
        examples: labelled embeddings; queries and gallery are taken together.
        shots: images of each class to enrol; None for all, each of which is then asked about without itself.
        draws: of enrolled and unknown classes, and of the enrolled images.
        rate: share of the unknown queries that may be accepted.
        resamples: of the bootstrap over classes; 0 for no intervals over classes.
        k: neighbours that vote.
        seed: of draws and bootstrap.
        report: is called with the progress.

    Raises:
        LabelError: there are too few classes, or all have too few images.
        InvalidInput: the examples are of sequences, which cannot be left out here.
    """
    check_integer("draws", draws, 1)
    if not 0 < rate < 1:
        raise InvalidInput(f"false accept: expected a share between 0 and 1, such as 0.01, got {rate:g}")
    if examples.sequences is not None:
        raise InvalidInput("--open-set: expected data without sequences, got some; give --ignore-sequences with it")
    vectors, labels = examples.everything
    vectors = unit_vectors(vectors)
    names = np.unique(labels)
    if len(names) < FEWEST:
        raise LabelError(f"--open-set: expected {FEWEST} classes or more to draw from, got {len(names)}")
    results = []
    for n, one in enumerate(shots):
        answers = []
        for draw in range(draws):
            answers.append(_draw(vectors, labels, names, one, np.random.default_rng([seed, draw]), rate, k))
            report("drawing classes", n * draws + draw + 1, len(shots) * draws)
        results.append(_summarise(one, answers, rate, resamples, seed))
    about = {
        **(examples.about or {}),
        "images": len(vectors),
        "classes": len(names),
        "draws": draws,
        "false_accept": rate,
        "resamples": resamples,
    }
    return OpenSetEvaluation(about, tuple(results), _measure_episodes(vectors, labels, shots, seed))


def _draw(
    vectors: NDArray[np.float32],
    labels: NDArray[Any],
    names: NDArray[Any],
    shots: int | None,
    rng: np.random.Generator,
    rate: float,
    k: int,
) -> OpenSetAnswers:
    """The answers of one draw of enrolled and unknown classes."""
    order = rng.permutation(len(names))
    half, rest = len(names) // 2, len(names) - len(names) // 2
    enrolled, unknown, spare = np.split(names[order], [half, half + (rest + 1) // 2])
    pool = np.flatnonzero(np.isin(labels, enrolled))
    rows = pool if shots is None else pool[draw_shots(labels[pool], shots, rng)]
    store = Index.build(vectors[rows], columns={LABEL: labels[rows].tolist()}).store
    classes = EnrolledClasses.read(store)
    if shots == 1:
        both = np.flatnonzero(np.isin(labels, spare))
        calibrating, _ = answer_others(vectors, labels, np.sort(_append_one_each(labels, rows, both, rng)), k, both)
    else:
        calibrating = answer_items(store, classes, k, seed=int(rng.integers(2**31)))
    calibration = fit_calibration(calibrating, k)
    others = np.flatnonzero(np.isin(labels, unknown))
    if shots is None:
        alone = np.isin(
            labels[rows], [name for name, size in zip(classes.names, classes.sizes, strict=True) if size == 1]
        )
        asked, own = rows[~alone], np.flatnonzero(~alone)
    else:
        asked, own = np.setdiff1d(pool[np.isin(labels[pool], np.array(classes.names))], rows), None
    known = score_classes(vectors[asked], store, classes, k, own=own)
    scores = join_scores([known, score_classes(vectors[others], store, classes, k)])
    probability = class_probabilities(scores, calibration)
    queries = np.concatenate([asked, others])
    best = np.asarray(classes.names)[np.maximum(scores.classes[np.arange(len(queries)), probability.argmax(axis=1)], 0)]
    is_enrolled = np.arange(len(queries)) < len(asked)
    refused = known_probability(calibrating.unknown, calibration)
    threshold = accept_at_most(refused, rate) if rate * len(refused) >= 1 else None
    return OpenSetAnswers(
        labels[queries],
        is_enrolled,
        is_enrolled & (best == labels[queries]),
        nearest_similarity(scores),
        probability.max(axis=1),
        None if threshold is None else known_probability(scores, calibration) >= threshold,
    )


def _append_one_each(
    labels: NDArray[Any], rows: NDArray[np.int64], others: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows that are enrolled, and one of each class of some others."""
    return np.concatenate([rows, others[draw_shots(labels[others], 1, rng)]])


def _summarise(shots: int | None, answers: list[OpenSetAnswers], rate: float, resamples: int, seed: int) -> ShotsResult:
    from scipy.stats import t

    found = [one.measure(rate) for one in answers]
    names = [name for name in found[0] if all(name in one for one in found)]
    classes = len(np.unique(np.concatenate([one.classes for one in answers])))
    drawn = list(resample_open_set(answers, rate, resamples, np.random.default_rng(seed)))
    tail = expanded_tail(0.95, classes)
    measures = {}
    for name in names:
        values = np.array([one[name] for one in found])
        spread = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
        mean = float(values.mean())
        measures[name] = OpenSetMeasure(
            mean,
            None if spread is None else float(t.ppf(0.975, len(values) - 1)) * spread,
            _bound(name, mean, np.array([one[name] for one in drawn]), tail) if drawn else None,
        )
    enrolled = float(np.mean([len(np.unique(one.classes[one.enrolled])) for one in answers]))
    asked = np.concatenate([one.enrolled for one in answers])
    return ShotsResult(shots, enrolled, (int(asked.sum()), int((~asked).sum())), measures)


def _bound(name: str, mean: float, drawn: NDArray[np.float64], tail: float) -> tuple[float, float]:
    """The interval over classes of a measure, from its resamples."""
    low, high = (float(one) for one in np.quantile(drawn, [tail, 1 - tail]))
    if name == "ece":
        # Noise only adds to a mean of absolute values, and resampling adds it once more: of a calibrated probability
        # and 60 classes, percentiles held the truth in none of 150 simulated samples, reversed ones in 71 %.
        low, high = max(min(2 * mean - high, mean), 0.0), max(2 * mean - low, mean)
    return low, high


def _measure_episodes(
    vectors: NDArray[Any], labels: NDArray[Any], shots: Sequence[int | None], seed: int
) -> dict[str, tuple[float, float]]:
    """n-way k-shot accuracy, where enough classes have enough images."""
    found = {}
    for one in shots:
        for queries in QUERIES if one is not None else ():
            try:
                estimate = few_shot(vectors, labels, one or 1, ways=WAYS, queries=queries, seed=seed)
            except LabelError:
                continue
            name = f"{WAYS}-way {one}-shot, {queries} queries of each"
            found[name] = (float(estimate), 1.96 * estimate.standard_error)
            break
    return found


def write_open_set_evaluation(model: TrainedModel, result: OpenSetEvaluation) -> Path:
    """Write an evaluation into the run's folder."""
    path = model.run.path / FILE
    text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path
