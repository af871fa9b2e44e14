"""Queries and the gallery that they search, and which examples of it a query never finds.

A query that is itself in the gallery does not find itself. With sequences (frames of one track, photos of one shoot),
it does not find the examples of its own sequence either: they are neither right nor wrong, as if they were not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.vectors import Array, Vectors


@dataclass(frozen=True)
class Sequences:
    """The sequence of each query and of each gallery example by number, -1 for none."""

    query: NDArray[np.intp]  # (queries,)
    gallery: NDArray[np.intp]  # (gallery,)

    @property
    def count(self) -> int:
        """The number of sequences."""
        return 1 + max(int(self.query.max(initial=-1)), int(self.gallery.max(initial=-1)))

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """(queries,)  The number of gallery examples of each query's sequence."""
        known = np.bincount(self.gallery[self.gallery >= 0], minlength=self.count)
        return np.append(known, 0)[self.query]  # the last one, 0, for -1

    def members(self, query: int) -> NDArray[np.intp]:
        """The gallery rows of a query's sequence."""
        order, start = self._by_sequence
        number = self.query[query]
        return order[start[number] : start[number + 1]] if number >= 0 else order[:0]

    @cached_property
    def _by_sequence(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Gallery rows ordered by sequence, and where each sequence starts among them."""
        order = np.argsort(self.gallery, kind="stable")
        return order, np.searchsorted(self.gallery[order], np.arange(self.count + 1))


@dataclass(frozen=True)
class Task:
    """Queries and gallery with their classes; `shared` if both are the same examples."""

    queries: Vectors
    gallery: Vectors
    query_class: NDArray[np.intp]
    gallery_class: NDArray[np.intp]
    shared: bool
    sequences: Sequences | None = field(default=None, kw_only=True)

    @property
    def on_device(self) -> bool:
        """Whether queries and gallery are on the same GPU."""
        return self.gallery.device is not None and self.gallery.device == self.queries.device

    @cached_property
    def relevant(self) -> NDArray[np.intp]:
        """R of each query: the number of gallery examples of its class that it can find."""
        classes = 1 + max(self.query_class.max(), self.gallery_class.max())
        sizes = np.bincount(self.gallery_class, minlength=classes)[self.query_class]
        if self.sequences is None:
            return np.asarray(sizes - int(self.shared), dtype=np.intp)
        query, gallery = self.sequences.query, self.sequences.gallery
        there = gallery >= 0
        pairs, counts = np.unique(gallery[there] * classes + self.gallery_class[there], return_counts=True)
        asked = query * classes + self.query_class
        place = np.minimum(np.searchsorted(pairs, asked), max(len(pairs) - 1, 0))
        own = np.where(pairs[place] == asked, counts[place], 0) if len(pairs) else np.zeros_like(asked)
        return np.asarray(sizes - np.where(query >= 0, own, int(self.shared)), dtype=np.intp)

    @property
    def hidden(self) -> NDArray[np.intp]:
        """How many gallery examples each query never finds: itself, or its sequence, which it is of."""
        if self.sequences is None:
            return np.full(len(self.queries), int(self.shared))
        return np.maximum(self.sequences.sizes, int(self.shared))

    def hide(
        self, table: Array, rows: NDArray[np.intp], value: float = -np.inf, columns: NDArray[np.intp] | None = None
    ) -> None:
        """Set the entries (rows, gallery) of what queries never find; `columns` is where each gallery row stands."""
        if self.shared:
            table[np.arange(len(rows)), rows if columns is None else columns[rows]] = value
        if self.sequences is not None:
            for n, row in enumerate(rows.tolist()):
                members = self.sequences.members(row)
                table[n, members if columns is None else columns[members]] = value

    def is_hidden(self, rows: NDArray[np.intp], found: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the gallery rows (rows, k) that a search found are none that these queries can find."""
        hidden = found < 0
        if self.shared:
            hidden = hidden | (found == rows[:, None])
        if self.sequences is not None:
            own = self.sequences.query[rows][:, None]
            hidden = hidden | ((own >= 0) & (self.sequences.gallery[np.maximum(found, 0)] == own))
        return np.asarray(hidden)
