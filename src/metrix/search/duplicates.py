"""Near-identical items of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.search.index import Index
from metrix.search.nearest import nearest_others
from metrix.search.stores import Neighbours, Store

QUERIES = 1024  # items searched with at a time
FIRST_K = 8
CLOSER = 10  # times closer than usual is near-identical
SAMPLE = 1000  # items that say what is usual
GAP_FROM = 0.9  # the similarity from which on a pair far from all others may be near-identical
IDENTICAL = 1 - 1e-6

# Vectors (m, d) of the mirrored images of some ids, and which of the ids (m,) they are of.
Mirror = Callable[[Sequence[Any]], tuple[NDArray[np.float32], NDArray[np.int64]]]


@dataclass(frozen=True)
class Duplicates:
    """Items that are near-identical, each to at least one other of the group; `similarity` is the least such."""

    ids: tuple[Any, ...]
    similarity: float


def choose_duplicate_threshold(index: Index, seed: int = 0) -> float:
    """The similarity above which two items are near-identical to this model: ten times closer than usual.

    Usual is 1 - s, s the median similarity of an item to its nearest other. Vectors of one model crowd together, those
    of another spread out, so that no fixed similarity fits both.
    """
    count = len(index)
    if count < 2:
        return 1.0
    places = np.sort(np.random.default_rng(seed).permutation(count)[:SAMPLE])
    similarities, start = [], 0
    for rows, items in index.store.scan():
        here = places[(places >= start) & (places < start + len(items))] - start
        start += len(items)
        if len(here):
            similarities.append(nearest_others(items.vectors[here], index.store, 1, rows[here]).similarities[:, 0])
    usual = 1 - float(np.nanmedian(np.concatenate(similarities)))
    return 1 - max(usual, 0.0) / CLOSER


def find_duplicates(
    index: Index,
    threshold: float | None = None,
    progress: Callable[[int, int], object] | None = None,
    mirror: Mirror | None = None,
) -> list[Duplicates]:
    """Groups of near-identical items, the largest groups first, in memory that grows with the items alone.

    Args:
        index: the items.
        threshold: how similar two have to be. By default that of `choose_duplicate_threshold`; then two items that are
            each other's nearest, at least 0.9 similar and ten times closer than the next ones are near-identical, too.
        progress: called with (items done, items in all) meanwhile.
        mirror: gives the vectors of mirrored images, to find mirrored copies by, too.

    >>> index = Index.build([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]], ids=["a", "b", "c"])
    >>> [group.ids for group in find_duplicates(index, 0.98)]
    [('a', 'b')]
    """
    if threshold is not None and not -1 <= threshold <= 1:
        raise InvalidInput(f"threshold: expected a cosine from -1 to 1, got {threshold}")
    chosen = choose_duplicate_threshold(index) if threshold is None else threshold
    store, groups, done = index.store, _Groups(), 0
    gaps, mirrored_gaps = _Gaps(), _Gaps()
    for rows, items in store.scan(QUERIES):
        found = nearest_others(items.vectors, store, FIRST_K, rows)
        near = found.similarities >= chosen
        for n in np.flatnonzero(near.any(axis=1)):
            groups.join(rows[n], found.rows[n, near[n]], float(found.similarities[n, 0]))
        crowded = near.all(axis=1) & (found.rows.shape[1] == FIRST_K)  # there may be more
        _join_all_near(store, groups, rows[crowded], items.vectors[crowded], chosen)
        gaps.note(rows, found)
        if mirror is not None:
            vectors, places = mirror(items.ids.to_pylist())
            mine = rows[places]
            found = nearest_others(vectors, store, FIRST_K, mine)
            near = found.similarities >= chosen
            for n in np.flatnonzero(near.any(axis=1)):
                groups.join(mine[n], found.rows[n, near[n]], float(found.similarities[n, 0]))
            mirrored_gaps.note(mine, found)
        done += len(items)
        if progress is not None:
            progress(done, len(index))
    for row, other, similarity in [*gaps.pairs(), *mirrored_gaps.pairs()] if threshold is None else ():
        groups.join(row, np.array([other]), similarity)
    return _named(groups, store)


def _join_all_near(
    store: Store, groups: _Groups, rows: NDArray[np.int64], vectors: NDArray[np.float32], threshold: float
) -> None:
    """Join items with everything that is near them; of identical ones, the first speaks for all."""
    waiting = ~groups.covered(rows)
    if waiting.any():
        waiting &= ~(np.tril(vectors @ vectors.T, -1) >= IDENTICAL).any(axis=1)
    rows, vectors = rows[waiting], vectors[waiting]
    if not len(rows):
        return
    for others, items in store.scan():
        similar = vectors @ items.vectors.T
        for n in np.flatnonzero((similar >= threshold).any(axis=1)):
            near = similar[n] >= threshold
            groups.join(rows[n], others[near])
            groups.cover(others[similar[n] >= IDENTICAL])


class _Groups:
    """Rows in groups (union-find), with the least similarity of a member to its nearest other."""

    def __init__(self) -> None:
        self.parent = np.empty(0, np.int64)
        self.nearest = np.empty(0, np.float32)  # the similarity of each row to its nearest other
        self._covered = np.empty(0, np.bool_)

    def _make_room(self, rows: NDArray[np.int64]) -> None:
        have, needed = len(self.parent), int(rows.max(initial=-1)) + 1
        if needed <= have:
            return
        more = max(needed, 2 * have) - have
        self.parent = np.concatenate([self.parent, np.arange(have, have + more)])
        self.nearest = np.concatenate([self.nearest, np.full(more, np.inf, np.float32)])
        self._covered = np.concatenate([self._covered, np.zeros(more, np.bool_)])

    def roots(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row that stands for the group of each."""
        found = self.parent[rows]
        while (self.parent[found] != found).any():
            found = self.parent[found]
        self.parent[rows] = found
        return found

    def join(self, row: int, others: NDArray[np.int64], nearest: float | None = None) -> None:
        """Join the groups of a row and of others."""
        together = np.append(others, row)
        self._make_room(together)
        if nearest is not None:
            known = self.nearest[row]
            self.nearest[row] = max(known, nearest) if np.isfinite(known) else nearest
        roots = np.unique(self.roots(together))
        self.parent[roots] = roots[0]

    def cover(self, rows: NDArray[np.int64]) -> None:
        """Note that an identical row was joined with everything near it."""
        self._make_room(rows)
        self._covered[rows] = True

    def covered(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether an identical row was joined with everything near it."""
        self._make_room(rows)
        return np.asarray(self._covered[rows])

    def members(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that are in a group with others, and the group of each."""
        roots = self.roots(np.arange(len(self.parent)))
        sizes = np.bincount(roots, minlength=len(roots)) if len(roots) else roots
        rows = np.flatnonzero(sizes[roots] > 1) if len(roots) else roots
        return rows, roots[rows]


class _Gaps:
    """Rows whose nearest other is far closer than the next."""

    def __init__(self) -> None:
        self.nearest: dict[int, tuple[int, float]] = {}  # the nearest other of such a row, and its similarity

    def note(self, rows: NDArray[np.int64], found: Neighbours) -> None:
        """Note those of some rows that are such."""
        if not found.rows.shape[1]:
            return
        first = found.similarities[:, 0]
        second = found.similarities[:, 1] if found.rows.shape[1] > 1 else np.full(len(rows), -1, np.float32)
        second = np.nan_to_num(second, nan=-1.0)
        for n in np.flatnonzero((first >= GAP_FROM) & (CLOSER * (1 - first) <= 1 - second)).tolist():
            self.nearest[int(rows[n])] = int(found.rows[n, 0]), float(first[n])

    def pairs(self) -> Iterator[tuple[int, int, float]]:
        """Rows that are each other's nearest, both far from all others, with their similarity."""
        for row, (other, similarity) in self.nearest.items():
            if self.nearest.get(other, (-1, 0.0))[0] == row:
                yield row, other, similarity


def _named(groups: _Groups, store: Store) -> list[Duplicates]:
    rows, roots = groups.members()
    if not len(rows):
        return []
    order = np.argsort(roots, kind="stable")
    ids = np.asarray(store.read_table(rows[order])["id"].to_pylist(), dtype=object)
    starts = np.flatnonzero(np.append(True, np.diff(roots[order]) > 0))
    least = np.minimum.reduceat(groups.nearest[rows[order]], starts)
    members = np.split(ids, starts[1:])
    found = [Duplicates(tuple(sorted(names)), float(value)) for names, value in zip(members, least, strict=True)]
    return sorted(found, key=lambda group: (-len(group.ids), -group.similarity, group.ids))
