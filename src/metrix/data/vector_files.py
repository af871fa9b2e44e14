"""Readers of vectors, such as embeddings, and labels in files of other programs. Nothing is unpickled."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError, unknown_choice

EMBEDDINGS = (".npy", ".parquet", ".csv")
LABELS = (".csv", ".npy", ".txt", ".parquet")
VECTOR_COLUMNS = ("vector", "embedding", "embeddings")
ABOUT = ("id", "path", "label", "part", "sequence")  # columns of a table that are not part of the embedding


def read_embeddings(path: Path) -> NDArray[Any]:
    """Read embeddings (n, d): an array (.npy), a .csv, or a column `vector` or columns of numbers (.parquet)."""
    kind = _check_kind(path, EMBEDDINGS, "embeddings")
    if kind == ".npy":
        values = read_array(path)
    elif kind == ".parquet":
        values = _read_vectors_of_table(path)
    else:
        values = _read_vectors_of_lines(path)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: expected embeddings (n, d) of numbers, one row for each example, got an array of shape "
            f"{values.shape} and type {values.dtype}"
        )
    return values


def read_labels(path: Path, count: int, embeddings: Path) -> NDArray[Any]:
    """Read labels of `count` embeddings: the column `label`, or the only one, of a table; an array; lines of text."""
    kind = _check_kind(path, LABELS, "labels")
    if kind == ".npy":
        labels = read_array(path)
        if labels.ndim != 1:
            raise DataError(f"{path}: expected labels of shape (n,), one for each row, got {labels.shape}")
    elif kind == ".parquet":
        labels = np.array(_read_parquet(path, "label").to_pylist())
    elif kind == ".txt":
        labels = _convert_labels(_read_text(path).splitlines())
    else:
        labels = _convert_labels(_read_label_column(path, count))
    if len(labels) != count:
        raise DataError(
            f"{path}: expected {count:,} labels, one for each row of {embeddings} in the same order, "
            f"got {len(labels):,}"
        )
    return labels


def read_sequences(path: Path, count: int) -> list[Any] | None:
    """The column `sequence` of a table with labels of `count` embeddings (.csv or .parquet); None if it has none."""
    kind = path.suffix.lower()
    found: list[Any] | None = None
    if kind == ".parquet" and "sequence" in _read_names(path):
        found = _read_parquet(path, "sequence").to_pylist()
    elif kind == ".csv":
        header, *rows = _read_rows(path)
        names = [cell.strip() for cell in header]
        if "sequence" in names:
            place = names.index("sequence")
            found = [row[place] if place < len(row) else None for row in rows]
    if found is None:
        return None
    if len(found) != count:
        raise DataError(f"{path}: expected {count:,} values in the column 'sequence', got {len(found):,}")
    return found


def _check_kind(path: Path, expected: tuple[str, ...], what: str) -> str:
    kind = path.suffix.lower()
    if kind not in expected:
        raise unknown_choice(f"kind of file for {what}", path.suffix or path.name, expected)
    if not path.is_file():
        raise DataError(f"{path} does not exist: give a file with {what} ({', '.join(expected)})")
    return kind


def read_array(path: Path) -> NDArray[Any]:
    """Read an array of a .npy file; one of objects is refused."""
    try:
        # mapping the file compares its size with the shape in its header, which may ask for any amount of memory
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # damaged headers are parsed as Python, with all kinds of exceptions
        raise DataError(
            f"{path} cannot be read as a NumPy array ({error}): expected what np.save writes for numbers or text; "
            "objects are not read, since that would run code from the file"
        ) from error
    if not isinstance(values, np.ndarray):
        raise DataError(f"{path} is an archive of several arrays: give one array, as np.save writes it")
    return np.array(values)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by name; those of objects are refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:  # a damaged archive, with all kinds of exceptions
        raise DataError(
            f"{path} cannot be read as NumPy arrays ({error}): expected what np.savez writes for numbers or text; "
            "objects are not read, since that would run code from the file"
        ) from error


def has_vectors(path: Path) -> bool:
    """Whether a Parquet table has a column of vectors: lists of numbers named `vector`, `embedding` or `embeddings`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    kinds = [schema.field(name).type for name in VECTOR_COLUMNS if schema.names.count(name) == 1]
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_list(kind) and _is_number(kind.value_type) for kind in kinds for is_list in lists)


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet table that are not vectors, as lists."""
    return {name: _read_parquet(path, name).to_pylist() for name in _read_names(path) if name not in VECTOR_COLUMNS}


def _read_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _read_parquet(path: Path, column: str | None = None) -> Any:
    """A table, or one column of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = _read_names(path)
    if column is not None and column not in names:
        raise DataError(f"{path} has no column {column!r}: it has {', '.join(names)}")
    try:
        table = pq.read_table(path, columns=None if column is None else [column])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    return table if column is None else table[column].combine_chunks()


def _read_vectors_of_table(path: Path) -> NDArray[Any]:
    import pyarrow as pa

    lists = [name for name in VECTOR_COLUMNS if name in _read_names(path)]
    if lists:
        column = _read_parquet(path, lists[0])
        if column.null_count:
            raise DataError(
                f"{path}: column {lists[0]!r} is empty in {column.null_count} rows; every row needs a vector"
            )
        lengths = set(pa.compute.list_value_length(column).to_pylist())
        if len(lengths) != 1:
            raise DataError(
                f"{path}: vectors of {len(lengths)} different lengths in column {lists[0]!r}; expected one length"
            )
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
    table = _read_parquet(path)
    numbers = [name for name in table.schema.names if name not in ABOUT]
    other = [name for name in numbers if not _is_number(table.schema.field(name).type)]
    if not numbers or other:
        held = f"columns that are not numbers: {', '.join(other[:5])}" if other else "no columns of numbers"
        raise DataError(f"{path} has no column of vectors ({', '.join(VECTOR_COLUMNS)}), and {held}")
    return np.column_stack([table[name].to_numpy() for name in numbers])


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _read_vectors_of_lines(path: Path) -> NDArray[Any]:
    rows = _read_rows(path)
    names = [cell.strip() for cell in rows[0]]
    headed = not all(_parse_float(cell) is not None for cell in names)
    used = [c for c, name in enumerate(names) if not (headed and name in ABOUT)]
    values = np.empty((len(rows) - headed, len(used)))
    for n, row in enumerate(rows[headed:]):
        if len(row) != len(names):
            raise DataError(f"{path}, line {n + 1 + headed}: {len(row)} cells where the first line has {len(names)}")
        for k, c in enumerate(used):
            number = _parse_float(row[c])
            if number is None:
                raise DataError(f"{path}, line {n + 1 + headed}: {row[c]!r} is not a number")
            values[n, k] = number
    return values


def _read_label_column(path: Path, count: int) -> list[str]:
    rows = _read_rows(path)
    names = [cell.strip() for cell in rows[0]]
    if "label" in names:
        column, rows = names.index("label"), rows[1:]
    elif len(names) == 1:
        column = 0
        rows = rows[1:] if len(rows) == count + 1 else rows  # one line more than embeddings is a header
    else:
        raise DataError(
            f"{path} has no column 'label': its first line is {', '.join(map(repr, names[:8]))}; expected a table "
            "with a column named label, or with a single column"
        )
    short = [n for n, row in enumerate(rows) if len(row) <= column]
    if short:
        raise DataError(f"{path}: row {short[0] + 1} has no label")
    return [row[column] for row in rows]


def _read_rows(path: Path) -> list[list[str]]:
    try:
        rows = [row for row in csv.reader(_read_text(path).splitlines()) if row]
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error
    if not rows:
        raise DataError(f"{path} is empty")
    return rows


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8: {error.reason}") from error


def _parse_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _convert_labels(cells: list[str]) -> NDArray[Any]:
    """Integers if all cells are, text otherwise; `1` and `01` are different classes, so they stay text."""
    stripped = [cell.strip() for cell in cells]
    try:
        numbers = [int(cell) for cell in stripped]
    except ValueError:
        return np.array(stripped)
    plain = all(str(number) == cell for number, cell in zip(numbers, stripped, strict=True))
    fits = all(abs(number) < 2**63 for number in numbers)
    return np.array(numbers, dtype=np.int64) if plain and fits and numbers else np.array(stripped)
