"""Confidence intervals of means over queries by the bootstrap, and the paired bootstrap of two runs.

What a model is measured on is a draw of *classes*, and queries of one class succeed or fail together: resampling
classes says how far another draw of classes would be from this one. Resampling queries says how far other images of
the same classes would be, which is less.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, ShapeError, check_integer, unknown_choice

if TYPE_CHECKING:
    import torch

    from metrix.evaluate.retrieved import Retrieval

UNITS = ("classes", "queries")  # what a bootstrap can draw


def numpy_generator(generator: torch.Generator | None) -> np.random.Generator:
    """A NumPy generator seeded from the given one; without one, with seed 0, so that results repeat."""
    if generator is None:
        return np.random.default_rng(0)
    import torch

    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


def resample_means(
    values: NDArray[np.float64], units: NDArray[Any], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Means (resamples, m) of values (n, m) over units drawn with replacement, each with all of its rows.

    All m columns share the draws. One draw is held at a time, as the number of times each unit was drawn, so memory
    does not grow with `resamples`.

    Args:
        values: one row for each query.
        units: (n,) what was drawn: the class of each query, or its own number.
        resamples: number of draws.
        rng: source of randomness.
    """
    _, inverse = np.unique(units, return_inverse=True)
    sizes = np.bincount(inverse.reshape(-1))
    sums = np.stack([np.bincount(inverse.reshape(-1), weights=column) for column in values.T], axis=1)
    count = len(sizes)
    means = np.empty((resamples, values.shape[1]))
    for draw in range(resamples):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        means[draw] = times @ sums / (times @ sizes)
    return means


def expanded_tail(confidence: float, units: int) -> float:
    """The quantile at which a percentile interval of a mean over few units has its nominal coverage.

    Percentiles of a bootstrap are too narrow twice for n units: their variance has n in place of n - 1, and they are
    those of a normal distribution where Student's t is due. Φ(√(n / (n-1)) · t(tail, n-1)) makes up for both
    (Hesterberg, 2015, "expanded percentile interval"); for many units it is the tail itself.

    >>> round(expanded_tail(0.95, 10), 4), round(expanded_tail(0.95, 10_000), 4)
    (0.0086, 0.025)
    """
    from scipy.stats import norm, t

    return float(norm.cdf(math.sqrt(units / (units - 1)) * t.ppf((1 - confidence) / 2, units - 1)))


def _nominal_tail(tail: NDArray[np.float64], units: int) -> NDArray[np.float64]:
    """The reverse of `expanded_tail`: the tail of Student's t for a share of resampled means."""
    from scipy.stats import norm, t

    found: NDArray[np.float64] = t.cdf(norm.ppf(tail) / math.sqrt(units / (units - 1)), units - 1)
    return found


def bootstrap_intervals(
    values: NDArray[np.float64], units: NDArray[Any], resamples: int, confidence: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Expanded percentile intervals (m, 2) of the column means; none, (0, 2), for a single unit."""
    count = len(np.unique(units))
    if count < 2:
        return np.empty((0, 2))
    tail = expanded_tail(confidence, count)
    low, high = np.quantile(resample_means(values, units, resamples, rng), [tail, 1 - tail], axis=0)
    return np.stack([low, high], axis=1)


def choose_units(over: str, labels: NDArray[Any]) -> NDArray[Any]:
    """The unit of each query: its class, or itself."""
    if over not in UNITS:
        raise unknown_choice("bootstrap unit", over, UNITS)
    return labels if over == "classes" else np.arange(len(labels))


def check_bootstrap(resamples: int, confidence: float, least: int) -> None:
    """Raise InvalidInput unless resamples ≥ `least` and 0 < confidence < 1."""
    check_integer("resamples", resamples, least)
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence: expected a fraction between 0 and 1, such as 0.95, got {confidence}")


@dataclass(frozen=True)
class Difference:
    """The difference b - a of one metric between two runs on the same queries, with its bootstrap interval."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs, by metric; `comparison["recall@1"]` is one of them."""

    differences: dict[str, Difference]
    queries: int
    confidence: float
    resamples: int
    over: str = "classes"  # what the bootstrap draws
    classes: int = 0  # of the queries

    def __getitem__(self, measure: str) -> Difference:
        return self.differences[measure]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "queries": self.queries,
            "confidence": self.confidence,
            "resamples": self.resamples,
            "over": self.over,
            "classes": self.classes,
            "differences": {
                name: {**asdict(value), "significant": value.significant} for name, value in self.differences.items()
            },
        }


def compare(
    a: Retrieval,
    b: Retrieval,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    over: str = "classes",
    generator: torch.Generator | None = None,
) -> Comparison:
    """The mean difference b - a of every metric that both runs have, with a paired bootstrap over the classes.

    Both runs answered the same queries, so a query that is hard for one is mostly hard for the other. Resampling the
    per-query differences, by class, uses this and gives much narrower intervals than comparing two separate ones.

    Args:
        a: the baseline, from `retrieval`.
        b: the run to compare with it, on the same queries in the same order.
        resamples: number of bootstrap samples.
        confidence: of the intervals.
        over: what is drawn with replacement: `classes`, each with all its queries, or `queries`.
        generator: source of randomness; without one, results repeat.

    Returns:
        A `Comparison`. Its p-values are two-sided, from the smaller fraction of resampled means on one side of zero,
        with 1 added to both counts of the fraction, and widened for few classes as the intervals are. With queries of
        a single class nothing can be said about others: intervals are infinite and p-values 1.

    Raises:
        ShapeError, LabelError: if the runs answered different queries, or with different labels.
        InvalidInput: if they have no metric in common.

    >>> from metrix.evaluate import retrieval
    >>> labels = [0, 0, 1, 1]
    >>> a = retrieval([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]], labels, ks=(1,))
    >>> b = retrieval([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], labels, ks=(1,))
    >>> compare(a, b)["recall@1"].difference
    1.0
    """
    check_bootstrap(resamples, confidence, least=1)
    if len(a.query_rows) != len(b.query_rows) or not np.array_equal(a.query_rows, b.query_rows):
        raise ShapeError(
            f"the runs answered different queries ({a.queries} and {b.queries}): a paired comparison needs "
            "the same queries in the same order"
        )
    if not np.array_equal(a.query_labels, b.query_labels):
        raise LabelError("the runs have different labels for the same queries: a paired comparison needs the same data")
    names = [name for name in a.per_query if name in b.per_query]
    if not names:
        raise InvalidInput(
            f"the runs have no metric in common: one has {', '.join(a.per_query)}, the other {', '.join(b.per_query)}"
        )
    values = np.stack([b.per_query[name] - a.per_query[name] for name in names], axis=1)
    units = choose_units(over, a.query_labels)
    low, high, p_values = _bound_differences(values, units, resamples, confidence, numpy_generator(generator))
    differences = {
        name: Difference(
            a=a.means[name],
            b=b.means[name],
            difference=float(values[:, m].mean()),
            low=float(low[m]),
            high=float(high[m]),
            p_value=float(p_values[m]),
        )
        for m, name in enumerate(names)
    }
    return Comparison(differences, a.queries, confidence, resamples, over, len(np.unique(a.query_labels)))


def _bound_differences(
    values: NDArray[np.float64], units: NDArray[Any], resamples: int, confidence: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds of the column means, and their p-values."""
    count, columns = len(np.unique(units)), values.shape[1]
    if count < 2:
        return np.full(columns, -np.inf), np.full(columns, np.inf), np.ones(columns)
    means = resample_means(values, units, resamples, rng)
    tail = expanded_tail(confidence, count)
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    # A mean that is zero up to rounding counts on both sides.
    below, above = (means <= 1e-15).sum(axis=0), (means >= -1e-15).sum(axis=0)
    smaller = np.minimum(1 + np.minimum(below, above), (1 + resamples) / 2) / (1 + resamples)
    return low, high, 2 * _nominal_tail(smaller, count)
