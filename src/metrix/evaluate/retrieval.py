"""Retrieval metrics: does a query find its class?

Each metric of `metrix.evaluate.metrics` is computed for every query from the ranks of the gallery examples of its
class (`metrix.evaluate.rank_metrics` has the definitions) and averaged over the queries.

With a `relation`, examples are relevant in degrees: `metrix.evaluate.graded`.

Similarity is the cosine. Equal similarities rank in the order of the rows, lower row number first. A query is left out
of its own gallery by its row number, so a copy of it in another row stays and counts. A cut-off K may exceed the size
of the gallery: nothing more is found there.

With `sequences`, a query does not find the examples of its own sequence: `metrix.evaluate.task`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.evaluate import rank_metrics
from metrix.evaluate.approximate import RowSearcher, Searcher, count_in_neighbours
from metrix.evaluate.bootstrap import bootstrap_intervals, check_bootstrap, choose_units, numpy_generator
from metrix.evaluate.confusion import Confusion, count_confusion
from metrix.evaluate.graded import GradedTask
from metrix.evaluate.metrics import Metric, find_metric, retrieval_metrics
from metrix.evaluate.ranks import Counts, count_negatives_before
from metrix.evaluate.retrieved import Retrieval
from metrix.evaluate.task import Task
from metrix.evaluate.task_reading import read_ks, read_task, select_answerable

if TYPE_CHECKING:
    import torch

    from metrix.core.relations import Relation

KS = (1, 2, 4, 8)


def recall_at_k(
    embeddings: object,
    labels: object,
    ks: Sequence[int] = KS,
    gallery: object = None,
    gallery_labels: object = None,
    relation: Relation | None = None,
    sequences: object = None,
    gallery_sequences: object = None,
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
        sequences: the sequence of each (a track, a shoot), an integer or a text; None, NaN or an empty text for none.
            Examples of a query's own sequence are left out of its gallery: they are neither right nor wrong.
        gallery_sequences: the same for the gallery, if there is one.

    Returns:
        A fraction in [0, 1] for each K. Queries without a positive to find do not count; `retrieval(...).left_out` is
        their number.

    Raises:
        LabelError: if no query has a positive to find.

    >>> recall_at_k([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]], ["a", "b", "b", "a"], ks=(1, 2))
    {1: 0.0, 2: 0.75}

    Of three frames of one track, none counts for another:

    >>> vectors = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]
    >>> recall_at_k(vectors, ["a", "a", "a", "a", "b"], ks=(1,), sequences=["film", "film", "film", None, None])
    {1: 0.0}
    """
    found = count_hits(embeddings, labels, ks, gallery, gallery_labels, (0, 1), relation, sequences, gallery_sequences)
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
    sequences: object = None,
    gallery_sequences: object = None,
) -> HitCounts:
    """The counts whose quotient is Recall@K, for the queries of one process: `share` is its (rank, world size).

    The counts of all processes add up to those of a single process. The other arguments are those of `recall_at_k`.
    """
    chosen = read_ks(ks)
    task, _, _ = read_task(embeddings, labels, gallery, gallery_labels, relation, sequences, gallery_sequences)
    rank, world = share
    everything = select_answerable(task)
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
    sequences: object = None,
    gallery_sequences: object = None,
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
        sequences: the sequence of each (a track, a shoot), an integer or a text; None, NaN or an empty text for none.
            Examples of a query's own sequence are left out of its gallery: they are neither right nor wrong.
        gallery_sequences: the same for the gallery, if there is one.

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
    chosen = read_ks(ks)
    check_bootstrap(resamples, confidence, least=0)
    if loss_sample < 1:
        raise InvalidInput(f"loss_sample: expected an integer ≥ 1, got {loss_sample}")
    task, query_labels, names_of_classes = read_task(
        embeddings, labels, gallery, gallery_labels, relation, sequences, gallery_sequences
    )
    if isinstance(task, GradedTask) and searcher is not None:
        raise InvalidInput(
            "searcher: expected none with labels in degrees, which are measured over the whole ranking; leave it out"
        )
    wanted = select_answerable(task)
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
        sequences=None if task.sequences is None else task.sequences.count,
        only_in_own_sequence=_count_only_in_own_sequence(task),
    )


def _count_only_in_own_sequence(task: Task) -> int:
    """The number of queries that could find their class if it were not for their sequence."""
    if task.sequences is None:
        return 0
    return int(((task.relevant == 0) & (replace(task, sequences=None).relevant > 0)).sum())


class FirstFound(NamedTuple):
    """Which queries find their own class first, and which classes the others find."""

    rows: NDArray[np.intp]  # of the queries that have another example of their class to find
    right: NDArray[np.bool_]  # whether each of them finds its class first: its Recall@1
    confusion: Confusion


def find_first_classes(
    embeddings: object,
    labels: object,
    gallery: object = None,
    gallery_labels: object = None,
    sequences: object = None,
    gallery_sequences: object = None,
) -> FirstFound:
    """Recall@1 of each query and the confused classes of `retrieval`, without its other measures.

    Raises:
        LabelError: no query has another example of its class to find.

    >>> found = find_first_classes([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]], [0, 1, 1, 0])
    >>> found.right.tolist(), found.confusion.wrong
    ([False, False, False, False], 4)
    """
    task, _, names = read_task(
        embeddings, labels, gallery, gallery_labels, sequences=sequences, gallery_sequences=gallery_sequences
    )
    wanted = select_answerable(task)
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
