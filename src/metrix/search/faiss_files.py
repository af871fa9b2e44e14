"""The files of an index on faiss, which never change once they are complete:

    vectors-NAME.npy     unit vectors (n, d), float32 or float16; the operating system reads what a search touches
    items-NAME.arrow     ids and columns (Arrow IPC), memory-mapped as well
    codes-NAME.faiss     for the approximate kinds: the faiss index (and codes-NAME.ivfdata, inverted lists on disk)
    sketch-NAME-0.faiss  for large ones of the kind sq8: codes of a bit per entry, in parts

A generation names the files that it consists of: items that were added are a pair of files more, and generations share
the others. Names are never used twice, so no file is written that another process has mapped.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metrix.errors import DataError, InvalidInput, LabelError, ShapeError
from metrix.extras import import_extra
from metrix.search import sketches
from metrix.search.description import SEVERAL_FILES
from metrix.search.faiss_kinds import APPROXIMATE, build_codes, extend_codes, faiss_silenced
from metrix.search.items import Items, chained, column_types_of, drop_id, require_distinct, same_columns
from metrix.search.settings import Settings
from metrix.search.sketches import Reach, Sketch
from metrix.search.vectors import MappedVectors

_NAME = r"\d{6,}-[0-9a-f]{8}(-\d+)?"
_CODES = rf"codes-{_NAME}(-part\d+)?\.(faiss|ivfdata)|sketch-{_NAME}\.faiss"
FILE_NAME = re.compile(rf"vectors-{_NAME}\.npy|items-{_NAME}\.arrow|{_CODES}|adapter-{_NAME}\.safetensors")
MOST_COMPARED = 2_000_000  # ids that are not in order, for which it takes a second or two
OF_CODES = (
    "codes",
    "lists",
    "sketch",
    "reach",
    "far_reach",
)  # keys of a place that say where codes are, and how to search them


@dataclass(frozen=True, eq=False)
class OpenFiles:
    """A generation as it is mapped from its files."""

    ids: Any  # pyarrow.Array (n,)
    columns: Any  # pyarrow.Table of n rows
    vectors: MappedVectors
    codes: Any = None  # faiss index of the first rows, or None
    sketch: Sketch | None = None


def name_files(generation: int) -> str:
    """What the names of a generation's files have in common; never the same twice.

    >>> name_files(7)[:7]
    '000007-'
    """
    return f"{generation:06d}-{secrets.token_hex(4)}"


def write_generation(
    folder: Path, generation: int, batches: Iterable[Items], kind: str, settings: Settings, fit: bool = False
) -> dict[str, Any]:
    """Write all items of a generation, in bounded memory; returns where it is, for `open_files`.

    `fit` lets an index that has become smaller have fewer cells than its settings say.
    """
    name = name_files(generation)
    place = write_part(folder, name, batches, settings.half)
    if fit:
        settings = settings.fitting(len(MappedVectors.open([folder / file for file in place["vectors"]])))
    return {**place, **write_codes(folder, name, place, kind, settings)}


def write_part(folder: Path, name: str, batches: Iterable[Items], half: bool = False) -> dict[str, Any]:
    """Write items to a pair of files, some at a time; returns their names.

    Raises:
        LabelError: an id comes twice.
        InvalidInput: there are no items.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise InvalidInput("items: expected at least one, got none; an index cannot be empty")
    vectors, table = folder / f"vectors-{name}.npy", folder / f"items-{name}.arrow"
    precision = "<f2" if half else "<f4"
    header = {"descr": precision, "fortran_order": False}
    schema = pa.schema([("id", first.ids.type), *((field.name, field.type) for field in first.columns.schema)])
    written: list[Any] = []
    with vectors.open("wb") as file, table.open("wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        # with room for a longer shape
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (0, first.dim)})
        for batch in chained(first, batches):
            if batch.dim != first.dim:
                raise ShapeError(f"vectors: expected dimension {first.dim}, as the first have, got {batch.dim}")
            if batch.ids.type != first.ids.type:
                raise InvalidInput("ids: expected all integers or all text, as the index has")
            same = same_columns(batch, first.column_types)
            file.write(np.ascontiguousarray(same.vectors, dtype=precision).data)
            columns = {"id": same.ids, **{key: same.columns[key].combine_chunks() for key in first.column_types}}
            writer.write_table(pa.table(columns, schema=schema))
            written.append(same.ids)
        file.seek(0)
        shape = (sum(map(len, written)), first.dim)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
    if len(written) > 1:  # the ids of one batch are distinct already
        require_distinct(pa.chunked_array(written))
    sync(vectors)
    sync(table)
    return {"vectors": [vectors.name], "items": [table.name]}


def write_table(folder: Path, name: str, table: Any) -> str:
    """Write ids and columns alone, for vectors that stay; returns the name of the file."""
    path = folder / f"items-{name}.arrow"
    with path.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    sync(path)
    return path.name


def write_codes(
    folder: Path, name: str, place: Mapping[str, Any], kind: str, settings: Settings, codes: Any = None
) -> dict[str, Any]:
    """Write the codes of an approximate kind, or continue some; returns where they are, with the settings."""
    if kind == "exact":
        return settings.asked()
    faiss = import_extra("faiss")

    vectors = MappedVectors.open([folder / file for file in place["vectors"]])
    path, lists = folder / f"codes-{name}.faiss", folder / f"codes-{name}.ivfdata"
    if codes is None:
        codes = build_codes(vectors, kind, settings, lists)
    else:
        extend_codes(codes, vectors)
    faiss.write_index(codes, str(path))
    found = {"codes": path.name, **settings.asked()}
    sync(path)
    if lists.exists():
        found["lists"] = lists.name
        sync(lists)
    if kind == "sq8" and codes.ntotal >= sketches.SKETCHED:
        found["sketch"] = _write_sketch(folder, name, vectors, place.get("sketch", []))
    return found


def _write_sketch(folder: Path, name: str, vectors: MappedVectors, before: Sequence[str]) -> list[str]:
    """Write the parts of a sketch of all vectors, or continue some; full ones stay as they are. Returns their names."""
    faiss = import_extra("faiss")

    names = list(before[:-1])
    first = sum(_read_index(folder / part, faiss.IO_FLAG_MMAP_IFC).ntotal for part in names)
    last = faiss.read_index(str(folder / before[-1])) if before else None
    for number, part in enumerate(sketches.build_parts(vectors, len(vectors), last, first), len(names)):
        path = folder / f"sketch-{name}-{number}.faiss"
        faiss.write_index(part, str(path))
        sync(path)
        names.append(path.name)
    return names


def sync(path: Path) -> None:
    """Wait until a file is on the disk. Windows does so only for files that are open for writing."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def open_files(folder: Path, place: Mapping[str, Any], kind: str) -> OpenFiles:
    """The generation that `write_generation` wrote, memory-mapped.

    Raises:
        FileNotFoundError: a file is missing, as it is when the generation was replaced meanwhile.
        DataError: a file is damaged.
    """
    vectors = MappedVectors.open([folder / name for name in place["vectors"]])
    tables = [open_table(folder / name) for name in place["items"]]
    if any(table.schema != tables[0].schema for table in tables):
        raise DataError(f"{folder}: expected the same columns in all its files, got others; build the index anew")
    table = pa.concat_tables(tables)
    if len(vectors) != table.num_rows:
        raise DataError(
            f"{folder}: expected a vector for each of {table.num_rows} items, got {len(vectors)}; build the index anew"
        )
    _require_each_once(folder, table["id"])
    codes = None if kind == "exact" else _open_codes(folder, place, kind, vectors)
    sketch = _open_sketch(folder, place, codes) if codes is not None and "sketch" in place else None
    return OpenFiles(table["id"].combine_chunks(), drop_id(table), vectors, codes, sketch)


def _require_each_once(folder: Path, ids: Any) -> None:
    """An error if an id comes twice: ids in order are compared with the next, of others up to MOST_COMPARED."""
    if pc.all(pc.less(ids[:-1], ids[1:])).as_py() is not False or len(ids) > MOST_COMPARED:
        return
    try:
        require_distinct(ids)
    except LabelError as error:
        raise DataError(f"{folder}: {error} in its files; build the index anew") from error


def open_table(path: Path) -> Any:
    """The ids and columns in a file, memory-mapped.

    Raises:
        FileNotFoundError: it is missing.
        DataError: it is damaged.
    """
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)  # damaged offsets would read, and combine_chunks write, beyond their memory
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged files have all kinds of exceptions
        raise DataError(f"{path}: expected ids and columns, got a damaged file ({error}); build it anew") from error
    names = table.schema.names
    try:
        if names.count("id") != 1 or table["id"].type not in (pa.string(), pa.int64()) or table["id"].null_count:
            raise KeyError("id")
        column_types_of(table.drop_columns(["id"]).schema)
    except KeyError as error:
        raise DataError(
            f"{path}: expected an id, text or an integer, for each item, and columns of text, numbers or yes and no, "
            f"got {table.schema.to_string(show_schema_metadata=False)!r}; build the index anew"
        ) from error
    return table


def _open_codes(folder: Path, place: Mapping[str, Any], kind: str, vectors: MappedVectors) -> Any:
    faiss = import_extra("faiss")

    path = folder / str(place["codes"])
    # Nothing but centres and graphs is read: lists and codes stay in the file.
    flags = faiss.IO_FLAG_MMAP if APPROXIMATE[kind].in_cells else faiss.IO_FLAG_MMAP_IFC
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if "lists" in place else flags
    for needed in [path, *([folder / str(place["lists"])] if "lists" in place else [])]:
        needed.stat()  # FileNotFoundError
    codes = _read_index(path, flags)
    if not 0 < codes.ntotal <= len(vectors) or codes.d != vectors.shape[1]:
        raise DataError(
            f"{path}: expected codes of at most {len(vectors)} vectors of dimension {vectors.shape[1]}, got "
            f"{codes.ntotal} of dimension {codes.d}; build the index anew"
        )
    return codes


def _open_sketch(folder: Path, place: Mapping[str, Any], codes: Any) -> Sketch:
    faiss = import_extra("faiss")

    paths = [folder / name for name in place["sketch"]]
    parts = [_read_index(path, faiss.IO_FLAG_MMAP_IFC) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if not isinstance(part, faiss.IndexRaBitQ) or part.d != codes.d:
            raise DataError(f"{path}: expected codes of a bit per entry of dimension {codes.d}, got others; build anew")
    if sum(part.ntotal for part in parts) != codes.ntotal:
        raise DataError(
            f"{folder}: expected a bit per entry for {codes.ntotal} rows, got {sum(part.ntotal for part in parts)}; "
            "build the index anew"
        )
    return Sketch(parts, codes)


def _read_index(path: Path, flags: int) -> Any:
    faiss = import_extra("faiss")

    path.stat()  # FileNotFoundError
    try:
        with faiss_silenced():
            return faiss.read_index(str(path), flags)
    except (RuntimeError, MemoryError) as error:
        path.stat()  # removed since
        raise DataError(f"{path}: expected a faiss index, got a damaged file; build the index anew") from error


def read_reach(place: Mapping[str, Any]) -> Reach:
    """How far a search by the sketch has to reach, if there is one and it was measured."""
    found = {name: place.get(name, 0) for name in ("reach", "far_reach")}
    for name, value in found.items():
        if not isinstance(value, int) or value < 0:
            raise DataError(
                f"place.{name}: expected an integer ≥ 0 in the description, got {value!r}; build the index anew"
            )
    return Reach(*found.values())


def read_codes(folder: Path, place: Mapping[str, Any]) -> Any:
    """Codes read into memory, to continue them; None if their lists are on disk."""
    faiss = import_extra("faiss")

    return None if "lists" in place else faiss.read_index(str(folder / str(place["codes"])))


def files_of(place: Mapping[str, Any]) -> Iterator[str]:
    """The names of a generation's files."""
    for key in (*SEVERAL_FILES, "codes", "lists"):
        names = place.get(key, ())
        yield from [names] if isinstance(names, str) else names
