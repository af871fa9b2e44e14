"""Precomputed vectors with a label each, in place of images.

    FILE.parquet   a column `vector` (or `embedding`) of lists of numbers, and the columns of a manifest except `path`
    FILE.npz       an array `vectors` (n, d) and an array for each of these columns, such as `label`
    FILE.npy       an array (n, d); the columns are in FILE.csv, as `metrix embed -o FILE.npy` writes them

`label` is required. `split` (train, validation or test), `is_query` and `is_gallery` assign the parts as in a manifest;
without `split`, a column `part` does, as `metrix embed` writes it, and without both, classes are split at random.
A column `path` or `id` names the vectors, if it is different for each; `sequence` is that of a manifest; other columns
are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data.catalogue import PARTS, UNSPLIT, Catalogue, ImageRow
from metrix.data.layouts import manifest
from metrix.data.vector_files import VECTOR_COLUMNS, has_vectors, read_array, read_arrays, read_columns, read_embeddings
from metrix.errors import DataError, unknown_choice
from metrix.messages import count, first_few

NAME = "vectors"
SUFFIXES = (".npz", ".npy", ".parquet")
ARRAYS = ("vectors", *VECTOR_COLUMNS, "X")  # names of the vectors in an archive
LABELS = ("label", "labels", "y")  # names of the labels
NAMES = ("path", "id")  # columns that may name the vectors
ROWS_AT_ONCE = 65536


def recognises(path: Path) -> bool:
    """Whether the path is a file of vectors; a Parquet table needs a column of them."""
    kind = path.suffix.lower()
    return path.is_file() and (kind in (".npz", ".npy") or (kind == ".parquet" and has_vectors(path)))


def read(path: Path) -> Catalogue:
    """The catalogue of a file of vectors, which are read into memory as float32."""
    vectors, columns = read_vectors(path)
    labels = columns.get("label")
    if labels is None:
        raise DataError(
            f"{path} has no labels: expected {_place_of_labels(path)}; what there is: "
            f"{first_few(columns, 10) or 'vectors only'}"
        )
    splits, notes = manifest.choose_splits(columns.get("split", []))
    read_part = _part_of_embed if "split" not in columns and "part" in columns else manifest.parse_part
    keys = [name for name in ("split", "part", "is_query", "is_gallery") if name in columns]
    rows = []
    for n, label in enumerate(labels):
        where = f"{path}, row {n + 1}"
        text = "" if label is None else str(label).strip()
        if not text or text == "nan":
            raise DataError(f"{where}: expected a label, got {label!r}")
        part = read_part(where, {key: columns[key][n] for key in keys}, splits)
        sequence = manifest.read_cell(columns["sequence"][n]) if "sequence" in columns else ""
        rows.append(ImageRow(str(n), text, part, sequence=sequence))
    if path.suffix.lower() == ".parquet" and "path" in columns:
        notes.append("the column of vectors is used, not the images in the column path; manifest:FILE uses those")
    found = Catalogue.from_rows(NAME, path.parent.resolve(), rows, notes=notes)
    return dataclasses.replace(found, root=None, paths=name_vectors(columns, len(vectors)), vectors=vectors)


def read_vectors(path: Path) -> tuple[NDArray[np.float32], dict[str, Sequence[Any]]]:
    """Vectors (n, d) of a file, and its other columns by name, `label` among them if there are labels."""
    if path.suffix.lower() not in SUFFIXES:
        raise unknown_choice("kind of file for vectors", path.suffix or path.name, SUFFIXES)
    if not path.is_file():
        raise DataError(f"{path} does not exist: give a file of vectors ({', '.join(SUFFIXES)})")
    if path.suffix.lower() == ".npz":
        values, columns = _read_archive(path)
    elif path.suffix.lower() == ".npy":
        values, columns = read_array(path), _read_table_beside(path)
    else:
        values, columns = read_embeddings(path), dict(read_columns(path))
    vectors = _check(path, values)
    for name, column in columns.items():
        if len(column) != len(vectors):
            raise DataError(f"{path}: expected {len(vectors):,} values in {name!r}, as vectors, got {len(column):,}")
    return vectors, columns


def name_vectors(columns: Mapping[str, Sequence[Any]], total: int) -> tuple[str, ...]:
    """A name for each vector: of the column `path` or `id` if it is different for each, else the number of its row.

    >>> name_vectors({"id": ["a", "b"]}, 2), name_vectors({"id": ["a", "a"]}, 2)
    (('a', 'b'), ('0', '1'))
    """
    for name in NAMES:
        given = [str(value) for value in columns.get(name, ()) if value is not None and str(value)]
        if len(set(given)) == total:
            return tuple(given)
    return tuple(str(n) for n in range(total))


def _check(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: expected vectors (n, d) of numbers, one row for each example, got an array of shape "
            f"{values.shape} and type {values.dtype}"
        )
    vectors = np.empty(values.shape, np.float32)
    bad: list[int] = []
    for start in range(0, len(values), ROWS_AT_ONCE):
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, which is refused below
            vectors[start : start + ROWS_AT_ONCE] = values[start : start + ROWS_AT_ONCE]
        finite = np.isfinite(vectors[start : start + ROWS_AT_ONCE]).all(axis=1)
        bad += (start + np.flatnonzero(~finite) + 1).tolist()
    if bad:
        raise DataError(
            f"{path}: expected finite numbers within the range of float32, got others in {count(len(bad), 'row')} "
            f"({first_few(bad)}); drop these rows"
        )
    return vectors


def _read_archive(path: Path) -> tuple[NDArray[Any], dict[str, Sequence[Any]]]:
    arrays = read_arrays(path)
    named = next((name for name in ARRAYS if name in arrays), None)
    if named is None:
        raise DataError(
            f"{path}: expected an array named {' or '.join(map(repr, ARRAYS))} and one named 'label', got "
            f"{first_few(map(repr, arrays)) or 'none'}"
        )
    columns: dict[str, Sequence[Any]] = {
        "label" if name in LABELS else name: array.tolist()
        for name, array in arrays.items()
        if array.ndim == 1 and name != named
    }
    return arrays[named], columns


def _read_table_beside(path: Path) -> dict[str, Sequence[Any]]:
    table = path.with_suffix(".csv")
    return dict(manifest.read_csv(table)) if table.is_file() else {}


def _part_of_embed(where: str, values: Mapping[str, Any], _splits: Mapping[str, str]) -> str:
    given = str(values["part"])
    if given not in (*PARTS, UNSPLIT):
        raise DataError(f"{where}: {unknown_choice('part', given, PARTS)}")
    return given


def _place_of_labels(path: Path) -> str:
    if path.suffix.lower() == ".npy":
        return f"a column 'label' in {path.with_suffix('.csv').name} beside it"
    return "an array 'label'" if path.suffix.lower() == ".npz" else "a column 'label'"
