"""The result of a retrieval: means, intervals and the values of each query."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.confusion import Confusion
from metrix.evaluate.few_classes import describe_few_classes
from metrix.evaluate.vectors import Array
from metrix.messages import count


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Retrieval metrics by key (`recall@1`, `map@r`, …): means, confidence intervals, and the value of each query."""

    ks: tuple[int, ...]
    per_query: dict[str, NDArray[np.float64]] = field(repr=False)  # one value per answered query
    query_rows: NDArray[np.intp] = field(repr=False)  # row numbers of the answered queries
    query_labels: Array = field(repr=False)
    left_out: int  # queries that can find no example of their class
    gallery_size: int
    gallery_classes: int
    intervals: dict[str, tuple[float, float]] = field(repr=False)  # empty if they were not asked for
    confidence: float
    over: str = "classes"  # what the intervals resample
    search_loss: dict[str, float] | None = None  # of an approximate search: exact value - approximate value
    loss_sample: int = 0  # number of queries that the search loss is measured on
    confusion: Confusion | None = field(default=None, repr=False)  # if it was asked for
    sequences: int | None = None  # the number of sequences; None if examples have none
    only_in_own_sequence: int = 0  # of those left out, the queries whose class is only in their own sequence

    @property
    def queries(self) -> int:
        """The number of answered queries."""
        return len(self.query_rows)

    @cached_property
    def means(self) -> dict[str, float]:
        """Each metric averaged over the queries."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    @cached_property
    def classes(self) -> int:
        """The number of classes of the answered queries."""
        return len(np.unique(self.query_labels))

    @property
    def caution(self) -> str:
        """A sentence on how little figures of few classes mean; empty for five and more."""
        return describe_few_classes(min(self.classes, self.gallery_classes))

    @property
    def exclusion(self) -> str:
        """A sentence on the sequences that queries do not find; empty if examples have none."""
        if self.sequences is None:
            return ""
        alone = self.only_in_own_sequence
        left_out = f"; {count(alone, 'query')} left out, whose class is in their own sequence only" if alone else ""
        return f"{count(self.sequences, 'sequence')}: what is of a query's own does not count{left_out}"

    @property
    def recall(self) -> dict[int, float]:
        """Recall@K by K."""
        return {k: self.means[f"recall@{k}"] for k in self.ks}

    @property
    def precision(self) -> dict[int, float]:
        """Precision@K by K."""
        return {k: self.means[f"precision@{k}"] for k in self.ks}

    @property
    def map_at_k(self) -> dict[int, float]:
        """mAP@K by K."""
        return {k: self.means[f"map@{k}"] for k in self.ks}

    @property
    def map_at_r(self) -> float:
        """MAP@R."""
        return self.means["map@r"]

    @property
    def r_precision(self) -> float:
        """R-precision."""
        return self.means["r_precision"]

    @property
    def mean_average_precision(self) -> float | None:
        """mAP over the whole ranking; None for an approximate search, which returns only the nearest."""
        return self.means.get("map")

    @cached_property
    def per_class(self) -> dict[Any, dict[str, float]]:
        """For each class, its number of queries and the mean of each metric."""
        names, inverse = np.unique(self.query_labels, return_inverse=True)
        sizes = np.bincount(inverse.reshape(-1))
        columns = {
            name: np.bincount(inverse.reshape(-1), weights=values) / sizes for name, values in self.per_query.items()
        }
        return {
            label: {"queries": int(sizes[c]), **{name: float(column[c]) for name, column in columns.items()}}
            for c, label in enumerate(names.tolist())
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON: means, intervals and counts, without the per-query values."""
        return {
            "queries": self.queries,
            "left_out": self.left_out,
            "sequences": self.sequences,
            "only_in_own_sequence": self.only_in_own_sequence,
            "classes": self.classes,
            "gallery": self.gallery_size,
            "gallery_classes": self.gallery_classes,
            "few_classes": bool(self.caution),
            "measures": self.means,
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "confidence": self.confidence,
            "intervals_over": self.over if self.intervals else None,
            "search": "exact" if self.search_loss is None else "approximate",
            "search_loss": self.search_loss,
            "loss_sample": self.loss_sample,
        }
