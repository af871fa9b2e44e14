"""What a store has to offer to hold an index: a few methods, the same for faiss and for Milvus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metrix.search.filters import EVERYTHING, Filter
from metrix.search.items import Items

KINDS = ("exact", "hnsw", "ivf")
STORES = ("faiss", "milvus")
SUGGEST_PAST = 1_000_000  # vectors past which exact search takes long enough to suggest another kind
SCAN_ROWS = 8192


class Found(NamedTuple):
    """The nearest items of each query, nearest first; id "" or -1 and similarity NaN where there are fewer."""

    ids: NDArray[Any]  # (queries, k), text or int64
    similarities: NDArray[np.float32]  # (queries, k) cosines


class Neighbours(NamedTuple):
    """What a store finds: as `Found`, and the vectors of the items if they were asked for."""

    ids: NDArray[Any]
    similarities: NDArray[np.float32]
    vectors: NDArray[np.float32] | None = None  # (queries, k, d), zeros where there are fewer


class Store(Protocol):
    """Unit vectors under ids, with columns; `kind` is one of KINDS."""

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""

    @property
    def kind(self) -> str:
        """exact, hnsw or ivf."""

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""

    def __len__(self) -> int: ...

    def search(
        self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING, with_vectors: bool = False
    ) -> Neighbours:
        """The k nearest items of unit queries (q, d) among those that meet the filter."""

    def has(self, ids: Sequence[Any]) -> list[bool]:
        """Whether each id is there."""

    def get(self, ids: Sequence[Any]) -> Items:
        """The items of these ids, in this order; ids that are not there are left out."""

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[Items]:
        """All items, in lots."""

    def change(
        self, folder: Path, name: str, new: Iterable[Items], delete: Sequence[Any], replaced: Sequence[Any]
    ) -> dict[str, Any]:
        """Take away items and add others, of which those under the `replaced` ids are there already.

        Returns where the changed store is, for the description; `name` is that of the new generation.
        """

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


def none_like(ids_are_text: bool) -> Any:
    """The id that stands for none."""
    return "" if ids_are_text else -1
