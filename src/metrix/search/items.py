"""What an index holds: a vector, an id and columns for each item, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrix.errors import DataError, EmbeddingError, InvalidInput, LabelError, ShapeError
from metrix.messages import first_few

LABEL = "label"  # the column of class names
COLUMN_TYPES = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
RESERVED = ("id", "vector")


@dataclass(frozen=True, eq=False)
class Items:
    """Unit vectors with an id each, text or integers, and columns such as `label`. Make them with `Items.read`."""

    ids: Any  # pyarrow.Array (n,) of strings or int64
    vectors: NDArray[np.float32]  # (n, d), unit norm
    columns: Any  # pyarrow.Table of n rows, its types those of COLUMN_TYPES

    @classmethod
    def read(cls, vectors: object, ids: object = None, columns: Mapping[str, Sequence[Any]] | None = None) -> Items:
        """Check and normalise vectors (n, d); ids are row numbers if none are given.

        >>> Items.read([[3.0, 4.0]], ["a.jpg"], {"label": ["cat"]}).vectors
        array([[0.6, 0.8]], dtype=float32)
        """
        unit = unit_vectors(vectors)
        named = read_ids(ids, len(unit))
        arrays = {name: _column(name, values, len(unit)) for name, values in (columns or {}).items()}
        table = pa.table(arrays) if arrays else _no_columns(len(unit))
        return cls(named, unit, table)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return int(self.vectors.shape[1])

    @property
    def ids_are_text(self) -> bool:
        """Whether ids are texts; else they are integers."""
        return bool(pa.types.is_string(self.ids.type))

    @property
    def column_types(self) -> dict[str, str]:
        """The type of each column: text, integer, number or boolean."""
        return column_types_of(self.columns.schema)

    def part(self, rows: slice | NDArray[Any]) -> Items:
        """Some of the items, in the given order."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return Items(self.ids[start:stop], self.vectors[start:stop], self.columns.slice(start, stop - start))
        chosen = pa.array(rows)
        return Items(self.ids.take(chosen), self.vectors[rows], take(self.columns, chosen))

    def records(self) -> list[dict[str, Any]]:
        """Id and columns of each item as a plain dictionary, without the vector."""
        names, rows = self.ids.to_pylist(), self.columns.to_pylist()
        return [{"id": name, **row} for name, row in zip(names, rows or [{}] * len(names), strict=True)]

    def with_ids(self, ids: Sequence[str]) -> Items:
        """The same items under other ids."""
        return Items(read_ids(list(ids), len(self)), self.vectors, self.columns)


def column_types_of(schema: Any) -> dict[str, str]:
    """The types of an Arrow schema's columns."""
    names = {kind: name for name, kind in COLUMN_TYPES.items()}
    return {field.name: names[field.type] for field in schema}


def with_id_column(ids: Any, columns: Any) -> Any:
    """A table of ids, as `id`, and columns."""
    return pa.table({"id": ids, **{name: columns[name] for name in columns.column_names}})


def read_table_of(columns: Mapping[str, Sequence[Any]], count: int) -> Any:
    """Columns as a table, checked."""
    return pa.table({name: _column(name, values, count) for name, values in columns.items()})


def merge_column(name: str, now: Any, rows: NDArray[np.int64], values: Any) -> Any:
    """A column in which some rows have other values; of the type that it has, or of the new ones if it has none."""
    kind = values.type if now.null_count == len(now) and now.type != values.type else now.type
    try:
        both = pa.concat_arrays([one.combine_chunks().cast(kind) for one in (now, values)])
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name!r}: expected {now.type}, as the index has, got {values.type}") from error
    places = np.arange(len(now))
    places[rows] = len(now) + np.arange(len(rows))
    return both.take(pa.array(places))


def drop_id(table: Any) -> Any:
    """The columns of a table without `id`; one that had no other keeps its number of rows."""
    return table.drop_columns(["id"]) if table.num_columns > 1 else _no_columns(table.num_rows)


def take(table: Any, rows: Any) -> Any:
    """Rows of a table; one without columns keeps its number of rows."""
    return table.take(rows) if table.num_columns else _no_columns(len(rows))


def join_items(parts: Sequence[Items]) -> Items:
    """Several batches of items with the same columns as one."""
    ids = pa.concat_arrays([part.ids for part in parts])
    columns = pa.concat_tables([part.columns for part in parts])
    return Items(ids, np.concatenate([part.vectors for part in parts]), columns)


def same_columns(items: Items, column_types: Mapping[str, str]) -> Items:
    """Items with exactly these columns, in this order: missing ones are null, others an error."""
    unknown = [name for name in items.column_types if name not in column_types]
    if unknown:
        raise DataError(
            f"columns: expected {first_few(list(column_types), 10) or 'none'}, as the index has, got also "
            f"{first_few(unknown)}; leave them out, or build the index anew"
        )
    if not column_types:
        return items
    arrays = {}
    for name, kind in column_types.items():
        if name not in items.columns.column_names:
            arrays[name] = pa.nulls(len(items), COLUMN_TYPES[kind])
            continue
        column = items.columns[name]
        try:
            arrays[name] = column.cast(COLUMN_TYPES[kind])
        except pa.ArrowInvalid as error:
            raise DataError(
                f"column {name!r}: expected {kind}, as the index has, got {items.column_types[name]}"
            ) from error
    return Items(items.ids, items.vectors, pa.table(arrays))


def unit_vectors(values: Any, name: str = "vectors") -> NDArray[np.float32]:
    """Vectors (n, d) at unit norm in float32; NaN, infinity and zero vectors are an error."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"{name}: expected a table (n, d), got rows of different lengths ({error})") from error
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"{name}: expected shape (n, d) with at least one row and column, got {array.shape}")
    if array.dtype.kind not in "fiub":
        raise EmbeddingError(f"{name}: expected real numbers, got type {array.dtype}")
    if array.dtype == np.float32:
        squares = np.einsum("nd,nd->n", array, array)
        if (np.abs(squares - 1) <= 2e-6).all():  # what a network normalised stays as it is, to the bit
            return np.ascontiguousarray(array)
    with np.errstate(over="ignore"):  # what overflows is refused below
        norms = np.linalg.norm(array.astype(np.float64), axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0))
    if len(bad):
        raise EmbeddingError(
            f"{name}: expected finite numbers and no zero vector, got NaN, infinity or zero in {len(bad)} of "
            f"{len(array)} rows, first in row {bad[0]}; drop these rows"
        )
    return np.ascontiguousarray(array / norms, dtype=np.float32)


def read_ids(ids: Any, count: int) -> Any:
    """Ids as an Arrow array of strings or int64; row numbers if none are given."""
    if ids is None:
        return pa.array(np.arange(count))
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    if not isinstance(ids, pa.Array):
        ids = list(ids) if not isinstance(ids, pa.ChunkedArray) else ids.combine_chunks()
    if len(ids) != count:
        raise ShapeError(f"ids: expected one for each of {count} vectors, got {len(ids)}")
    try:
        named = pa.array(ids)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        named = pa.nulls(count)
    if pa.types.is_integer(named.type):
        named = named.cast(pa.int64())
    elif not pa.types.is_string(named.type):
        raise LabelError("ids: expected all integers or all text; a path becomes an id with str(path)")
    if named.null_count or (pa.types.is_string(named.type) and pc.any(pc.equal(named, "")).as_py()):
        raise LabelError("ids: expected text or a number for each item, got an empty id")
    require_distinct(named)
    return named


def read_wanted_ids(ids: Sequence[Any], text: bool) -> Any:
    """Ids to look for as an Arrow array of texts or integers; null for one that can be no id of that type.

    >>> read_wanted_ids(["a.jpg", 7], text=True).to_pylist()
    ['a.jpg', None]
    """
    is_id = _is_text if text else _is_integer
    return pa.array([one if is_id(one) else None for one in ids], pa.string() if text else pa.int64())


def _is_text(one: Any) -> bool:
    try:
        return isinstance(one, str) and (one.isascii() or bool(one.encode()))
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_integer(one: Any) -> bool:
    return isinstance(one, int | np.integer) and not isinstance(one, bool) and -(1 << 63) <= int(one) < 1 << 63


def require_distinct(ids: Any) -> None:
    """An error if an id comes twice."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    counts = pc.value_counts(ids)
    times = counts.field("counts").to_numpy()
    most = int(times.argmax())
    raise LabelError(f"ids: expected each once, got {counts.field('values')[most].as_py()!r} {times[most]} times")


def in_batches(items: Items, rows: int) -> Iterator[Items]:
    """Items in batches of at most `rows`."""
    for start in range(0, len(items), rows):
        yield items.part(slice(start, start + rows))


def chained(first: Items, rest: Iterable[Items]) -> Iterator[Items]:
    """A batch and those after it."""
    yield first
    yield from rest


def _column(name: str, values: Sequence[Any], count: int) -> Any:
    if not name or name in RESERVED:
        raise InvalidInput(f"columns: expected a name other than {', '.join(RESERVED)}, got {name!r}; rename it")
    if len(values) != count:
        raise ShapeError(f"column {name!r}: expected a value for each of {count} vectors, got {len(values)}")
    return read_column(name, values)


def read_column(name: str, values: Sequence[Any]) -> Any:
    """Values as an Arrow array of one of COLUMN_TYPES."""
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        array = array.cast(COLUMN_TYPES[_kind(array.type)])
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise DataError(
            f"column {name!r}: expected texts, yes and no, or numbers of at most 64 bits, all of one kind, got others "
            f"({error})"
        ) from error
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)  # NaN is no value, as in pandas
    return array


def _kind(kind: Any) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    return "number" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "text"


def _no_columns(count: int) -> Any:
    return pa.table({"none": pa.nulls(count)}).drop_columns(["none"])
