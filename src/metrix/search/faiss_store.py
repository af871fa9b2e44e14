"""The faiss store: vectors in memory, or in a folder and memory-mapped.

Exact search runs faiss's own kernel on the mapped vectors, so neither building nor opening an exact index needs memory
for all of them. An approximate one finds candidates by their codes and compares those exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrix.search.byte_codes import AFTER, MOST_K, ByteCodes, can_have_bytes
from metrix.search.faiss_files import (
    OF_CODES,
    OpenFiles,
    name_files,
    open_files,
    read_codes,
    read_reach,
    write_codes,
    write_generation,
    write_part,
    write_table,
)
from metrix.search.faiss_kinds import APPROXIMATE, build_codes, build_parameters
from metrix.search.filters import EVERYTHING, Filter, mask
from metrix.search.items import Items, column_types_of, merge_column, read_wanted_ids, take, with_id_column
from metrix.search.nearest import SEVERAL, nearest, nearest_among
from metrix.search.settings import Settings
from metrix.search.sketches import search_faiss
from metrix.search.stores import SCAN_ROWS, Best, Neighbours, TrueNeighbours
from metrix.search.vectors import MappedVectors

GATHER_ROWS = 65_536  # rows of a filtered search copied at a time
GATHER_BYTES = 64 << 20  # of candidates compared at a time
FEW = 20_000  # rows that a filter may keep for exact search to be as fast as codes
REACH_QUERIES = 100  # that measure how far a search by a sketch has to reach
MOST_PARTS = 32  # files of vectors past which an addition writes all of them anew
TAIL = 10_000  # rows, or the share that a kind says, that may be without a code and are compared exactly


class FaissStore:
    """Items searched by faiss. Make one with `FaissStore.build`, or open a generation with `FaissStore.open`."""

    def __init__(self, files: OpenFiles, kind: str, settings: Settings, place: Mapping[str, Any] | None = None) -> None:
        self._ids, self._columns, self.vectors, self._codes = files.ids, files.columns, files.vectors, files.codes
        self._kind, self.settings, self._place = kind, settings, dict(place or {})
        self._sketch, self.reach = files.sketch, read_reach(self._place)
        self._bytes: ByteCodes | None = None
        self._asked, self._making_bytes = 0, threading.Lock()

    @classmethod
    def build(cls, items: Items, kind: str = "exact", settings: Settings | None = None) -> FaissStore:
        """A store in memory."""
        settings, vectors = settings or Settings(), MappedVectors([items.vectors])
        codes = None if kind == "exact" else build_codes(vectors, kind, settings)
        return cls(OpenFiles(items.ids, items.columns, vectors, codes), kind, settings)

    @classmethod
    def open(cls, folder: Path, place: Mapping[str, Any], kind: str) -> FaissStore:
        """The store that `write_generation` wrote, memory-mapped."""
        settings = Settings.read(place)
        return cls(open_files(folder, place, kind), kind, settings, place)

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self.vectors.shape[1]

    @property
    def kind(self) -> str:
        """exact, hnsw, ivf, sq8 or ivf-pq."""
        return self._kind

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""
        return column_types_of(self._columns.schema)

    @property
    def ids_are_text(self) -> bool:
        """Whether ids are texts; else they are integers."""
        return bool(pa.types.is_string(self._ids.type))

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING) -> Neighbours:
        """The k nearest items of unit queries among those that meet the filter."""
        kept = None if where == EVERYTHING else mask(where, self._columns)
        count = len(self) if kept is None else int(kept.sum())
        k = min(k, count)
        if k == 0:
            return Neighbours(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
        if self._codes is not None and (kept is None or count > FEW):
            return self._search_codes(queries, k, kept)
        if kept is None:
            return self._compare_with_all(queries, k)
        return self._compare_with(queries, k, np.flatnonzero(kept))

    def prepare(self) -> None:
        """Make the codes now that speed up exact search for a few queries; else the first queries are slower."""
        with self._making_bytes:
            if self._bytes is None and self._codes is None and can_have_bytes(self.vectors):
                self._bytes = ByteCodes(self.vectors)

    def _compare_with_all(self, queries: NDArray[np.float32], k: int) -> Neighbours:
        """The k nearest, exactly; a few queries at a time read a quarter of the bytes where that is enough."""
        if len(queries) < SEVERAL and k <= MOST_K and (known := self._take_bytes(len(queries))) is not None:
            found = [self._search_bytes(known, query[None], k) for query in queries]
            return Neighbours(np.concatenate([one[1] for one in found]), np.concatenate([one[0] for one in found]))
        similarities, rows = nearest(queries, self.vectors, k)
        return Neighbours(rows, similarities)

    def _search_bytes(
        self, known: ByteCodes, query: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        found = known.search(query, k, lambda rows: nearest_among(query, self.vectors, k, rows))
        return nearest(query, self.vectors, k) if found is None else found

    def _take_bytes(self, queries: int) -> ByteCodes | None:
        """The codes of exact search where they help; made once there were queries enough to pay for them."""
        if self._bytes is None:
            self._asked += queries
            if self._asked > AFTER and not self._making_bytes.locked():
                self.prepare()
        return self._bytes if self._bytes is not None and self._bytes.worthwhile else None

    def _compare_with(self, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64]) -> Neighbours:
        """The k nearest of some rows, exactly."""
        best = Best(len(queries), k)
        for start in range(0, len(rows), GATHER_ROWS):
            some = rows[start : start + GATHER_ROWS]
            values, places = nearest(queries, self.vectors[some], min(k, len(some)))
            best.add(values, some[places])
        return Neighbours(best.rows, best.similarities)

    def _search_codes(self, queries: NDArray[np.float32], k: int, kept: NDArray[np.bool_] | None) -> Neighbours:
        """Candidates by their codes, and the rows that have none, compared exactly."""
        wanted = min(k * (self.settings.candidates or APPROXIMATE[self._kind].candidates), self._codes.ntotal)
        tail = np.arange(self._codes.ntotal, len(self))
        tail = tail if kept is None else tail[kept[tail]]
        best = Best(len(queries), k)
        if len(tail):
            near = self._compare_with(queries, min(k, len(tail)), tail)
            best.add(near.similarities, near.rows)
        rows = self._find_candidates(queries, k, wanted, None if kept is None else kept[: self._codes.ntotal])
        similarities = np.empty(rows.shape, np.float32)
        at_once = max(1, GATHER_BYTES // (4 * self.dim * rows.shape[1]))
        for start in range(0, len(queries), at_once):
            some, asked = rows[start : start + at_once], queries[start : start + at_once]
            vectors = self.vectors[np.maximum(some, 0).reshape(-1)].reshape(*some.shape, self.dim)
            similarities[start : start + at_once] = np.matmul(vectors, asked[:, :, None])[:, :, 0]
        best.add(similarities, rows)
        none = best.rows < 0
        return Neighbours(best.rows, np.where(none, np.float32(np.nan), best.similarities))

    def _find_candidates(
        self, queries: NDArray[np.float32], k: int, wanted: int, kept: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Rows (q, wanted or more) by their codes, -1 for none."""
        if self._sketch is not None and (reach := self._sketch.reach_for(k, self.reach, kept is not None)):
            return self._sketch.find_candidates(queries, wanted, reach, kept)[1]
        parameters = build_parameters(self._codes, self._kind, self.settings, wanted, kept)
        return search_faiss(self._codes, queries, wanted, parameters)[1]

    def choose_reach(self, known: TrueNeighbours) -> dict[str, Any]:
        """What to store of how far a search by the sketch has to reach; nothing where there is none."""
        if self._sketch is None:
            return {}
        some = slice(0, REACH_QUERIES)
        self.reach = self._sketch.choose_reach(known.queries[some], known.rows[some])
        return {"reach": self.reach.near, "far_reach": self.reach.far}

    def find(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        wanted = read_wanted_ids(ids, self.ids_are_text)
        rows = np.full(len(ids), -1, dtype=np.int64)
        if len(ids) == 1:
            rows[0] = pc.index(self._ids, wanted[0]).as_py()
            return rows
        place = pc.index_in(self._ids, value_set=wanted)  # one pass over the ids, whatever their number
        there = np.flatnonzero(place.is_valid().to_numpy(zero_copy_only=False))
        rows[place.take(pa.array(there)).to_numpy(zero_copy_only=False).astype(np.int64)] = there
        again = pc.index_in(wanted, value_set=wanted).to_numpy()  # an id asked for twice
        return np.asarray(rows[again])

    def rows_from(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows of so many items after the first `start`."""
        return np.arange(start, max(start, min(start + count, len(self))))

    def read_table(self, rows: NDArray[np.int64]) -> Any:
        """An Arrow table of the ids (`id`) and columns of these rows, in this order."""
        chosen = pa.array(rows)
        return with_id_column(self._ids.take(chosen), take(self._columns, chosen))

    def read_vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors (n, d) of these rows, in this order."""
        return self.vectors[rows]

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[tuple[NDArray[np.int64], Items]]:
        """All items with their rows, some at a time."""
        for start in range(0, len(self), rows):
            stop = min(start + rows, len(self))
            columns = self._columns.slice(start, stop - start)
            yield np.arange(start, stop), Items(self._ids[start:stop], self.vectors[start:stop], columns)

    def change(self, folder: Path, generation: int, new: Iterable[Items], gone: NDArray[np.int64]) -> dict[str, Any]:
        """Add a pair of files with the new items or, if items go or files have become many, write all anew."""
        if not len(gone) and len(self._place["vectors"]) < MOST_PARTS:
            return self._append(folder, generation, new)
        stays = np.ones(len(self), dtype=np.bool_)
        stays[gone] = False

        def batches() -> Iterator[Items]:
            for rows, items in self.scan():
                kept = np.flatnonzero(stays[rows])
                if len(kept):
                    yield items.part(kept)
            yield from new

        return write_generation(folder, generation, batches(), self._kind, self.settings, fit=True)

    def _append(self, folder: Path, generation: int, new: Iterable[Items]) -> dict[str, Any]:
        name = name_files(generation)
        part = write_part(folder, name, new, self.settings.half)
        place = {**self._place, **{key: [*self._place[key], *part[key]] for key in part}}
        if self._codes is None:
            return place
        count = len(MappedVectors.open([folder / file for file in place["vectors"]]))
        if count - self._codes.ntotal <= max(TAIL, count // APPROXIMATE[self._kind].without_code):
            return place
        codes = read_codes(folder, self._place)
        written = write_codes(folder, name, place, self._kind, self.settings, codes)
        return {**{key: value for key, value in place.items() if key not in OF_CODES}, **written}

    def set_columns(
        self, folder: Path, generation: int, rows: NDArray[np.int64], table: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Write ids and columns anew; vectors and codes stay as they are."""
        columns = {name: self._columns[name] for name in self._columns.column_names}
        for name in table.column_names:
            now = columns.get(name, pa.chunked_array([pa.nulls(len(self), table[name].type)]))
            columns[name] = pa.chunked_array([merge_column(name, now, rows, table[name])])
        changed = pa.table(columns)
        file = write_table(folder, name_files(generation), with_id_column(self._ids, changed))
        return {**self._place, "items": [file]}, column_types_of(changed.schema)

    def close(self) -> None:
        """Let go of the codes; mapped files are released with the arrays."""
        self._codes = self._sketch = self._bytes = None
