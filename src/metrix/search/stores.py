"""What a store has to offer to hold an index: a few methods, the same for faiss and for Milvus.

A store speaks in rows: numbers of items, which stay the same for as long as it is open. Ids and columns are looked up
once, for what is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metrix.search.filters import EVERYTHING, Filter
from metrix.search.items import Items
from metrix.search.settings import Settings

KINDS = ("exact", "hnsw", "ivf", "sq8", "ivf-pq")
STORES = ("faiss", "milvus")
SUGGEST_PAST = 1_000_000  # vectors past which exact search takes long enough to suggest another kind
SCAN_ROWS = 8192


class Neighbours(NamedTuple):
    """The nearest items of each query, nearest first; row -1 and similarity NaN where there are fewer."""

    rows: NDArray[np.int64]  # (queries, k)
    similarities: NDArray[np.float32]  # (queries, k) cosines


class TrueNeighbours(NamedTuple):
    """Items of a store as queries, and the rows of their nearest others, by comparison with everything."""

    own: NDArray[np.int64]  # (queries,) the row of each
    queries: NDArray[np.float32]  # (queries, d)
    rows: NDArray[np.int64]  # (queries, k), -1 for none


@runtime_checkable
class Store(Protocol):
    """Unit vectors under ids, with columns; `kind` is one of KINDS."""

    settings: Settings

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""

    @property
    def kind(self) -> str:
        """One of KINDS."""

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""

    @property
    def ids_are_text(self) -> bool:
        """Whether ids are texts; else they are integers."""

    def __len__(self) -> int: ...

    def search(self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING) -> Neighbours:
        """The k nearest items of unit queries (q, d) among those that meet the filter."""

    def find(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there, by one scan of the ids at most."""

    def rows_from(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows of so many items, in the order of a scan, after the first `start`; fewer at the end."""

    def read_table(self, rows: NDArray[np.int64]) -> Any:
        """An Arrow table of the ids (`id`) and columns of these rows, in this order."""

    def read_vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors (n, d) of these rows, in this order."""

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[tuple[NDArray[np.int64], Items]]:
        """All items with their rows, some at a time."""

    def change(self, folder: Path, generation: int, new: Iterable[Items], gone: NDArray[np.int64]) -> dict[str, Any]:
        """Prepare a generation without the rows in `gone` and with new items; the current one stays as it is.

        Returns:
            Where the new generation is, for the description.
        """

    def set_columns(
        self, folder: Path, generation: int, rows: NDArray[np.int64], table: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Prepare a generation in which these rows have the values of an Arrow table; vectors stay as they are.

        Returns:
            Where the new generation is, and the types of its columns.
        """

    def prepare(self) -> None:
        """Make now what speeds up searches for single queries, if there is such a thing."""

    def close(self) -> None:
        """Let go of files and connections."""


class Best:
    """The k best of several lists of (similarity, row)."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.similarities = np.empty((queries, 0), dtype=np.float32)
        self.rows = np.empty((queries, 0), dtype=np.int64)

    def add(self, similarities: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Merge one more list per query; row -1 is none."""
        both = np.concatenate([self.similarities, np.where(rows < 0, np.float32(-np.inf), similarities)], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")[:, : self.k]
        self.similarities = np.take_along_axis(both, best, axis=1)
        self.rows = np.take_along_axis(np.concatenate([self.rows, rows], axis=1), best, axis=1)
