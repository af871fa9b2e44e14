"""How near a query is to each class of an index: by the votes of its nearest items, and by the centroids of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError
from metrix.search.filters import EVERYTHING, AllOf, Condition, Filter
from metrix.search.items import LABEL
from metrix.search.nearest import nearest, nearest_others
from metrix.search.stores import Neighbours, Store

VOTERS = 10  # neighbours that vote
TEMPERATURE = 0.07  # of their weights e^(s/T), as weighted k-NN classifiers of the field have it
AT_ONCE = 512  # queries, whose candidates' centroids are held together


@dataclass(frozen=True, eq=False)
class EnrolledClasses:
    """The classes of an index: the class of each row, and the sum of the unit vectors of each class."""

    names: tuple[Any, ...]
    of_row: NDArray[np.int32]  # (rows,) a place in `names`, -1 for an item without a label
    sums: NDArray[np.float32]  # (classes, d)

    @classmethod
    def read(cls, store: Store, progress: Callable[[int, int], object] | None = None) -> EnrolledClasses:
        """The classes of all labelled items, in one pass; the memory is that of one vector for each class.

        Raises:
            LabelError: the items have no labels.
        """
        if LABEL not in store.column_types:
            raise LabelError(
                "classify: expected an index with labels, got one without; index class folders or a manifest, or give "
                "labels with metrix index --set"
            )
        numbers: dict[Any, int] = {}
        sums = np.zeros((0, store.dim), dtype=np.float32)
        of_row = np.full(len(store), -1, dtype=np.int32)
        done = 0
        for rows, items in store.scan():
            labels = items.columns[LABEL].to_pylist()
            codes = np.array([-1 if one is None else numbers.setdefault(one, len(numbers)) for one in labels], np.int32)
            of_row = _fit_to(of_row, int(rows.max()) + 1, -1)
            of_row[rows] = codes
            if len(numbers) > len(sums):
                sums = _fit_to(sums, max(len(numbers), 2 * len(sums)), 0)
            there = codes >= 0
            np.add.at(sums, codes[there], items.vectors[there])
            done += len(rows)
            if progress is not None:
                progress(done, len(store))
        if not numbers:
            raise LabelError("classify: expected an index with labels, got none; give them with metrix index --set")
        return cls(tuple(numbers), of_row, sums[: len(numbers)])

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The items of each class."""
        return np.bincount(self.of_row[self.of_row >= 0], minlength=len(self))

    @cached_property
    def centroids(self) -> NDArray[np.float32]:
        """The mean direction of each class (classes, d), at unit norm; zero where the vectors cancel out."""
        norms = np.linalg.norm(self.sums, axis=1, keepdims=True)
        return np.asarray(self.sums / np.maximum(norms, 1e-12), dtype=np.float32)

    @property
    def labelled(self) -> Filter:
        """A filter that keeps the labelled items."""
        if (self.of_row >= 0).all():
            return EVERYTHING
        smallest = min(self.names)  # an item without a value meets no comparison
        return Condition(LABEL, ">=", smallest)


def _fit_to(array: NDArray[Any], rows: int, value: float) -> NDArray[Any]:
    """The array with at least so many rows; new ones have this value."""
    if rows <= len(array):
        return array
    return np.concatenate([array, np.full((rows - len(array), *array.shape[1:]), value, dtype=array.dtype)])


@dataclass(frozen=True, eq=False)
class ClassScores:
    """Candidate classes of each query, in no order, with the two similarities of each; class -1 for none.

    `votes` is T log Σ e^(s/T) over the neighbours of the class: the weighted votes on the scale of a cosine. A class
    that none of the k nearest is of has the similarity of the last of them, which none of its items exceeds.
    """

    classes: NDArray[np.int64]  # (q, m)
    votes: NDArray[np.float64]  # (q, m)
    centroids: NDArray[np.float64]  # (q, m) cosines with the class's centroid
    neighbours: Neighbours  # (q, k)

    def part(self, rows: NDArray[Any]) -> ClassScores:
        """The candidates of some queries."""
        near = Neighbours(self.neighbours.rows[rows], self.neighbours.similarities[rows])
        return ClassScores(self.classes[rows], self.votes[rows], self.centroids[rows], near)


def score_classes(
    queries: NDArray[np.float32],  # (q, d), unit
    store: Store,
    classes: EnrolledClasses,
    k: int = VOTERS,
    *,
    own: NDArray[np.int64] | None = None,
    where: Filter = EVERYTHING,
) -> ClassScores:
    """The similarities of each query to the classes of its k nearest items, and to the k classes of nearest centroid.

    Args:
        queries: unit vectors.
        store: what is searched.
        classes: of the store.
        k: neighbours that vote.
        own: the row of each query in the store, -1 for none: it neither votes nor counts for the centroid of its class.
        where: only items that meet this vote, and only classes of such items are candidates.
    """
    wanted = _both(classes.labelled, where)
    near = nearest_others(queries, store, k, own, wanted)
    vectors = None if own is None else (own, _vectors_of(store, own))
    return score_neighbours(queries, near, classes, own=vectors, by_centroid=k if where == EVERYTHING else 0)


def score_without_class(
    queries: NDArray[np.float32], codes: NDArray[np.int64], store: Store, classes: EnrolledClasses, k: int = VOTERS
) -> ClassScores:
    """The scores of queries as if their own class (`codes`) were not enrolled.

    The search goes as deep as the largest of these classes; `search_without_class` filters instead.
    """
    deep = nearest_others(queries, store, k + int(classes.sizes[codes].max()), where=classes.labelled)
    return score_neighbours(queries, _drop_class(deep, codes, classes, k), classes, without=codes, by_centroid=k)


def search_without_class(
    queries: NDArray[np.float32], code: int, store: Store, classes: EnrolledClasses, k: int = VOTERS
) -> ClassScores:
    """The scores of queries of one class as if it were not enrolled, by a search among the items of others."""
    others = _both(classes.labelled, Condition(LABEL, "!=", classes.names[code]))
    near = nearest_others(queries, store, k, where=others)
    return score_neighbours(queries, near, classes, without=np.full(len(queries), code), by_centroid=k)


def _both(a: Filter, b: Filter) -> Filter:
    parts = tuple(one for one in (a, b) if one != EVERYTHING)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _vectors_of(store: Store, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    found = np.zeros((len(rows), store.dim), dtype=np.float32)
    there = np.flatnonzero(rows >= 0)
    if len(there):
        found[there] = store.read_vectors(rows[there])
    return found


def _drop_class(deep: Neighbours, codes: NDArray[np.int64], classes: EnrolledClasses, k: int) -> Neighbours:
    """The first k neighbours of each query that are not of its class."""
    gone = (deep.rows < 0) | (_codes_of(deep.rows, classes) == codes[:, None])
    order = np.argsort(gone, axis=1, kind="stable")[:, :k]
    rows = np.where(np.take_along_axis(gone, order, axis=1), -1, np.take_along_axis(deep.rows, order, axis=1))
    return Neighbours(rows, np.take_along_axis(deep.similarities, order, axis=1))


def _codes_of(rows: NDArray[np.int64], classes: EnrolledClasses) -> NDArray[np.int64]:
    return np.where(rows < 0, -1, classes.of_row[np.maximum(rows, 0)]).astype(np.int64)


def score_neighbours(
    queries: NDArray[np.float32],
    near: Neighbours,
    classes: EnrolledClasses,
    *,
    own: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None,
    without: NDArray[np.int64] | None = None,
    by_centroid: int = 0,
) -> ClassScores:
    """Candidates and their similarities, from the neighbours of each query.

    Args:
        queries: unit vectors (q, d).
        near: the neighbours of each.
        classes: of the store.
        own: row and stored vector of each query, taken away from the centroid of its class; row -1 for none.
        without: a class of each query that is no candidate.
        by_centroid: so many classes of nearest centroid are candidates, too.
    """
    parts = []
    for start in range(0, len(queries), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        parts.append(
            _score_some(
                queries[some],
                Neighbours(near.rows[some], near.similarities[some]),
                classes,
                None if own is None else (own[0][some], own[1][some]),
                None if without is None else without[some],
                by_centroid,
            )
        )
    return join_scores(parts, near)


def join_scores(parts: list[ClassScores], near: Neighbours | None = None) -> ClassScores:
    """Scores of several lists of queries as one; shorter lists of candidates are filled up with none."""
    width = max((part.classes.shape[1] for part in parts), default=0)

    def join(name: str, none: float) -> NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        filled = [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=none) for one in arrays]
        return np.concatenate(filled) if filled else np.empty((0, width))

    if near is None:
        depth = max((part.neighbours.rows.shape[1] for part in parts), default=0)
        fields = [(part.neighbours.rows, part.neighbours.similarities) for part in parts]
        near = Neighbours(
            *(
                np.concatenate([np.pad(one, ((0, 0), (0, depth - one.shape[1])), constant_values=-1) for one in column])
                for column in zip(*fields, strict=True)
            )
        )
    return ClassScores(join("classes", -1).astype(np.int64), join("votes", -1.0), join("centroids", -1.0), near)


def _score_some(
    queries: NDArray[np.float32],
    near: Neighbours,
    classes: EnrolledClasses,
    own: tuple[NDArray[np.int64], NDArray[np.float32]] | None,
    without: NDArray[np.int64] | None,
    by_centroid: int,
) -> ClassScores:
    voting = _codes_of(near.rows, classes)
    listed = voting
    if by_centroid:
        _, closest = nearest(queries, classes.centroids, min(by_centroid, len(classes)))
        listed = np.concatenate([voting, closest], axis=1)
    own_code = None if own is None else _codes_of(own[0], classes)
    alone = None if own_code is None else np.where((own_code >= 0) & (classes.sizes[own_code] == 1), own_code, -1)
    candidates = _distinct(listed, [one for one in (without, alone) if one is not None])
    votes = _count_votes(candidates, voting, near.similarities.astype(np.float64))
    chosen = classes.centroids[np.maximum(candidates, 0)]  # (q, m, d)
    cosines = np.einsum("qmd,qd->qm", chosen, queries).astype(np.float64)
    if own is not None and own_code is not None:
        rest = classes.sums[np.maximum(own_code, 0)] - own[1]
        norms = np.maximum(np.linalg.norm(rest, axis=1), 1e-12)
        left = (np.einsum("qd,qd->q", rest, queries) / norms).astype(np.float64)
        cosines = np.where((candidates == own_code[:, None]) & (own_code >= 0)[:, None], left[:, None], cosines)
    none = candidates < 0
    return ClassScores(candidates, np.where(none, -1.0, votes), np.where(none, -1.0, cosines), near)


def _distinct(listed: NDArray[np.int64], unwanted: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The distinct classes of each row without unwanted ones, -1 for none."""
    found = np.sort(listed, axis=1)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
    for one in unwanted:
        found[found == one[:, None]] = -1
    found = -np.sort(-found, axis=1)  # none goes to the end
    return found[:, : int((found >= 0).sum(axis=1).max(initial=0))]


def _count_votes(
    candidates: NDArray[np.int64], voting: NDArray[np.int64], similarities: NDArray[np.float64]
) -> NDArray[np.float64]:
    """T log Σ e^(s/T) over the neighbours of each candidate; the smallest similarity where there are none."""
    similarities = np.where(voting < 0, -np.inf, similarities)
    mine = (candidates[:, :, None] == voting[:, None, :]) & (voting >= 0)[:, None, :]  # (q, m, k)
    scaled = np.where(mine, similarities[:, None, :] / TEMPERATURE, -np.inf)
    largest = scaled.max(axis=2, initial=-np.inf)
    finite = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):  # no vote
        summed = finite + np.log(np.exp(scaled - finite[:, :, None]).sum(axis=2))
    last = np.where(voting < 0, np.inf, similarities).min(axis=1, initial=np.inf)
    last = np.where(np.isfinite(last), last, -1.0)
    return np.where(np.isfinite(summed), TEMPERATURE * summed, last[:, None])
