"""Confidence intervals of means over queries by the bootstrap, and the paired bootstrap of two runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, ShapeError, check_integer

if TYPE_CHECKING:
    import torch

    from metrix.evaluate.retrieval import Retrieval


def numpy_generator(generator: torch.Generator | None) -> np.random.Generator:
    """A NumPy generator seeded from the given one; without one, with seed 0, so that results repeat."""
    if generator is None:
        return np.random.default_rng(0)
    import torch

    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


def resample_means(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means (resamples, m) of values (n, m) over n rows drawn with replacement.

    All m columns share the drawn rows. One draw is held at a time, as the number of times each row was drawn,
    so memory does not grow with `resamples`.
    """
    count = len(values)
    means = np.empty((resamples, values.shape[1]))
    for draw in range(resamples):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        means[draw] = times @ values / count
    return means


def bootstrap_intervals(
    values: NDArray[np.float64], resamples: int, confidence: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Percentile intervals (m, 2) of the column means."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(resample_means(values, resamples, rng), [tail, 1 - tail], axis=0)
    return np.stack([low, high], axis=1)


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

    def __getitem__(self, measure: str) -> Difference:
        return self.differences[measure]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "queries": self.queries,
            "confidence": self.confidence,
            "resamples": self.resamples,
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
    generator: torch.Generator | None = None,
) -> Comparison:
    """The mean difference b - a of every metric that both runs have, with a paired bootstrap over the queries.

    Both runs answered the same queries, so a query that is hard for one is mostly hard for the other. Resampling the
    per-query differences uses this and gives much narrower intervals than comparing two separate ones.

    Args:
        a: the baseline, from `retrieval`.
        b: the run to compare with it, on the same queries in the same order.
        resamples: number of bootstrap samples.
        confidence: of the intervals.
        generator: source of randomness; without one, results repeat.

    Returns:
        A `Comparison`. Its p-values are two-sided: twice the smaller fraction of resampled means on one side of zero,
        with 1 added to both counts of the fraction.

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
    means = resample_means(values, resamples, numpy_generator(generator))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    # A mean that is zero up to rounding counts on both sides.
    below, above = (means <= 1e-15).sum(axis=0), (means >= -1e-15).sum(axis=0)
    p_values = np.minimum(1.0, 2 * (1 + np.minimum(below, above)) / (1 + resamples))
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
    return Comparison(differences, a.queries, confidence, resamples)
