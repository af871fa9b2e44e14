"""How near unlabelled vectors are to what is labelled, and how sure their class is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrix.search.class_scores import TEMPERATURE, VOTERS, EnrolledClasses
from metrix.search.filters import EVERYTHING
from metrix.search.nearest import nearest_others
from metrix.search.stores import Store

QUERIES = 1024  # candidates searched with at a time


@dataclass(frozen=True, eq=False)
class NearLabelled:
    """What the labelled items of an index say about candidates.

    The margin is the difference between the two best classes in their shares of the weighted votes of the nearest
    labelled items, as `metrix classify` weighs them.
    """

    similarity: NDArray[np.float32]  # (n,) to the nearest labelled item; -1 for none
    best: NDArray[np.int32]  # (n, 2) the two best classes, -1 for none
    shares: NDArray[np.float32]  # (n, 2) their shares of the votes

    @property
    def margin(self) -> NDArray[np.float32]:
        """The difference of the shares (n,)."""
        found: NDArray[np.float32] = self.shares[:, 0] - self.shares[:, 1]
        return found

    def part(self, places: NDArray[np.int64]) -> NearLabelled:
        """What they say about some of the candidates."""
        return NearLabelled(self.similarity[places], self.best[places], self.shares[places])


def compare_with_labelled(
    read: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    count: int,
    store: Store,
    classes: EnrolledClasses | None,
    k: int = VOTERS,
    own: NDArray[np.int64] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> NearLabelled:
    """Compare candidates with the labelled items of a store; with all items if it has no labels at all (None).

    `own` is the row of each candidate in the store, if they are of it: none is compared with itself.
    """
    found = NearLabelled(
        np.full(count, -1, np.float32),
        np.full((count, 2), -1, np.int32),
        np.zeros((count, 2), np.float32),
    )
    where = EVERYTHING if classes is None else classes.labelled
    for start in range(0, count, QUERIES):
        here = np.arange(start, min(start + QUERIES, count))
        mine = None if own is None else own[here]
        near = nearest_others(read(here), store, k if classes is not None else 1, mine, where)
        if near.rows.shape[1]:
            found.similarity[here] = np.where(near.rows[:, 0] < 0, -1, near.similarities[:, 0])
        if classes is not None:
            found.best[here], found.shares[here] = _best_two(near.rows, near.similarities, classes)
        if progress is not None:
            progress(int(here[-1]) + 1, count)
    return found


def _best_two(
    rows: NDArray[np.int64], similarities: NDArray[np.float32], classes: EnrolledClasses
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The two classes with the most weighted votes of each candidate, and their shares; -1 and 0 for none."""
    codes = np.where(rows < 0, -1, classes.of_row[np.maximum(rows, 0)])
    weights = np.where(codes < 0, 0.0, np.exp((similarities.astype(np.float64) - 1) / TEMPERATURE))
    votes = (weights[:, None, :] * (codes[:, :, None] == codes[:, None, :])).sum(axis=2)  # of the class of each voter
    total = np.maximum(weights.sum(axis=1), np.finfo(np.float64).tiny)
    count = len(rows)
    best, shares = np.full((count, 2), -1, np.int32), np.zeros((count, 2), np.float32)
    for place in range(min(2, rows.shape[1])):
        first = votes.argmax(axis=1)
        there = votes[np.arange(count), first] > 0
        best[:, place] = np.where(there, codes[np.arange(count), first], -1)
        shares[:, place] = np.where(there, votes[np.arange(count), first] / total, 0)
        votes[codes == best[:, place, None]] = 0
    return best, shares
