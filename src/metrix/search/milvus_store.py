"""The Milvus store: a local folder (milvus-lite) or a server, through pymilvus.

An index is one collection. Its fields are `id`, `vector` and `c0`, `c1`, ... for the columns, so that a column may
have any name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrix.errors import DataError, InvalidInput, ShapeError
from metrix.extras import import_extra
from metrix.files import write_json
from metrix.search.faiss_graph import Settings
from metrix.search.faiss_store import as_ids
from metrix.search.filters import EVERYTHING, Filter, expression
from metrix.search.items import COLUMN_TYPES, Items, chained, in_batches, same_columns, take
from metrix.search.stores import SCAN_ROWS, Neighbours, none_like

PREFIX = "milvus:"
MOST = 16_384  # the largest k, and rows of a query, that Milvus answers
BATCH_BYTES = 16 << 20  # of vectors sent at a time; a server refuses messages past 64 MB
TEXT_LENGTH = 65_535
PENDING = ".pending.json"  # the collection that is being filled
INDEX_TYPES = {"exact": "FLAT", "hnsw": "HNSW", "ivf": "IVF_FLAT"}


class MilvusStore:
    """A collection of Milvus; `write_collection` makes one."""

    def __init__(self, place: Mapping[str, Any], kind: str, column_types: Mapping[str, str], folder: Path) -> None:
        self._place = dict(place)
        self._collection, self._kind, self._column_types = str(place["collection"]), kind, dict(column_types)
        self._fields = {name: f"c{n}" for n, name in enumerate(self._column_types)}
        self._settings = Settings(probes=int(place.get("probes", 1)), breadth=int(place.get("breadth", 64)))
        self._client = _connect(str(place["uri"]), folder)
        with _explained(str(place["uri"])):
            if not self._client.has_collection(self._collection):
                raise DataError(
                    f"{place['uri']}: expected the collection {self._collection}, got a store without it; build the "
                    "index anew"
                )
            self._client.load_collection(self._collection)
            about = self._client.describe_collection(self._collection)["fields"]
        self._text = next(field for field in about if field["name"] == "id")["type"].name == "VARCHAR"
        self._dim = int(next(field for field in about if field["name"] == "vector")["params"]["dim"])

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self._dim

    @property
    def kind(self) -> str:
        """exact, hnsw or ivf."""
        return self._kind

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""
        return self._column_types

    def __len__(self) -> int:
        found = self._client.query(self._collection, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(found[0]["count(*)"])

    def search(
        self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING, with_vectors: bool = False
    ) -> Neighbours:
        """The k nearest items of unit queries among those that meet the filter."""
        k = min(k, len(self))
        if k > MOST:
            raise InvalidInput(f"k: expected at most {MOST:,} with Milvus, got {k:,}")
        ids = np.full((len(queries), k), none_like(self._text), dtype=object if self._text else np.int64)
        similarities = np.full((len(queries), k), np.nan, dtype=np.float32)
        vectors = np.zeros((len(queries), k, self.dim), dtype=np.float32) if with_vectors else None
        parameters = {"hnsw": {"ef": max(k, self._settings.breadth)}, "ivf": {"nprobe": self._settings.probes}}
        rows = max(1, min(MOST, (4 << 20) // max(k, 1)) // (self.dim if with_vectors else 1))
        for start in range(0, len(queries), rows):
            with _explained(self._collection):
                found = self._client.search(
                    self._collection,
                    data=queries[start : start + rows],
                    limit=max(k, 1),
                    filter=expression(where, self._fields),
                    output_fields=["vector"] if with_vectors else [],
                    search_params={"metric_type": "IP", "params": parameters.get(self._kind, {})},
                    consistency_level="Strong",
                )
            for q, hits in enumerate(found, start):
                for n, hit in enumerate(hits[:k]):
                    ids[q, n], similarities[q, n] = hit["id"], hit["distance"]
                    if vectors is not None:
                        vectors[q, n] = hit["entity"]["vector"]
        most = int((~np.isnan(similarities)).sum(axis=1).max(initial=0))  # a filter may keep fewer than k
        return Neighbours(ids[:, :most], similarities[:, :most], None if vectors is None else vectors[:, :most])

    def has(self, ids: Sequence[Any]) -> list[bool]:
        """Whether each id is there."""
        known = self._rows(ids, ["id"])
        return [one in known for one in ids]

    def get(self, ids: Sequence[Any]) -> Items:
        """The items of these ids, in this order; ids that are not there are left out."""
        known = self._rows(ids, ["*"])
        return self._items([known[one] for one in ids if one in known])

    def _rows(self, ids: Sequence[Any], fields: list[str]) -> dict[Any, dict[str, Any]]:
        known: dict[Any, dict[str, Any]] = {}
        distinct = list(dict.fromkeys(ids)) if as_ids(ids, self._text) is not None else []
        for start in range(0, len(distinct), 1000):
            with _explained(self._collection):
                found = self._client.get(
                    self._collection,
                    ids=distinct[start : start + 1000],
                    output_fields=fields,
                    consistency_level="Strong",
                )
            known |= {row["id"]: row for row in found}
        return known

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[Items]:
        """All items, in lots."""
        with _explained(self._collection):
            lots = self._client.query_iterator(
                self._collection, batch_size=min(rows, MOST), filter="", output_fields=["*"], consistency_level="Strong"
            )
            try:
                while lot := lots.next():
                    yield self._items(lot)
            finally:
                lots.close()

    def _items(self, rows: Sequence[Mapping[str, Any]]) -> Items:
        ids = pa.array([row["id"] for row in rows], pa.string() if self._text else pa.int64())
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(len(rows), self.dim)
        columns = {
            name: pa.array([row.get(field) for row in rows], COLUMN_TYPES[self._column_types[name]])
            for name, field in self._fields.items()
        }
        return Items(ids, vectors, pa.table(columns) if columns else take(pa.table({}), ids))

    def change(
        self, folder: Path, name: str, new: Iterable[Items], delete: Sequence[Any], replaced: Sequence[Any]
    ) -> dict[str, Any]:
        """Change the collection in place: each message to Milvus is applied whole."""
        for start in range(0, len(delete), 1000):
            with _explained(self._collection):
                self._client.delete(self._collection, ids=list(delete[start : start + 1000]))
        self.upsert(new)
        return dict(self._place)

    def upsert(self, lots: Iterable[Items]) -> None:
        """Add items; those under an id that is there are replaced."""
        for lot in lots:
            self._require_kind(lot)
            rows = max(1, BATCH_BYTES // (4 * self.dim))
            for part in in_batches(same_columns(lot, self._column_types), rows):
                records, vectors = part.records(), part.vectors
                with _explained(self._collection):
                    self._client.upsert(
                        self._collection,
                        [
                            {
                                "id": record["id"],
                                "vector": vector,
                                **{field: record[name] for name, field in self._fields.items()},
                            }
                            for record, vector in zip(records, vectors, strict=True)
                        ],
                    )
        self._flush()

    def _flush(self) -> None:
        with _explained(self._collection):
            self._client.flush(self._collection)

    def _require_kind(self, lot: Items) -> None:
        if lot.dim != self.dim:
            raise ShapeError(f"vectors: expected dimension {self.dim}, got {lot.dim}; one model makes all vectors")
        if pa.types.is_string(lot.ids.type) != self._text:
            raise InvalidInput("ids: expected all integers or all text, as the index has")

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(Exception):
            self._client.close()


def write_collection(
    folder: Path, uri: str, lots: Iterable[Items], kind: str, settings: Settings, count: int
) -> dict[str, Any]:
    """Fill a new collection; returns where it is, for `MilvusStore`. Nothing of an older one is touched."""
    from pymilvus import DataType

    lots = iter(lots)
    first = next(lots, None)
    if first is None:
        raise InvalidInput("items: expected at least one, got none; an index cannot be empty")
    name = f"metrix_{uuid.uuid4().hex}"
    place: dict[str, Any] = {"uri": uri, "collection": name, "breadth": settings.breadth}
    parameters: dict[str, Any] = {}
    if kind == "hnsw":
        parameters = {"M": settings.links, "efConstruction": 100}
    elif kind == "ivf":
        cells, place["probes"] = settings.cells_for(count)
        parameters = {"nlist": cells}
    types = {
        "text": {"datatype": DataType.VARCHAR, "max_length": TEXT_LENGTH},
        "integer": {"datatype": DataType.INT64},
        "number": {"datatype": DataType.DOUBLE},
        "boolean": {"datatype": DataType.BOOL},
    }
    if parameters and "://" not in uri:
        parameters["params"] = json.dumps(parameters)  # milvus-lite reads them only there, a server one by one
    client = _connect(uri, folder)
    write_json(folder / PENDING, place)
    try:
        with _explained(uri):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            of_ids = types["text" if pa.types.is_string(first.ids.type) else "integer"]
            schema.add_field("id", is_primary=True, **of_ids)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=first.dim)
            for n, column in enumerate(first.column_types.values()):
                schema.add_field(f"c{n}", nullable=True, **types[column])
            index = client.prepare_index_params()
            index.add_index("vector", index_type=INDEX_TYPES[kind], metric_type="IP", params=parameters)
            client.create_collection(name, schema=schema, index_params=index)
        store = MilvusStore(place, kind, first.column_types, folder)
        try:
            store.upsert(chained(first, lots))
        finally:
            store.close()
    except BaseException:
        with contextlib.suppress(Exception):
            client.drop_collection(name)
        raise
    finally:
        with contextlib.suppress(Exception):
            client.close()
    return place


def drop_pending(folder: Path, current: str | None) -> None:
    """Remove the collection that a killed build left behind, if `current`, the one in use, is another."""
    path = folder / PENDING
    if not path.is_file():
        return
    try:
        place = json.loads(path.read_bytes())
        if place["collection"] != current:
            drop_collection(folder, place)
    except (ValueError, KeyError, TypeError, DataError):
        return  # the store is not there now; the note stays for the next time
    path.unlink(missing_ok=True)


def drop_collection(folder: Path, place: Mapping[str, Any]) -> None:
    """Remove a collection that no description points to any more."""
    client = _connect(str(place["uri"]), folder)
    with contextlib.suppress(Exception):
        client.drop_collection(str(place["collection"]))
        client.close()


def address(store: str, folder: Path) -> str:
    """The URI in `milvus:URI`; a local path is kept relative to the index, so that both can move together.

    >>> address("milvus:http://host:19530", Path("photos.index"))
    'http://host:19530'
    """
    uri = store.removeprefix(PREFIX)
    if not uri:
        raise InvalidInput("store: expected milvus:PATH or milvus:http://HOST:PORT, got 'milvus:'")
    return uri if "://" in uri else Path(os.path.relpath(uri, folder)).as_posix()


def _connect(uri: str, folder: Path) -> Any:
    client = import_extra("pymilvus").MilvusClient
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    with _explained(uri):
        return client(uri if "://" in uri else str((folder / uri).resolve()), timeout=30)


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Errors of Milvus as ours, in one sentence."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise DataError(f"Milvus ({where}): {error.message or error}") from error
