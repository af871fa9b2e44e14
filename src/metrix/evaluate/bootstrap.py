"""How sure a mean over queries is: the bootstrap, and the paired bootstrap of two runs."""

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
    """A NumPy generator that continues the given one; seed 0 without one, so that reports repeat."""
    if generator is None:
        return np.random.default_rng(0)
    import torch

    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))


def resampled_means(values: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means (resamples, m) of values (n, m) over n rows drawn with replacement.

    One draw of rows serves all m columns. A draw is held as how often each row came, one draw at a
    time, so the memory does not grow with `resamples`.
    """
    count = len(values)
    means = np.empty((resamples, values.shape[1]))
    for draw in range(resamples):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        means[draw] = times @ values / count
    return means


def intervals(
    values: NDArray[np.float64], resamples: int, confidence: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Percentile intervals (m, 2) of the column means."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled_means(values, resamples, rng), [tail, 1 - tail], axis=0)
    return np.stack([low, high], axis=1)


def check_bootstrap(resamples: int, confidence: float, least: int) -> None:
    """Refuse settings that have no meaning."""
    check_integer("resamples", resamples, least)
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence={confidence}: accepted is a fraction between 0 and 1, as 0.95")


@dataclass(frozen=True)
class Difference:
    """One measure of two runs: b - a over the same queries, with its bootstrap interval."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs, by measure."""

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
    """mean over queries of (b_q - a_q), with a paired bootstrap over the queries.

    Both runs answered the same queries, so a hard query is hard for both and its difference is what
    is resampled: far sharper than two separate intervals. `p_value` is two-sided: twice the smaller
    share of resamples on one side of zero, (1 + hits) / (1 + resamples).

    >>> clean, mixed = retrieval(x, labels), retrieval(y, labels)       # doctest: +SKIP
    >>> compare(clean, mixed)["recall@1"].difference                    # doctest: +SKIP
    0.021
    """
    check_bootstrap(resamples, confidence, least=1)
    if len(a.query_rows) != len(b.query_rows) or not np.array_equal(a.query_rows, b.query_rows):
        raise ShapeError(
            f"the runs answered different queries ({a.queries} and {b.queries}): a paired comparison needs "
            "the same queries in the same order"
        )
    if not np.array_equal(a.query_labels, b.query_labels):
        raise LabelError("the runs have different labels for the same queries: a paired comparison needs one dataset")
    names = [name for name in a.per_query if name in b.per_query]
    if not names:
        raise InvalidInput(
            f"the runs share no measure: one has {', '.join(a.per_query)}, the other {', '.join(b.per_query)}"
        )
    values = np.stack([b.per_query[name] - a.per_query[name] for name in names], axis=1)
    means = resampled_means(values, resamples, numpy_generator(generator))
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    # A mean that is zero up to rounding counts for both sides.
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
