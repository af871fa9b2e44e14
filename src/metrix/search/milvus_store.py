"""The Milvus store: a local folder (milvus-lite) or a server, through pymilvus.

An index is one collection, which holds several generations of it. Its fields are

    row              the number of an item, the primary key
    id, vector       its id and its vector
    added, removed   the generations since which it is there, and since which it is not (NEVER as long as it is)
    c0, c1, ...      the columns, so that a column may have any name
    has0, has1, ...  whether the item has a value there: servers before 2.5 know no null

A reader sees its own generation only, by a filter. A change adds rows of the next generation and marks those that go;
nothing of it is seen until the description of the index is replaced, and what a killed writer left is removed by the
next one. So a change that was interrupted is repeated like any other command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrix.errors import DataError, InvalidInput, ShapeError
from metrix.search.filters import EVERYTHING, AllOf, Condition, Filter, expression
from metrix.search.items import (
    COLUMN_TYPES,
    Items,
    in_batches,
    merge_column,
    read_wanted_ids,
    require_distinct,
    same_columns,
    take,
    with_id_column,
)
from metrix.search.milvus_collections import connect, explained
from metrix.search.settings import Settings
from metrix.search.stores import SCAN_ROWS, Neighbours

MOST = 16_384  # the largest k, and rows of a query, that Milvus answers
BATCH_BYTES = 16 << 20  # of vectors sent at a time; a server refuses messages past 64 MB
AT_ONCE = 1000  # rows or ids named in one request
NO_VALUE: dict[str, Any] = {"text": "", "integer": 0, "number": 0.0, "boolean": False}  # what stands for null
NEVER = (1 << 62) - 1  # the generation that removes what stays


class MilvusStore:
    """A generation of a collection of Milvus; `milvus_collections.create_collection` makes one.

    Args:
        place: where the collection is: its URI, name and settings.
        kind: of the index.
        column_types: the columns and the type of each.
        folder: of the index, which local paths are relative to.
        generation: which one is read.
        count: how many items it has.
    """

    def __init__(
        self,
        place: Mapping[str, Any],
        kind: str,
        column_types: Mapping[str, str],
        folder: Path,
        generation: int,
        count: int,
    ) -> None:
        self._place, self._generation, self._count = dict(place), generation, count
        self._collection, self._kind, self._column_types = str(place["collection"]), kind, dict(column_types)
        self._fields = {name: f"c{n}" for n, name in enumerate(self._column_types)}
        self._has_value = {name: f"has{n}" for n, name in enumerate(self._column_types)}
        self.settings = Settings.read({"probes": 1, **place})
        self._client = connect(str(place["uri"]), folder)
        with explained(str(place["uri"])):
            if not self._client.has_collection(self._collection):
                raise DataError(
                    f"{place['uri']}: expected the collection {self._collection}, got a store without it; build the "
                    "index anew"
                )
            self._client.load_collection(self._collection)
            about = {field["name"]: field for field in self._client.describe_collection(self._collection)["fields"]}
        needed = {"row", "id", "vector", "added", "removed", *self._fields.values(), *self._has_value.values()}
        if not needed <= set(about):
            raise DataError(f"{self._collection}: expected a collection of an index, got another; build the index anew")
        self._text = bool(about["id"]["type"].name == "VARCHAR")
        self._dim = int(about["vector"]["params"]["dim"])

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self._dim

    @property
    def kind(self) -> str:
        """exact, hnsw, ivf or ivf-pq."""
        return self._kind

    @property
    def column_types(self) -> Mapping[str, str]:
        """The columns and the type of each."""
        return self._column_types

    @property
    def ids_are_text(self) -> bool:
        """Whether ids are texts; else they are integers."""
        return self._text

    def __len__(self) -> int:
        return self._count

    def _seen(self, more: Filter = EVERYTHING) -> str:
        """The filter of this generation and, possibly, of the user."""
        seen = (Condition("added", "<=", self._generation), Condition("removed", ">", self._generation))
        chosen = AllOf(seen if more == EVERYTHING else (*seen, more))
        return expression(chosen, {**self._fields, "added": "added", "removed": "removed"}, self._has_value)

    def search(self, queries: NDArray[np.float32], k: int, where: Filter = EVERYTHING) -> Neighbours:
        """The k nearest items of unit queries among those that meet the filter."""
        k = min(k, len(self))
        if k > MOST:
            raise InvalidInput(f"k: expected at most {MOST:,} with Milvus, got {k:,}")
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        similarities = np.full((len(queries), k), np.nan, dtype=np.float32)
        in_cells = {"nprobe": self.settings.probes}
        parameters = {"hnsw": {"ef": max(k, self.settings.breadth)}, "ivf": in_cells, "ivf-pq": in_cells}
        at_once = max(1, min(MOST, (4 << 20) // max(k, 1)))
        for start in range(0, len(queries), at_once):
            with explained(self._collection):
                found = self._client.search(
                    self._collection,
                    data=queries[start : start + at_once],
                    limit=max(k, 1),
                    filter=self._seen(where),
                    output_fields=[],
                    search_params={"metric_type": "IP", "params": parameters.get(self._kind, {})},
                    consistency_level="Strong",
                )
            for q, hits in enumerate(found, start):
                for n, hit in enumerate(hits[:k]):
                    rows[q, n] = hit["row"] if "row" in hit else hit["id"]  # as older servers call the key
                    similarities[q, n] = hit["distance"]
        most = int((rows >= 0).sum(axis=1).max(initial=0))  # a filter may keep fewer than k
        return Neighbours(rows[:, :most], similarities[:, :most])

    def find(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there."""
        known: dict[Any, int] = {}
        given = read_wanted_ids(ids, self._text)
        distinct = given.drop_null().unique().to_pylist()
        for start in range(0, len(distinct), AT_ONCE):
            wanted = expression(Condition("id", "in", tuple(distinct[start : start + AT_ONCE])), {"id": "id"}, {})
            found = self._query(f"({wanted}) and {self._seen()}", ["row", "id"])
            known |= {one["id"]: one["row"] for one in found}
        return np.array([known.get(one, -1) for one in given.to_pylist()], dtype=np.int64)

    def rows_from(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows of so many items after the first `start`; of those before it, only their numbers are read."""
        found, last = [], start + count
        for first in range(0, int(self._place["next_row"]), MOST):
            if last <= 0:
                break
            here = self._query(f"row >= {first} and row < {first + MOST} and {self._seen()}", ["row"])
            found += sorted(one["row"] for one in here)[max(start, 0) : last]
            start, last = start - len(here), last - len(here)
        return np.array(found, dtype=np.int64)

    def read_table(self, rows: NDArray[np.int64]) -> Any:
        """An Arrow table of the ids (`id`) and columns of these rows, in this order."""
        items = self._items(self._read(rows, ["row", "id", *self._fields.values(), *self._has_value.values()]), False)
        return with_id_column(items.ids, items.columns)

    def read_vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors (n, d) of these rows, in this order."""
        return _vectors(self._read(rows, ["row", "vector"]), self.dim)

    def _read(self, rows: NDArray[np.int64], fields: list[str]) -> list[dict[str, Any]]:
        known: dict[int, dict[str, Any]] = {}
        distinct = np.unique(rows).tolist()
        for start in range(0, len(distinct), AT_ONCE):
            found = self._query(f"row in {distinct[start : start + AT_ONCE]}", fields)
            known |= {one["row"]: one for one in found}
        try:
            return [known[row] for row in rows.tolist()]
        except KeyError:
            raise DataError(
                f"{self._collection}: the index was changed by another process since it was opened; open it again"
            ) from None

    def _query(self, condition: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        with explained(self._collection):
            found: list[dict[str, Any]] = self._client.query(
                self._collection, filter=condition, output_fields=fields, limit=limit, consistency_level="Strong"
            )
        return found

    def scan(self, rows: int = SCAN_ROWS) -> Iterator[tuple[NDArray[np.int64], Items]]:
        """All items with their rows, some at a time.

        Rows are asked for by their numbers: an iterator of pymilvus may not see what was written just before.
        """
        at_once = min(rows, MOST, self._rows_at_once)
        for start in range(0, int(self._place["next_row"]), at_once):
            found = self._query(f"row >= {start} and row < {start + at_once} and {self._seen()}", ["*"])
            if found:
                found.sort(key=lambda one: int(one["row"]))
                yield np.array([one["row"] for one in found], dtype=np.int64), self._items(found)

    @property
    def _rows_at_once(self) -> int:
        """How many rows with their vectors one message may have."""
        return max(1, BATCH_BYTES // (4 * self.dim))

    def _items(self, rows: Sequence[Mapping[str, Any]], vectors: bool = True) -> Items:
        ids = pa.array([row["id"] for row in rows], pa.string() if self._text else pa.int64())
        columns = {
            name: pa.array(
                [row[field] if row[self._has_value[name]] else None for row in rows],
                COLUMN_TYPES[self._column_types[name]],
            )
            for name, field in self._fields.items()
        }
        found = _vectors(rows, self.dim) if vectors else np.empty((len(rows), self.dim), np.float32)
        return Items(ids, found, pa.table(columns) if columns else take(pa.table({}), ids))

    def change(self, folder: Path, generation: int, new: Iterable[Items], gone: NDArray[np.int64]) -> dict[str, Any]:
        """Add rows of the next generation, and mark those that go; this one stays as it is."""
        self.remove_unseen()
        for start in range(0, len(gone), AT_ONCE):
            found = self._read(gone[start : start + AT_ONCE], ["*"])
            self._upsert([{**one, "removed": generation} for one in found])
        added = self._insert(new, generation, int(self._place["next_row"]))
        return {**self._place, "next_row": int(self._place["next_row"]) + added}

    def set_columns(
        self, folder: Path, generation: int, rows: NDArray[np.int64], table: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Replace these rows by others with the same vectors."""
        unknown = [name for name in table.column_names if name not in self._column_types]
        if unknown:
            raise DataError(
                f"columns: expected {', '.join(self._column_types) or 'none'}, as the collection has, got "
                f"{unknown[0]}; build the index anew with it"
            )
        found = self._items(self._read(rows, ["*"]))
        columns = {name: found.columns[name] for name in self._column_types}
        for name in table.column_names:
            columns[name] = merge_column(name, columns[name], np.arange(len(rows)), table[name])
        changed = Items(found.ids, found.vectors, pa.table(columns))
        return self.change(folder, generation, [changed], rows), dict(self._column_types)

    def fill(self, batches: Iterable[Items], generation: int) -> int:
        """Add the items of a build and let Milvus index them; returns how many."""
        added = self._insert(batches, generation, 0)
        with explained(self._collection):
            self._client.flush(self._collection)
        return added

    def _insert(self, batches: Iterable[Items], generation: int, next_row: int) -> int:
        """Add items as rows from `next_row` on; returns how many.

        Milvus keeps what it has acknowledged. A flush after every change would only make small segments, in seconds,
        and newer servers allow one in ten seconds.
        """
        first, ids = next_row, []
        for batch in batches:
            self._require_same(batch)
            ids.append(batch.ids)
            for part in in_batches(same_columns(batch, self._column_types), self._rows_at_once):
                self._upsert(
                    [
                        {
                            "row": next_row + n,
                            "id": record["id"],
                            "vector": vector,
                            "added": generation,
                            "removed": NEVER,
                            **self._columns_of(record),
                        }
                        for n, (record, vector) in enumerate(zip(part.records(), part.vectors, strict=True))
                    ]
                )
                next_row += len(part)
        if len(ids) > 1:  # the ids of one batch are distinct already
            require_distinct(pa.chunked_array(ids))
        return next_row - first

    def _columns_of(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an item's columns."""
        found: dict[str, Any] = {}
        for name, field in self._fields.items():
            value = record[name]
            found[field] = NO_VALUE[self._column_types[name]] if value is None else value
            found[self._has_value[name]] = value is not None
        return found

    def _upsert(self, rows: list[dict[str, Any]]) -> None:
        for start in range(0, len(rows), self._rows_at_once):
            with explained(self._collection):
                self._client.upsert(self._collection, rows[start : start + self._rows_at_once])

    def remove_unseen(self) -> None:
        """Delete what no generation has any more, and undo what a writer left that was killed.

        Rows that the current generation removed stay until the next change, for readers of the one before it.
        """
        self._delete(f"removed <= {self._generation}")
        while found := self._query(
            f"removed > {self._generation} and removed < {NEVER}", ["*"], min(MOST, self._rows_at_once)
        ):
            self._upsert([{**one, "removed": NEVER} for one in found])
        self._delete(f"added > {self._generation}")

    def _delete(self, condition: str) -> None:
        while found := self._query(condition, ["row"], MOST):
            with explained(self._collection):
                self._client.delete(self._collection, ids=[one["row"] for one in found])

    def _require_same(self, batch: Items) -> None:
        if batch.dim != self.dim:
            raise ShapeError(f"vectors: expected dimension {self.dim}, got {batch.dim}; one model makes all vectors")
        if pa.types.is_string(batch.ids.type) != self._text:
            raise InvalidInput("ids: expected all integers or all text, as the index has")

    def prepare(self) -> None:
        """Nothing: Milvus has its own ways."""

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(Exception):
            self._client.close()


def _vectors(rows: Sequence[Mapping[str, Any]], dim: int) -> NDArray[np.float32]:
    return np.array([row["vector"] for row in rows], dtype=np.float32).reshape(len(rows), dim)
