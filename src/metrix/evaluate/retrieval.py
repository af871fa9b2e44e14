"""Retrieval metrics: does a query find its class?

Each metric of `metrix.evaluate.metrics` is computed for every query from the ranks of the gallery examples of its
class (`metrix.evaluate.rank_metrics` has the definitions) and averaged over the queries.

With a `relation`, examples are relevant in degrees: `metrix.evaluate.graded`.

Similarity is the cosine. Equal similarities rank in the order of the rows, lower row number first. A query is left out
of its own gallery by its row number, so a copy of it in another row stays and counts. A cut-off K may exceed the size
of the gallery: nothing more is found there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, ShapeError, check_integer
from metrix.evaluate import rank_metrics
from metrix.evaluate.approximate import RowSearcher, Searcher, count_in_neighbours
from metrix.evaluate.bootstrap import bootstrap_intervals, check_bootstrap, choose_units, numpy_generator
from metrix.evaluate.confusion import Confusion, count_confusion
from metrix.evaluate.few_classes import describe_few_classes
from metrix.evaluate.graded import GradedTask, as_graded
from metrix.evaluate.metrics import Metric, find_metric, retrieval_metrics
from metrix.evaluate.ranks import Counts, Task, count_negatives_before
from metrix.evaluate.vectors import Array, Vectors, number_classes, read_labels

if TYPE_CHECKING:
    import torch

    from metrix.core.relations import Relation

KS = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Retrieval metrics by key (`recall@1`, `map@r`, …): means, confidence intervals, and the value of each query."""

    ks: tuple[int, ...]
    per_query: dict[str, NDArray[np.float64]] = field(repr=False)  # one value per answered query
    query_rows: NDArray[np.intp] = field(repr=False)  # row numbers of the answered queries
    query_labels: Array = field(repr=False)
    left_out: int  # queries without another example of their class
    gallery_size: int
    gallery_classes: int
    intervals: dict[str, tuple[float, float]] = field(repr=False)  # empty if they were not asked for
    confidence: float
    over: str = "classes"  # what the intervals resample
    search_loss: dict[str, float] | None = None  # of an approximate search: exact value - approximate value
    loss_sample: int = 0  # number of queries that the search loss is measured on
    confusion: Confusion | None = field(default=None, repr=False)  # if it was asked for

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


def recall_at_k(
    embeddings: object,
    labels: object,
    ks: Sequence[int] = KS,
    gallery: object = None,
    gallery_labels: object = None,
    relation: Relation | None = None,
) -> dict[int, float]:
    """Recall@K: the fraction of queries with an example of their class among their K nearest neighbours.

    Args:
        embeddings: the queries (n, d), normalised here. Without a gallery, each is a query against all others.
        labels: the class of each.
        ks: the cut-offs K.
        gallery: embeddings (m, d) to search instead; a query is then not left out of it.
        gallery_labels: the class of each.
        relation: how relevant classes are to each other (`metrix.labels`), with labels that are their numbers. Then
            the fraction of queries with an example whose degree is above the relation's `positive_above`.

    Returns:
        A fraction in [0, 1] for each K. Queries without a positive to find do not count; `retrieval(...).left_out` is
        their number.

    Raises:
        LabelError: if no query has a positive to find.

    >>> recall_at_k([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]], ["a", "b", "b", "a"], ks=(1, 2))
    {1: 0.0, 2: 0.75}
    """
    found = count_hits(embeddings, labels, ks, gallery, gallery_labels, relation=relation)
    return {k: hits / found.queries for k, hits in found.hits.items()}


class HitCounts(NamedTuple):
    """The number of answered queries, and of those with an example of their class among the K nearest."""

    queries: int
    hits: dict[int, int]  # by K
    ndcg: dict[int, float] | None = None  # by K, summed over queries, where examples are relevant in degrees


def count_hits(
    embeddings: object,
    labels: object,
    ks: Sequence[int] = KS,
    gallery: object = None,
    gallery_labels: object = None,
    share: tuple[int, int] = (0, 1),
    relation: Relation | None = None,
) -> HitCounts:
    """The counts whose quotient is Recall@K, for the queries of one process: `share` is its (rank, world size).

    The counts of all processes add up to those of a single process. The other arguments are those of `recall_at_k`.
    """
    chosen = _read_ks(ks)
    task, _, _ = _read_task(embeddings, labels, gallery, gallery_labels, relation)
    rank, world = share
    everything = _select_answerable(task)
    wanted = everything[len(everything) * rank // world : len(everything) * (rank + 1) // world]
    found = dict.fromkeys(chosen, 0)
    if isinstance(task, GradedTask):
        gains = dict.fromkeys(chosen, 0.0)
        for block in task.count_blocks(wanted) if len(wanted) else ():
            nearest = block.before[block.offsets[:-1]]
            for k in found:
                found[k] += int((nearest < k).sum())
                gains[k] += float(block.ndcg(k).sum()) if block.ndcg else 0.0
        return HitCounts(len(wanted), found, gains)
    for block in count_negatives_before(task, wanted, first_only=True) if len(wanted) else ():
        for k in found:
            found[k] += int((block.before < k).sum())  # its rank is before + 1
    return HitCounts(len(wanted), found)


def retrieval(
    embeddings: object,
    labels: object,
    ks: Sequence[int] = KS,
    gallery: object = None,
    gallery_labels: object = None,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    over: str = "classes",
    generator: torch.Generator | None = None,
    searcher: Searcher | RowSearcher | None = None,
    loss_sample: int = 1000,
    confusion: bool = False,
    relation: Relation | None = None,
) -> Retrieval:
    """Recall@K, Precision@K, mAP@K, NDCG@K, MAP@R, R-precision and mAP, with intervals, per query and per class.

    Args:
        embeddings: the queries (n, d), normalised here. Without a gallery, each is a query against all others.
        labels: the class of each.
        ks: the cut-offs K.
        gallery: embeddings (m, d) to search instead; a query is then not left out of it.
        gallery_labels: the class of each.
        resamples: bootstrap samples for the confidence intervals; 0 skips them.
        confidence: of the intervals.
        over: what the intervals resample: `classes`, for what another draw of classes would give (none with queries of
            a single class), or `queries`, for other queries of the same classes.
        generator: source of randomness; without one, results repeat.
        searcher: an index of the same gallery, with row numbers as ids, to use instead of the exact search. mAP, which
            needs the whole ranking, is then not computed.
        loss_sample: with a searcher, the number of queries on which the loss against the exact search is measured.
        confusion: whether to count which classes the wrong queries find first.
        relation: how relevant classes are to each other, in degrees (`metrix.labels`), with labels that are their
            numbers; or give `labels` that a function of `metrix.labels` made. Positives, which Recall@K and the like
            count, are then the examples whose degree is above the relation's `positive_above`; NDCG@K has the degrees.

    Returns:
        A `Retrieval`. Queries without a positive to find are left out and counted.

    Raises:
        LabelError: if no query has a positive to find.

    >>> result = retrieval([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]], [0, 1, 1, 0], ks=(1, 2))
    >>> result.recall, round(result.map_at_r, 3), result.queries, result.left_out
    ({1: 0.0, 2: 0.75}, 0.0, 4, 0)

    >>> from metrix.labels import Hierarchy
    >>> alike = Hierarchy([0, 0, 1], weight=0.5)  # classes 0 and 1 are of one group
    >>> vectors = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2], [0.1, 1.0]]
    >>> found = retrieval(vectors, [0, 1, 2, 0, 2], ks=(1,), relation=alike)
    >>> found.recall[1], round(found.means["ndcg@1"], 3)
    (0.5, 0.75)
    """
    chosen = _read_ks(ks)
    check_bootstrap(resamples, confidence, least=0)
    if loss_sample < 1:
        raise InvalidInput(f"loss_sample: expected an integer ≥ 1, got {loss_sample}")
    task, query_labels, names_of_classes = _read_task(embeddings, labels, gallery, gallery_labels, relation)
    if isinstance(task, GradedTask) and searcher is not None:
        raise InvalidInput(
            "searcher: expected none with labels in degrees, which are measured over the whole ranking; leave it out"
        )
    wanted = _select_answerable(task)
    rng = numpy_generator(generator)

    # Recall@1 last, whether or not it is wanted: which queries are wrong
    columns = [*_columns(chosen, whole_ranking=searcher is None), _Column("recall@1", find_metric("recall@1"), 1)]
    search_loss, sampled = None, 0
    if isinstance(task, GradedTask):
        values = _measure(task, wanted, columns, task.count_blocks(wanted))
    elif searcher is None:
        values = _measure(task, wanted, columns, count_negatives_before(task, wanted))
    else:
        values = _measure(task, wanted, columns, count_in_neighbours(task, wanted, max(chosen), searcher))
        sample = np.sort(rng.choice(len(wanted), size=min(loss_sample, len(wanted)), replace=False))
        exact = _measure(task, wanted[sample], columns, count_negatives_before(task, wanted[sample]))
        lost = (exact - values[sample]).mean(axis=0)
        search_loss = {column.key: float(lost[m]) for m, column in enumerate(columns[:-1])}
        sampled = len(sample)
    right, values = values[:, -1] > 0, values[:, :-1]
    names = [column.key for column in columns[:-1]]
    units = choose_units(over, query_labels[wanted])
    bounds = bootstrap_intervals(values, units, resamples, confidence, rng) if resamples else np.empty((0, 2))
    return Retrieval(
        ks=chosen,
        per_query={name: np.ascontiguousarray(values[:, m]) for m, name in enumerate(names)},
        query_rows=wanted,
        query_labels=query_labels[wanted],
        left_out=len(task.queries) - len(wanted),
        gallery_size=len(task.gallery),
        gallery_classes=len(np.unique(task.gallery_class)),
        intervals={name: (float(low), float(high)) for name, (low, high) in zip(names, bounds, strict=False)},
        confidence=confidence,
        over=over,
        search_loss=search_loss,
        loss_sample=sampled,
        confusion=count_confusion(task, names_of_classes, wanted, right, searcher) if confusion else None,
    )


class FirstFound(NamedTuple):
    """Which queries find their own class first, and which classes the others find."""

    rows: NDArray[np.intp]  # of the queries that have another example of their class to find
    right: NDArray[np.bool_]  # whether each of them finds its class first: its Recall@1
    confusion: Confusion


def find_first_classes(
    embeddings: object, labels: object, gallery: object = None, gallery_labels: object = None
) -> FirstFound:
    """Recall@1 of each query and the confused classes of `retrieval`, without its other measures.

    Raises:
        LabelError: no query has another example of its class to find.

    >>> found = find_first_classes([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]], [0, 1, 1, 0])
    >>> found.right.tolist(), found.confusion.wrong
    ([False, False, False, False], 4)
    """
    task, _, names = _read_task(embeddings, labels, gallery, gallery_labels, None)
    assert isinstance(task, Task)
    wanted = _select_answerable(task)
    first = np.zeros(len(task.queries), dtype=np.bool_)
    for block in count_negatives_before(task, wanted, first_only=True):
        first[block.rows] = block.before == 0
    return FirstFound(wanted, first[wanted], count_confusion(task, names, wanted, first[wanted]))


class _Column(NamedTuple):
    """A metric at one cut-off."""

    key: str
    metric: Metric
    k: int | None  # None: the cut-off depends on the query, or there is none


def _columns(ks: tuple[int, ...], whole_ranking: bool) -> list[_Column]:
    """What is computed; a search that returns only the nearest cannot give metrics of the whole ranking."""
    metrics = retrieval_metrics()
    at_k = [_Column(metric.key_at(k), metric, k) for k in ks for metric in metrics if metric.at_k]
    others = [metric for metric in metrics if not metric.at_k and (whole_ranking or metric.cutoff != "none")]
    return [*at_k, *(_Column(metric.key, metric, None) for metric in others)]


def _measure(
    task: Task, wanted: NDArray[np.intp], columns: Sequence[_Column], blocks: Iterable[Counts]
) -> NDArray[np.float64]:
    """The values (wanted, columns), in the order of `wanted`."""
    from metrix.evaluate.counting import NEVER, compile_metric, ranks_of_positives

    place = np.empty(len(task.queries), dtype=np.intp)
    place[wanted] = np.arange(len(wanted))
    values = np.empty((len(wanted), len(columns)))
    relevant_of_all = task.relevant
    for block in blocks:
        ranks, relevant = ranks_of_positives(block.before, block.offsets), relevant_of_all[block.rows]
        cutoffs = {"R": relevant, "none": np.full_like(relevant, NEVER)}
        found = np.empty((len(columns), len(block.rows)))
        for c, (_, metric, k) in enumerate(columns):
            if k is not None and block.ndcg is not None and metric.function is rank_metrics.ndcg:
                found[c] = block.ndcg(k)
                continue
            cutoff = np.full_like(relevant, k) if k is not None else cutoffs[str(metric.cutoff)]
            compile_metric(metric.function)(ranks, block.offsets, relevant, cutoff, found[c])
        values[place[block.rows]] = found.T
    return values


def _read_ks(ks: Sequence[int]) -> tuple[int, ...]:
    given = [ks] if isinstance(ks, int) else list(ks)
    if not given:
        raise InvalidInput("ks: expected at least one cut-off, as in ks=(1, 2, 4, 8), got none")
    return tuple(dict.fromkeys(check_integer("ks", k, least=1) for k in given))


def _read_task(
    embeddings: object, labels: object, gallery: object, gallery_labels: object, relation: Relation | None = None
) -> tuple[Task, Array, Array]:
    """The checked task, the labels of the queries as given, and the names of the classes in order."""
    given: Any = labels
    if hasattr(given, "relation") and hasattr(given, "numbers"):  # GradedLabels, without importing torch for them
        if relation is not None or gallery is not None:
            raise InvalidInput(
                "labels: expected the numbers of classes with a relation or a gallery, got labels that are about one "
                "batch; number the classes, and give their relation"
            )
        labels, relation = given.numbers, given.relation
    if (gallery is None) != (gallery_labels is None):
        missing = "gallery_labels" if gallery_labels is None else "gallery"
        raise InvalidInput(f"gallery and gallery_labels go together: {missing} is missing")
    queries = Vectors.read(embeddings)
    query_labels = read_labels(labels, len(queries))
    if gallery is None:
        names, (numbers,) = number_classes(query_labels)
        task = Task(queries, queries, numbers, numbers, shared=True)
        if relation is None:
            return task, query_labels, names
        return as_graded(task, relation, query_labels), query_labels, np.arange(relation.num_classes)
    searched = Vectors.read(gallery, "gallery embeddings")
    if searched.dim != queries.dim:
        raise ShapeError(
            f"embeddings of {queries.dim} columns and gallery embeddings of {searched.dim}: expected the same number, "
            "as embeddings of one model have"
        )
    searched_labels = read_labels(gallery_labels, len(searched), "gallery labels")
    names, (query_class, gallery_class) = number_classes(query_labels, searched_labels)
    task = Task(queries, searched, query_class, gallery_class, shared=False)
    if relation is None:
        return task, query_labels, names
    return as_graded(task, relation, query_labels, searched_labels), query_labels, np.arange(relation.num_classes)


def _select_answerable(task: Task) -> NDArray[np.intp]:
    wanted = np.flatnonzero(task.relevant > 0)
    if len(wanted) == 0:
        where = "another member" if task.shared else "a member in the gallery"
        raise LabelError(
            f"none of the {len(task.queries)} queries has {where} of its class, so nothing can be found; "
            "check that the labels are classes, not ids"
        )
    return wanted
