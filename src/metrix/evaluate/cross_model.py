"""Recall@1 where queries and gallery are the same images by two models, as after a change of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.bootstrap import bootstrap_intervals
from metrix.evaluate.retrieval import find_first_classes

Interval = tuple[float, float]


@dataclass(frozen=True)
class CrossRecall:
    """Recall@1 of queries by one model in a gallery by the same or another one."""

    recall: float
    interval: Interval | None  # over classes, or over images without labels
    difference: float  # to the first search
    difference_interval: Interval | None
    same_class: float | None  # mean similarity of a query to the other images of its class

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class CrossRecalls:
    """Several searches with the same queries, of which the first is what the others are compared with."""

    searches: Mapping[str, CrossRecall]
    queries: int  # with another image of their class to find
    chance: float  # Recall@1 of a random order


def measure_across_models(
    sides: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]],
    labels: object,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> CrossRecalls:
    """Recall@1 of each (queries, gallery), where row i of all is image i, which is left out of its own answer.

    Args:
        sides: unit vectors (n, d) and (n, d) by the name of the search.
        labels: (n,) the class of each image; None where there are none: then an image's answer is itself.
        resamples: of the bootstrap over classes (or images), for 95 % intervals; 0 for none.
        seed: of the bootstrap.

    >>> new, old = np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32)[[1, 0, 3, 2]]
    >>> found = measure_across_models({"new": (new, new), "cross": (new, old)}, ["a", "a", "b", "b"], resamples=0)
    >>> found.searches["cross"].recall, found.searches["cross"].difference, round(found.chance, 2)
    (1.0, 0.5, 0.33)
    """
    count = len(next(iter(sides.values()))[0])
    names = np.arange(count) if labels is None else np.asarray(labels)
    alone = None if labels is None else np.arange(count).astype(str)  # a sequence of its own: not in its answer
    found = {key: find_first_classes(x, names, y, names, alone, alone) for key, (x, y) in sides.items()}
    rows = next(iter(found.values())).rows
    values = np.stack([one.right for one in found.values()], axis=1).astype(np.float64)
    values = np.concatenate([values, values - values[:, :1]], axis=1)
    rng = np.random.default_rng(seed)
    bounds = bootstrap_intervals(values, names[rows], resamples, 0.95, rng) if resamples else ()
    intervals: list[Interval | None] = [(float(low), float(high)) for low, high in bounds]
    intervals = intervals or [None] * values.shape[1]
    means = values.mean(axis=0)
    searches = {
        key: CrossRecall(
            float(means[n]),
            intervals[n],
            float(means[len(sides) + n]),
            intervals[len(sides) + n],
            None if labels is None else _same_class_similarity(*sides[key], names),
        )
        for n, key in enumerate(sides)
    }
    _, codes, sizes = np.unique(names, return_inverse=True, return_counts=True)
    chance = 1 / count if labels is None else float(((sizes[codes][rows] - 1) / (count - 1)).mean())
    return CrossRecalls(searches, len(rows), chance)


def _same_class_similarity(queries: NDArray[np.float32], gallery: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """The mean over queries of their mean similarity to the other images of their class."""
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), gallery.shape[1]))
    np.add.at(sums, codes, gallery)
    several = sizes[codes] > 1
    totals = (queries * (sums[codes] - gallery)).sum(axis=1)[several]
    return float((totals / (sizes[codes][several] - 1)).mean())
