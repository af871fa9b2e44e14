"""The faiss store: vectors in memory, or in a folder and memory-mapped.

A generation of an index in a folder is these files, which never change once they are complete:

    vectors-N.npy     unit vectors (n, d), float32; the operating system reads what a search touches
    items-N.arrow     ids and columns (Arrow IPC), memory-mapped as well
    graph-N.faiss     for hnsw and ivf: the faiss index (and graph-N.ivfdata, inverted lists on disk)

Exact search runs faiss's own kernel on the mapped vectors, so neither building nor opening an exact index
needs memory for all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrix.errors import DataError, InvalidInput, ShapeError
from metrix.extras import import_extra
from metrix.search.faiss_graph import Settings, build_graph, faiss_silenced
from metrix.search.filters import EVERYTHING, Filter, mask
from metrix.search.items import Items, chained, column_types_of, require_distinct, same_columns
from metrix.search.stores import SCAN_ROWS, Best, Neighbours, none_like

GATHER_ROWS = 65_536  # rows of a filtered search copied at a time
SEVERAL = 4  # queries from which on matrix products are faster than one query after another
FEW = 20_000  # rows that a filter may keep for exact search to be as fast as the graph


class FaissStore:
    """Items searched by faiss. Make one with `FaissStore.build`, or open a generation with `open_generation`."""

    def __init__(
        self,
        items: Items,
        kind: str,
        graph: Any = None,
        path: Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.items, self._kind, self._graph, self._path = items, kind, graph, path
        self.settings = settings or Settings()
        self._text = pa.types.is_string(items.ids.type)

    @classmethod
    def build(cls, items: Items, kind: str = "exact", settings: Settings | None = None) -> FaissStore:
        """A store in memory."""
        settings = settings or Settings()
        return cls(items, kind, build_graph(items.vectors, kind, settings, None), None, settings)

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self.items.dim

    @property
    def kind(self) -> str:
        """exact, hnsw or ivf."""
        return self._kind

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""
        return self.items.column_types

    def __len__(self) -> int:
        return len(self.items)

    def search(
        self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING, with_vectors: bool = False
    ) -> Neighbours:
        """The k nearest items of unit queries among those that meet the filter."""
        rows = np.flatnonzero(mask(where, self.items.columns)) if where != EVERYTHING else None
        k = min(k, len(self) if rows is None else len(rows))
        if k == 0:
            return self._named(
                np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64), with_vectors
            )
        if self._graph is not None and (rows is None or len(rows) > FEW):
            similarities, found = self._search_graph(queries, k, rows)
        elif rows is None:
            similarities, found = nearest(queries, self.items.vectors, k)
        else:
            best = Best(len(queries), k)
            for start in range(0, len(rows), GATHER_ROWS):
                some = rows[start : start + GATHER_ROWS]
                values, places = nearest(queries, self.items.vectors[some], min(k, len(some)))
                best.add(values, some[places])
            similarities, found = best.similarities, best.rows
        return self._named(similarities, found, with_vectors)

    def _search_graph(
        self, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        faiss = import_extra("faiss")

        similarities, found = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        given, out, rows_out = (faiss.swig_ptr(array) for array in (queries, similarities, found))
        # `search` itself: faiss.contrib.torch_utils replaces it with one that takes no parameters.
        self._graph.search_c(len(queries), given, k, out, rows_out, self._parameters(rows, k))
        return similarities, found

    def _parameters(self, rows: NDArray[np.int64] | None, k: int) -> Any:
        faiss = import_extra("faiss")

        selected: dict[str, Any] = {}
        if rows is not None:
            chosen = np.zeros(len(self), dtype=np.bool_)
            chosen[rows] = True
            selected["sel"] = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        if self._kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(self.settings.breadth, k), **selected)
        return faiss.SearchParametersIVF(nprobe=self._graph.nprobe, **selected)

    def _named(self, similarities: NDArray[np.float32], rows: NDArray[np.int64], with_vectors: bool) -> Neighbours:
        absent = rows < 0
        safe = np.maximum(rows, 0)
        ids = self.items.ids.take(pa.array(safe.reshape(-1))).to_numpy(zero_copy_only=False).reshape(rows.shape)
        vectors = None
        if absent.any():
            ids = np.where(absent, none_like(self._text), ids)
            similarities = np.where(absent, np.float32(np.nan), similarities)
        if with_vectors:
            vectors = np.array(self.items.vectors[safe.reshape(-1)]).reshape(*rows.shape, self.dim)
            vectors[absent] = 0
        return Neighbours(ids, similarities, vectors)

    def rows_of(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        wanted = as_ids(ids, self._text)
        if wanted is None:
            return np.full(len(ids), -1, dtype=np.int64)
        place = pc.index_in(self.items.ids, value_set=wanted)  # one pass over the ids, whatever their number
        rows = np.full(len(ids), -1, dtype=np.int64)
        there = np.flatnonzero(place.is_valid().to_numpy(zero_copy_only=False))
        rows[place.take(pa.array(there)).to_numpy(zero_copy_only=False).astype(np.int64)] = there
        again = pc.index_in(wanted, value_set=wanted).to_numpy()  # an id asked for twice
        return np.asarray(rows[again])

    def has(self, ids: Sequence[Any]) -> list[bool]:
        """Whether each id is there."""
        return [bool(row >= 0) for row in self.rows_of(ids)]

    def get(self, ids: Sequence[Any]) -> Items:
        """The items of these ids, in this order; ids that are not there are left out."""
        rows = self.rows_of(ids)
        found = self.items.part(rows[rows >= 0])
        return Items(found.ids, np.array(found.vectors), found.columns)

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[Items]:
        """All items, in lots."""
        for start in range(0, len(self), rows):
            yield self.items.part(slice(start, start + rows))

    def change(
        self, folder: Path, name: str, new: Iterable[Items], delete: Sequence[Any], replaced: Sequence[Any]
    ) -> dict[str, Any]:
        """Write a new generation: the items that stay, then the new ones."""
        gone = [*delete, *replaced]
        leaving = np.zeros(len(self), dtype=np.bool_)
        if gone:
            leaving[self.rows_of(gone)] = True

        def lots() -> Iterator[Items]:
            for start in range(0, len(self), SCAN_ROWS):
                stays = np.flatnonzero(~leaving[start : start + SCAN_ROWS])
                if len(stays):
                    yield self.items.part(stays + start)
            yield from new

        graph = None if gone else self._writable_graph()
        settings = self.settings.fitting(len(self) - int(leaving.sum()) + len(replaced))
        return write_generation(folder, name, lots(), self.kind, settings, graph)

    def _writable_graph(self) -> Any:
        """The approximate index read into memory, to add to; None if there is none, or its lists are on disk."""
        faiss = import_extra("faiss")

        if self._path is None or self._path.with_suffix(".ivfdata").exists():
            return None
        return faiss.read_index(str(self._path))

    def close(self) -> None:
        """Let go of the graph; mapped files are released with the arrays."""
        self._graph = None


def as_ids(ids: Sequence[Any], text: bool) -> Any:
    """Ids as an Arrow array; None if they are not of the kind that the store has."""
    types = (str,) if text else (int, np.integer)
    if not all(isinstance(one, types) and not isinstance(one, bool) for one in ids):
        return None
    return pa.array(list(ids), pa.string() if text else pa.int64())


def nearest(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and rows of the k nearest by inner product, exactly; `vectors` may be mapped from a file.

    >>> nearest(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 1)[1].tolist()
    [[0], [1]]
    """
    faiss = import_extra("faiss")

    plain = np.asarray(vectors)  # what faiss.contrib.torch_utils puts in place of knn knows no np.memmap
    asked = np.ascontiguousarray(queries)
    with _products_for_several(faiss, plain.shape[1]):
        found: tuple[NDArray[np.float32], NDArray[np.int64]] = faiss.knn(
            asked, plain, k, metric=faiss.METRIC_INNER_PRODUCT
        )
    return found


@contextlib.contextmanager
def _products_for_several(faiss: Any, dim: int) -> Iterator[None]:
    """Let faiss search with matrix products from SEVERAL queries on.

    By default newer versions do from 128,000 entries of all queries on (older ones from 20 queries on); measured on one
    core, products are 3 to 7 times faster from 8 queries on.
    """
    before = faiss.cvar.distance_compute_blas_threshold
    if before > 1000:  # counts entries, not queries
        faiss.cvar.distance_compute_blas_threshold = SEVERAL * dim
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def write_generation(
    folder: Path, name: str, lots: Iterable[Items], kind: str, settings: Settings, graph: Any = None
) -> dict[str, Any]:
    """Write a generation from items in lots, in bounded memory; returns where it is, for `open_generation`.

    `graph` is an approximate index of the first items that is to be continued, if they are the same as before.
    """
    lots = iter(lots)
    first = next(lots, None)
    if first is None:
        raise InvalidInput("items: expected at least one, got none; an index cannot be empty")
    place: dict[str, Any] = {"vectors": f"vectors-{name}.npy", "items": f"items-{name}.arrow"}
    several = _write_items(folder / place["vectors"], folder / place["items"], first, lots)
    items = _open_items(folder, place)
    if several:  # the ids of one lot are distinct already
        require_distinct(items.ids)
    if kind != "exact":
        faiss = import_extra("faiss")

        place |= {"graph": f"graph-{name}.faiss", **settings.asked()}
        if graph is None:
            graph = build_graph(items.vectors, kind, settings, folder / f"graph-{name}.ivfdata")
        else:
            for start in range(graph.ntotal, len(items), GATHER_ROWS):
                graph.add(np.array(items.vectors[start : start + GATHER_ROWS]))
        faiss.write_index(graph, str(folder / place["graph"]))
        _sync(folder / place["graph"])
        if (folder / f"graph-{name}.ivfdata").exists():
            place["lists"] = f"graph-{name}.ivfdata"
            _sync(folder / place["lists"])
    return place


def _write_items(vectors: Path, table: Path, first: Items, lots: Iterator[Items]) -> bool:
    """Write the lots one after another; whether there was more than one."""
    shape = (0, first.dim)
    header = {"descr": "<f4", "fortran_order": False}
    count = 0
    schema = pa.schema([("id", first.ids.type), *((field.name, field.type) for field in first.columns.schema)])
    with vectors.open("wb") as file, pa.OSFile(str(table), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})  # it has room for a longer shape
        for lot in chained(first, lots):
            if lot.dim != first.dim:
                raise ShapeError(f"vectors: expected dimension {first.dim}, got {lot.dim}; one model makes all vectors")
            if lot.ids.type != first.ids.type:
                raise InvalidInput("ids: expected all integers or all text, as the index has")
            same = same_columns(lot, first.column_types)
            file.write(np.ascontiguousarray(same.vectors, dtype="<f4").data)
            columns = {"id": same.ids, **{name: same.columns[name].combine_chunks() for name in first.column_types}}
            writer.write_table(pa.table(columns, schema=schema))
            count += len(same)
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, first.dim)})
        file.flush()
        os.fsync(file.fileno())
    _sync(table)
    return count > len(first)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def open_generation(folder: Path, place: Mapping[str, Any], kind: str) -> FaissStore:
    """The store that `write_generation` wrote, memory-mapped."""
    items = _open_items(folder, place)
    graph = None
    if kind != "exact":
        faiss = import_extra("faiss")

        path = folder / place["graph"]
        # Inverted lists stay in the file, as does the storage of hnsw; only the coarse centres are read.
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR if "lists" in place else faiss.IO_FLAG_MMAP_IFC
        try:
            with faiss_silenced():
                graph = faiss.read_index(str(path), flags)
        except RuntimeError as error:
            raise DataError(f"{path}: expected a faiss index, got a damaged file; build the index anew") from error
        if graph.ntotal != len(items) or graph.d != items.dim:
            raise DataError(f"{path}: expected {len(items)} vectors, got {graph.ntotal}; build the index anew")
    return FaissStore(items, kind, graph, folder / place["graph"] if graph else None, Settings.read(place))


def _open_items(folder: Path, place: Mapping[str, Any]) -> Items:
    path, table = folder / place["vectors"], folder / place["items"]
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        columns = pa.ipc.open_file(pa.memory_map(str(table))).read_all()
        columns.validate(full=True)  # damaged offsets would read, and combine_chunks write, beyond their memory
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged headers are parsed as Python, with all kinds of exceptions
        raise DataError(f"{folder}: expected a complete index, got a damaged file ({error}); build it anew") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32 or len(vectors) != columns.num_rows:
        raise DataError(
            f"{folder}: expected a vector for each of {columns.num_rows} items, got an array of shape {vectors.shape} "
            f"and type {vectors.dtype}; build the index anew"
        )
    try:
        ids, rest = columns["id"].combine_chunks(), columns.drop_columns(["id"])
        column_types_of(rest.schema)
    except KeyError as error:
        raise DataError(f"{table}: expected ids and columns of an index, got {columns.schema.names}") from error
    return Items(ids, vectors, rest)


def files_of(place: Mapping[str, Any]) -> set[str]:
    """The names of a generation's files."""
    return {str(place[key]) for key in ("vectors", "items", "graph", "lists") if key in place}
