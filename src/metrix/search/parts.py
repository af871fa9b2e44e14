"""Parts of an index on faiss that several processes write, and how they become one: no vector is copied."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from metrix.errors import DataError, InvalidInput
from metrix.search.description import Description
from metrix.search.faiss_files import name_files, open_table, sync, write_codes, write_part, write_table
from metrix.search.generations import replace_index
from metrix.search.items import COLUMN_TYPES, Items, column_types_of, drop_id, require_distinct, with_id_column
from metrix.search.settings import Settings

MOST_ID_BYTES = 1 << 31  # that an Arrow array of text can hold


class IndexPart(NamedTuple):
    """The files of a part: vectors, and their ids and columns."""

    vectors: Path
    items: Path


def write_index_part(folder: Path, batches: Iterable[Items], half: bool = False) -> IndexPart:
    """Write items to a pair of files in a folder, some at a time, for `Index.join`.

    Args:
        folder: on the same file system as the index.
        batches: the items.
        half: write vectors in float16.
    """
    written = write_part(folder, name_files(0), batches, half)
    return IndexPart(folder / written["vectors"][0], folder / written["items"][0])


def join_parts(folder: Path, parts: Sequence[IndexPart], kind: str, settings: Settings, **about: Any) -> None:
    """Make an index of parts, in this order; `about` are other entries of its description."""

    def write(generation: int, before: Description | None) -> tuple[dict[str, Any], int | None, dict[str, str]]:
        name = name_files(generation)
        place, types = link_parts(folder, name, parts)
        return {**place, **write_codes(folder, name, place, kind, settings)}, None, types

    replace_index(folder, write, kind=kind, **about)


def link_parts(folder: Path, name: str, parts: Sequence[IndexPart]) -> tuple[dict[str, Any], dict[str, str]]:
    """Make the files of parts files of the index in a folder, too; returns where they are, and the types of columns.

    A file gets a second name (a hard link). Where a file system has none, it is copied. Ids and columns are written
    anew for a part that lacks a column of another one.

    Raises:
        LabelError: an id comes twice.
        DataError: a column is text in one part and a number in another.
    """
    tables = [open_table(part.items) for part in parts]
    _require_distinct_ids(tables)
    types = _common_types(tables)
    place: dict[str, list[str]] = {"vectors": [], "items": []}
    for number, (part, table) in enumerate(zip(parts, tables, strict=True)):
        vectors, items = folder / f"vectors-{name}-{number}.npy", folder / f"items-{name}-{number}.arrow"
        _link(part.vectors, vectors)
        if column_types_of(drop_id(table).schema) == types:
            _link(part.items, items)
        else:
            write_table(folder, f"{name}-{number}", with_id_column(table["id"], _with_columns(table, types)))
        place["vectors"].append(vectors.name)
        place["items"].append(items.name)
    return place, types


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
        sync(target)


def _require_distinct_ids(tables: Sequence[Any]) -> None:
    """An error if an id comes twice; within a part they are distinct."""
    size = sum(table["id"].nbytes for table in tables)
    if size >= MOST_ID_BYTES:
        raise InvalidInput(
            f"ids: expected less than {MOST_ID_BYTES:,} bytes in one index, got {size:,}; build an index of each half"
        )
    if len({table.schema.field("id").type for table in tables}) > 1:
        raise InvalidInput("ids: expected all integers or all text, got parts with both")
    ranges = sorted((found["min"].as_py(), found["max"].as_py()) for found in (pc.min_max(t["id"]) for t in tables))
    if any(before[1] >= after[0] for before, after in itertools.pairwise(ranges)):
        require_distinct(pa.chunked_array([chunk for table in tables for chunk in table["id"].chunks]))


def _common_types(tables: Sequence[Any]) -> dict[str, str]:
    """The columns of all parts and their types; a column without values has the type that others give it."""
    types: dict[str, str] = {}
    valued: set[str] = set()
    for table in tables:
        columns = drop_id(table)
        for name, kind in column_types_of(columns.schema).items():
            empty = columns[name].null_count == len(columns)
            known = types.setdefault(name, kind)
            if empty or known == kind:
                pass
            elif name not in valued:
                types[name] = kind
            elif {known, kind} == {"integer", "number"}:
                types[name] = "number"
            else:
                raise DataError(f"column {name!r}: expected one type in all parts, got {known} and {kind}")
            if not empty:
                valued.add(name)
    return types


def _with_columns(table: Any, types: Mapping[str, str]) -> Any:
    arrays = {}
    for name, kind in types.items():
        there = name in table.column_names and table[name].null_count < table.num_rows
        arrays[name] = table[name].cast(COLUMN_TYPES[kind]) if there else pa.nulls(table.num_rows, COLUMN_TYPES[kind])
    return pa.table(arrays)
