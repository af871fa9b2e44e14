"""Retrieval where examples are relevant in degrees: labels of which a `Relation` says how positive two are.

With Y(q, x) in [0, 1], the relevance of gallery example x to query q:

    positives of q   x with Y(q, x) > `positive_above`: Recall@K, Precision@K, MAP@R … are those of these positives
    NDCG@K           Σ_{r ≤ K} Y(q, x_r) / log2(r + 1), x_r the example at rank r, divided by the largest possible sum

Each row of similarities is sorted in float64; cosines that float64 cannot tell apart rank by row number.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import LabelError
from metrix.evaluate.ranks import BLOCK_BYTES, Counts, float64_tie
from metrix.evaluate.task import Task

if TYPE_CHECKING:
    from metrix.core.relations import Relation


@dataclass(frozen=True)
class GradedTask(Task):
    """Queries and gallery whose classes are relevant to each other in degrees."""

    relation: Relation

    @cached_property
    def relevant(self) -> NDArray[np.intp]:
        """R of each query: the number of its positives in the gallery that it can find."""
        found = [self._positive(rows, self.grades(rows)).sum(1) for rows in self._blocks(np.arange(len(self.queries)))]
        return np.concatenate(found)

    def grades(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Y (rows, gallery) of some queries; 0 for what they never find."""
        import torch

        query, gallery = (
            torch.from_numpy(np.asarray(x, dtype=np.int64)) for x in (self.query_class[rows], self.gallery_class)
        )
        Y = np.asarray(self.relation.between(query, gallery, torch.float64).numpy())
        self.hide(Y, rows, 0.0)
        return Y

    def count_blocks(self, wanted: NDArray[np.intp]) -> Iterator[Counts]:
        """Negatives before each positive of the wanted queries, and their NDCG@K, block by block."""
        for rows in self._blocks(wanted):
            Y = self.grades(rows)
            order = self._order(rows)
            ranked = np.take_along_axis(Y, order, axis=1)
            positive = np.take_along_axis(self._positive(rows, Y), order, axis=1)
            before = np.cumsum(~positive, axis=1, dtype=np.int64)[positive]
            offsets = np.concatenate([[0], np.cumsum(positive.sum(1))])
            yield Counts(rows, offsets, before, _Gains(ranked))

    def _positive(self, rows: NDArray[np.intp], Y: NDArray[np.float64]) -> NDArray[np.bool_]:
        positive: NDArray[np.bool_] = self.relation.positive_above < Y
        self.hide(positive, rows, False)
        return positive

    def _order(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Gallery examples by falling similarity (rows, gallery); those that a query never finds come last."""
        unit = self.queries.unit(rows)
        S = np.empty((len(rows), len(self.gallery)))
        for part in self.gallery.blocks():
            np.matmul(unit, self.gallery.unit(part).T, out=S[:, part])
        self.hide(S, rows)
        order = np.argsort(-S, axis=1, kind="stable")
        ordered = np.take_along_axis(S, order, axis=1)
        with np.errstate(invalid="ignore"):  # of what is hidden, -∞
            apart = ordered[:, :-1] - ordered[:, 1:] > float64_tie(self.gallery.dim)
        for q in np.flatnonzero(~apart.all(axis=1)):  # within a tie, the lower row number comes first
            group = np.concatenate([[0], np.cumsum(apart[q])])
            order[q] = order[q][np.lexsort((order[q], group))]
        return order

    def _blocks(self, rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        at_once = max(1, BLOCK_BYTES // (64 * len(self.gallery)))
        for start in range(0, len(rows), at_once):
            yield rows[start : start + at_once]


class _Gains:
    """NDCG@K of some queries from the degrees of the gallery in the order of the ranking (queries, gallery)."""

    def __init__(self, ranked: NDArray[np.float64]) -> None:
        self.ranked, self.best = ranked, -np.sort(-ranked, axis=1)

    def __call__(self, k: int) -> NDArray[np.float64]:
        k = min(k, self.ranked.shape[1])
        discount = 1.0 / np.log2(np.arange(2, k + 2))
        return np.asarray((self.ranked[:, :k] @ discount) / (self.best[:, :k] @ discount))


def as_graded(task: Task, relation: Relation, *labels: Any) -> GradedTask:
    """The same queries and gallery with labels that are classes of a relation, by number."""
    for given in labels:
        values = np.asarray(given)
        if values.dtype.kind not in "iub" or values.min() < 0 or values.max() >= relation.num_classes:
            raise LabelError(
                f"labels: expected numbers of the {relation.num_classes} classes of the relation, from 0 to "
                f"{relation.num_classes - 1}, got {values.min()} to {values.max()}"
            )
    query, gallery = labels if len(labels) == 2 else (labels[0], labels[0])
    # a copy: the relation of an objective may be on another device
    relation = copy.deepcopy(relation).cpu()
    return GradedTask(task.queries, task.gallery, query, gallery, task.shared, relation, sequences=task.sequences)
