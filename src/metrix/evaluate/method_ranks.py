"""Methods compared over several datasets: ranks, Friedman's test and Nemenyi's critical difference (Demšar, 2006).

A dataset ranks the methods, from 1 for the best; ties share the mean of their ranks. Friedman's test asks whether mean
ranks over datasets differ more than chance would have it, the critical difference which two of them do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrix.errors import InvalidInput, check_integer, check_number
from metrix.evaluate.bootstrap import expanded_tail, resample_means

FEWEST_DATASETS = 3  # with fewer, ranks say nothing about other datasets
RESAMPLES, DRAWS = 4000, 9999


def rank_methods(scores: ArrayLike) -> NDArray[np.float64]:
    """The rank of each method on each dataset: 1 is the best score, ties share the mean of their ranks.

    Args:
        scores: (datasets, methods), higher is better.

    >>> rank_methods([[0.9, 0.7, 0.7], [0.1, 0.2, 0.3]]).tolist()
    [[1.0, 2.5, 2.5], [3.0, 2.0, 1.0]]
    """
    from scipy.stats import rankdata

    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise InvalidInput(f"scores: expected a row for each dataset, of at least 2 methods, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InvalidInput("scores: expected finite numbers, got NaN or infinity; leave the method or dataset out")
    ranks: NDArray[np.float64] = rankdata(-values, axis=1)
    return ranks


@dataclass(frozen=True)
class FriedmanTest:
    """Whether mean ranks differ: Friedman's χ², corrected for ties, and the F of Iman and Davenport that follows.

    The p-value is the share of draws, of those in which each dataset ranks the methods at random, whose χ² is as large:
    the usual approximations by χ² and F need more than ten datasets.
    """

    chi_square: float
    f: float
    p_value: float


def compare_ranks(ranks: NDArray[np.float64]) -> FriedmanTest:
    """Friedman's test on ranks (datasets, methods), of at least 2 datasets.

    >>> compare_ranks(rank_methods([[3, 2, 1], [3, 1, 2], [2, 3, 1], [3, 2, 1]])).chi_square
    4.5
    """
    datasets, methods = ranks.shape
    check_integer("datasets", datasets, least=2)
    around = ranks - (methods + 1) / 2
    spread = float((around**2).sum())
    if spread == 0:  # all methods are tied everywhere
        return FriedmanTest(0.0, 0.0, 1.0)
    between = float((around.sum(axis=0) ** 2).sum())
    chi_square = (methods - 1) * between / spread
    left = datasets * (methods - 1) - chi_square
    f = (datasets - 1) * chi_square / left if left > 1e-9 else math.inf  # inf: all datasets rank alike
    rng, as_large = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        sums = rng.permuted(around, axis=1).sum(axis=0)
        as_large += bool((sums**2).sum() >= between - 1e-9)
    return FriedmanTest(chi_square, f, (1 + as_large) / (1 + DRAWS))


def find_critical_difference(methods: int, datasets: int, confidence: float = 0.95) -> float:
    """Nemenyi's critical difference: two mean ranks that are at least so far apart differ by more than chance.

    >>> round(find_critical_difference(methods=4, datasets=14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    check_integer("methods", methods, least=2)
    check_integer("datasets", datasets, least=1)
    check_number("confidence", confidence, above=0.0, most=1 - 1e-9)
    q = float(studentized_range.ppf(confidence, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * datasets))


def group_methods(mean_ranks: Mapping[str, float], difference: float) -> list[tuple[str, ...]]:
    """The largest groups of methods whose mean ranks are less than a critical difference apart, the best first.

    >>> group_methods({"a": 1.2, "b": 2.0, "c": 2.9, "d": 3.9}, 1.0)
    [('a', 'b'), ('b', 'c')]
    """
    names = sorted(mean_ranks, key=mean_ranks.__getitem__)
    found: list[tuple[str, ...]] = []
    reached = 0
    for first in range(len(names)):
        last = max(n for n, name in enumerate(names) if mean_ranks[name] - mean_ranks[names[first]] < difference)
        if last > first and last + 1 > reached:
            found.append(tuple(names[first : last + 1]))
        reached = max(reached, last + 1)
    return found


def bound_mean_ranks(ranks: NDArray[np.float64], confidence: float = 0.95) -> NDArray[np.float64]:
    """Intervals (methods, 2) of the mean ranks over another draw of datasets, by the bootstrap.

    Percentiles are expanded for few datasets; bounds stay between the first and the last rank.
    """
    datasets, methods = ranks.shape
    check_integer("datasets", datasets, least=FEWEST_DATASETS)
    means = resample_means(ranks, np.arange(datasets), RESAMPLES, np.random.default_rng(0))
    tail = expanded_tail(confidence, datasets)
    bounds: NDArray[np.float64] = np.quantile(means, [tail, 1 - tail], axis=0).T
    return np.clip(bounds, 1, methods)
