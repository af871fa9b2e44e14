"""The table of metrics: every name, order, direction and unit that a table, page or file shows comes from here.

A new retrieval metric is a function in `metrix.evaluate.rank_metrics` and a row here. `evaluate.retrieval` then
computes it, with its interval and per-class means, and `metrix evaluate` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from metrix.errors import unknown_choice
from metrix.evaluate import rank_metrics
from metrix.evaluate.clustering import clustering
from metrix.evaluate.geometry import alignment, uniformity
from metrix.evaluate.utilization import utilization

Cutoff: TypeAlias = Literal["k", "R", "none"]


@dataclass(frozen=True)
class Metric:
    """One row of the table of metrics.

    A metric at a cut-off K is one row for all K: its key ends in `@k` and its name in `@K`, and `key_at(4)` is `map@4`.
    """

    key: str  # in files and in Python
    name: str  # as papers write it
    description: str
    function: Callable[..., Any]  # what computes it; for retrieval, a function of `rank_metrics`
    higher_is_better: bool = True
    unit: str = "%"  # "%": a fraction, shown as a percentage
    cutoff: Cutoff | None = None  # retrieval only: how many results of a query count; "R": as many as its positives
    in_reports: bool = False  # whether reports, which have room for a few retrieval metrics, show it

    @property
    def at_k(self) -> bool:
        """Whether it is measured at each of several cut-offs K."""
        return self.cutoff == "k"

    def key_at(self, k: int) -> str:
        """The key at one cut-off, such as `recall@1`; the key itself if there is no K in it."""
        return re.sub("@k$", f"@{k}", self.key)

    def name_at(self, k: int) -> str:
        """The name at one cut-off, such as `Recall@1`; the name itself if there is no K in it."""
        return re.sub("@K$", f"@{k}", self.name)


# In the order in which tables show them.
METRICS = (
    Metric(
        "recall@k",
        "Recall@K",
        "fraction of queries with an example of their class among the K nearest, as the paper defines it",
        rank_metrics.recall,
        cutoff="k",
        in_reports=True,
    ),
    Metric(
        "map@r",
        "MAP@R",
        "average precision of the R nearest, where R is the number of positives of the query",
        rank_metrics.average_precision,
        cutoff="R",
        in_reports=True,
    ),
    Metric(
        "r_precision",
        "R-precision",
        "fraction of positives among the R nearest",
        rank_metrics.precision,
        cutoff="R",
        in_reports=True,
    ),
    Metric(
        "map",
        "mAP",
        "mean average precision over the whole ranking",
        rank_metrics.average_precision,
        cutoff="none",
    ),
    Metric(
        "precision@k",
        "Precision@K",
        "fraction of positives among the K nearest",
        rank_metrics.precision,
        cutoff="k",
    ),
    Metric(
        "map@k",
        "mAP@K",
        "average precision of the K nearest",
        rank_metrics.average_precision,
        cutoff="k",
    ),
    Metric(
        "ndcg@k",
        "NDCG@K",
        "gain of the K nearest, discounted by rank, as a share of the best possible; gains are degrees of labels, or 1",
        rank_metrics.ndcg,
        cutoff="k",
    ),
    Metric(
        "nmi",
        "NMI",
        "normalised mutual information of k-means clusters and classes",
        clustering,
    ),
    Metric(
        "ami",
        "AMI",
        "mutual information of k-means clusters and classes, adjusted for chance",
        clustering,
    ),
    Metric(
        "alignment",
        "alignment",
        "mean squared distance of two examples of a class",
        alignment,
        higher_is_better=False,
        unit="",
    ),
    Metric(
        "uniformity",
        "uniformity",
        "log of the mean of exp(-2 d²) over all pairs of examples, d their distance",
        uniformity,
        higher_is_better=False,
        unit="",
    ),
    Metric(
        "utilization",
        "utilization",
        "mean squared distance of a test example to the nearest training example",
        utilization,
        higher_is_better=False,
        unit="",
    ),
)


def retrieval_metrics() -> list[Metric]:
    """The metrics that are functions of a ranking, in the order of the table."""
    return [metric for metric in METRICS if metric.cutoff is not None]


def find_metric(key: str) -> Metric:
    """The row of the table that a key belongs to.

    Args:
        key: `map@r`, `nmi`, …; for a metric at a cut-off, with the number, such as `recall@1`.

    Raises:
        ChoiceError: if the table has no such metric.

    >>> find_metric("recall@10").name, find_metric("alignment").higher_is_better
    ('Recall@K', False)
    """
    general = re.sub(r"@[1-9]\d*$", "@k", key)
    for metric in METRICS:
        if metric.key == general and metric.at_k == (general != key):
            return metric
    raise unknown_choice("metric", key, [metric.key for metric in METRICS])


def metric_name(key: str) -> str:
    """A metric's name as papers write it.

    >>> metric_name("recall@1"), metric_name("map@4"), metric_name("map@r")
    ('Recall@1', 'mAP@4', 'MAP@R')
    """
    metric = find_metric(key)
    return metric.name_at(int(key.rpartition("@")[2])) if metric.at_k else metric.name


def sort_keys(keys: Iterable[str]) -> list[str]:
    """Keys of metrics in the order of the table; the cut-offs of one metric keep the order given.

    >>> sort_keys(["map@4", "map@r", "recall@1", "recall@4"])
    ['recall@1', 'recall@4', 'map@r', 'map@4']
    """
    return sorted(keys, key=lambda key: METRICS.index(find_metric(key)))
