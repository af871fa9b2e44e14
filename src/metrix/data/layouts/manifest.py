"""A CSV, TSV or Parquet table of images, with OpenMetricLearning's columns.

`label` and `path` are required. In place of `label`, a column `labels` has several labels of an image, separated by `|`
(in Parquet also a list of texts); a class is then a set of labels.

`split` (train, validation or test), `is_query` and `is_gallery` assign the parts; without `split`, classes are split
at random as those of a folder are. `validation` rows are for model selection; in a table without `test` rows, as
OpenMetricLearning writes them, they are what is measured in the end instead. `x_1, x_2, y_1, y_2` is a crop box and
`category` a group of classes. Images with the same `sequence` (frames of one track, photos of one shoot) do not count
for each other when retrieval is measured. Other columns are ignored, but a name that looks misspelt is an error. Values
of a .csv file may be separated by commas, semicolons (as spreadsheets in many countries write them) or tabs: its first
line decides. Names of these columns may be in capitals, and paths may have the backslashes of Windows. A table of
decisions, as `metrix label` writes it, stands for the images that have a label by the last of them.

Images to index or to search with are read by the same functions (`metrix.retrieve.image_lists`).
"""

from __future__ import annotations

import csv
import difflib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metrix.data.catalogue import UNSPLIT, Box, Catalogue, ImageRow
from metrix.data.layouts.decided import is_history, keep_last
from metrix.data.paths import leaves_root
from metrix.errors import DataError, unknown_choice
from metrix.files import describe_failure

NAME = "manifest"
SUFFIXES = (".csv", ".tsv", ".parquet")
DELIMITERS = (",", ";", "\t")
NEEDED = ("label", "path")
SETS = "labels"  # a column in place of `label`
SEPARATOR = "|"
BOX = ("x_1", "y_1", "x_2", "y_2")  # left, upper, right, lower
OPTIONAL = ("split", "is_query", "is_gallery", "category", "sequence", *BOX)
SPLITS = {"train": "train", "validation": "val", "val": "val", "test": "test"}
TRUE, FALSE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no", "")


def recognises(path: Path) -> bool:
    """Whether the path is a file with the suffix of a table."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


def read(path: Path, root: Path | None = None) -> Catalogue:
    """The catalogue of a table; paths in it are relative to `root`, by default the table's folder."""
    base = (root or path.parent).resolve()
    table, left_out = _read_last(path)
    _check_columns(path, list(table))
    sets = SETS in table
    if sets:
        table["label"] = [join_labels(f"{path}, row {n}", cell) for n, cell in enumerate(table[SETS], start=1)]
    splits, notes = choose_splits(table.get("split", []))
    notes += [left_out] if left_out else []
    rows = [
        _parse_row(f"{path}, row {number}", dict(zip(table, values, strict=True)), base, splits)
        for number, values in enumerate(zip(*table.values(), strict=True), start=1)
    ]
    return Catalogue.from_rows(NAME, base, rows, notes=notes, separator=SEPARATOR if sets else None)


def join_labels(where: str, cell: Any) -> str:
    """The name of the set of labels in a cell: the labels in alphabetical order, each once.

    >>> join_labels("row 1", "sea| sand|sea")
    'sand|sea'
    """
    texts = [read_cell(x) for x in cell] if isinstance(cell, list | tuple) else read_cell(cell).split(SEPARATOR)
    found = sorted({text.strip() for text in texts if text.strip()})
    if any(SEPARATOR in text for text in found):
        raise DataError(f"{where}: labels: expected names without {SEPARATOR!r}, which separates them, got {found}")
    if not found:
        raise DataError(f"{where}: labels: expected at least one label, got none; label the image, or remove the row")
    return SEPARATOR.join(found)


def choose_splits(values: Sequence[Any]) -> tuple[Mapping[str, str], list[str]]:
    """The part that each value of the column `split` stands for, and a note if validation rows are the test part."""
    given = {read_cell(value) for value in values}
    if "test" in given or given.isdisjoint({"validation", "val"}):
        return SPLITS, []
    note = "no row is of the split test: validation rows are the test part, not for selection"
    return {**SPLITS, "validation": "test", "val": "test"}, [note]


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a table: text of a .csv or .tsv file, values of a .parquet file; known names in small letters.

    Of a table of decisions, as `metrix label` writes it, the last one on each image.

    Raises:
        DataError: it cannot be read, or a column comes twice.
    """
    return _read_last(path)[0]


def _read_last(path: Path) -> tuple[dict[str, list[Any]], str]:
    table = read_history(path)
    return keep_last(table, ("path", *BOX)) if is_history(table) else (table, "")


def read_history(path: Path) -> dict[str, list[Any]]:
    """The columns of a table as `read_columns` gives them, with all lines of a table of decisions."""
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    names = [_known_name(name) for name in table]
    _refuse_repeated(path, names)
    return dict(zip(names, table.values(), strict=True))


def _known_name(name: str) -> str:
    plain = name.strip().lower()
    return plain if plain in (*NEEDED, *OPTIONAL, SETS) else name


def infer_types(values: Sequence[Any]) -> list[Any]:
    """The values of a column of text as integers, numbers or yes and no, if all are; nothing is None.

    >>> infer_types(["1", " 2 ", ""]), infer_types(["1.5", "2"]), infer_types(["true", "False"])
    ([1, 2, None], [1.5, 2.0], [True, False])
    """
    if not all(value is None or isinstance(value, str) for value in values):
        return list(values)
    texts = [None if value is None or not value.strip() else value.strip() for value in values]
    known = [text for text in texts if text is not None]
    if known and all(text.lower() in ("true", "false") for text in known):
        return [None if text is None else text.lower() == "true" for text in texts]
    for kind in (int, float):
        try:
            return [None if text is None else _number(text, kind) for text in texts]
        except ValueError:
            continue
    return texts


def _number(text: str, kind: type) -> Any:
    if not text.isascii() or "_" in text or (kind is int and len(text) > 18):
        raise ValueError(text)
    return kind(text)


def read_csv(path: Path) -> dict[str, list[Any]]:
    """The columns of a CSV table, as text."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            delimiter = find_delimiter(file.readline(), ("path",))
            file.seek(0)
            lines = [line for line in csv.reader(file, strict=True, delimiter=delimiter) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table of text in UTF-8 (CSV or TSV): {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {describe_failure(error)}; expected a table (CSV or TSV)") from error
    if not lines:
        raise DataError(f"{path} is empty; expected a table whose first line has the names of its columns")
    header = [name.strip() for name in lines[0]]
    _refuse_repeated(path, header)
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise DataError(f"{path}, row {number}: expected {len(header)} values, got {len(line)}")
    return {name: [line[k] for line in lines[1:]] for k, name in enumerate(header)}


def find_delimiter(header: str, needed: Sequence[str]) -> str:
    r"""What separates the values of a table: the delimiter by which its first line has the columns that are needed.

    >>> find_delimiter("label;path;note, long\n", ("label", "path")), find_delimiter("a\tb", ("a",))
    (';', '\t')
    """
    for delimiter in DELIMITERS:
        names = next(csv.reader([header], delimiter=delimiter), [])
        if len(names) > 1 and set(needed) <= {name.strip().lower() for name in names}:
            return delimiter
    return max(DELIMITERS, key=header.count)  # a column is missing; errors should name those that are there


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
        _refuse_repeated(path, schema.names)
        for name in set(NEEDED) & set(schema.names):
            kind = schema.field(name).type
            if not is_plain(kind):
                raise DataError(f"{path}: column {name!r}: expected text or integers, got {kind}")
        table: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a Parquet table: {error}") from error
    return table


def is_plain(kind: Any) -> bool:
    """Whether values of a type of pyarrow are texts, integers, or the floats that integers with gaps become."""
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(plain) or types.is_large_string(plain) or types.is_null(plain)
    return bool(text or types.is_integer(plain) or types.is_floating(plain) or types.is_boolean(plain))


def _refuse_repeated(path: Path, header: Sequence[str]) -> None:
    repeated = sorted({name for name in header if name and list(header).count(name) > 1})
    if repeated:
        raise DataError(f"{path}: expected each column once, got {', '.join(map(repr, repeated))} more than once")


def _check_columns(path: Path, given: Sequence[str]) -> None:
    if SETS in given and "label" in given:
        raise DataError(
            f"{path}: expected one of the columns 'label' (a class) and 'labels' (several labels of an image), got "
            "both; remove or rename one"
        )
    for name in NEEDED:
        if name not in given and not (name == "label" and SETS in given):
            near = difflib.get_close_matches(name, given, n=1, cutoff=0.6)
            hint = f"; rename {near[0]!r}?" if near else ""
            if name == "path" and path.suffix.lower() == ".parquet":
                hint += "; or a column of images, as bytes or as structures of bytes and a path"
            raise DataError(
                f"{path}: expected the columns {', '.join(NEEDED)} (optional: {', '.join(OPTIONAL)}), "
                f"got {', '.join(given)}{hint}"
            )
    for name in given:
        if name == SETS:
            continue
        near = difflib.get_close_matches(name, OPTIONAL, n=1, cutoff=0.85)
        if name not in NEEDED + OPTIONAL and near and near[0] not in given:
            raise DataError(f"{path}: {unknown_choice('column', name, NEEDED + OPTIONAL)}; rename or remove it")
    boxes = [name for name in BOX if name in given]
    if boxes and len(boxes) < len(BOX):
        missing = ", ".join(name for name in BOX if name not in given)
        raise DataError(f"{path} has {', '.join(boxes)} but not {missing}; a crop box needs all four")


def _parse_row(where: str, values: dict[str, Any], root: Path, splits: Mapping[str, str]) -> ImageRow:
    label, path = read_cell(values["label"]), read_cell(values["path"])
    if not label or not path:
        raise DataError(f"{where}: expected a label and a path, got {label!r} and {path!r}")
    path = read_path(path, root)
    if os.path.isabs(path):
        path = _relative(path, root)  # outside the root it starts with '..', which is an error later
    return ImageRow(
        Path(path).as_posix(),
        label,
        parse_part(where, values, splits),
        parse_box(where, values),
        read_cell(values.get("category")),
        read_cell(values.get("sequence")),
    )


def read_path(text: str, folder: Path) -> str:
    """A path in a table, with forward slashes unless a file has backslashes in its name."""
    if "\\" in text and not os.path.lexists(folder / text):
        return text.replace("\\", "/")
    return text


def _relative(path: str, root: Path) -> str:
    """An absolute path relative to the root, also if it reaches the root through a symbolic link."""
    found = os.path.relpath(path, root)
    if not leaves_root(found):
        return found
    folder, name = os.path.split(path)
    return os.path.relpath(os.path.join(os.path.realpath(folder), name), root)


def parse_part(where: str, values: Mapping[str, Any], splits: Mapping[str, str]) -> str:
    """The part of a row by its columns `split`, `is_query` and `is_gallery`; `where` is how an error refers to it."""
    if "split" not in values:
        return UNSPLIT
    given = read_cell(values["split"])
    if given not in splits:
        raise DataError(f"{where}: {unknown_choice('split', given, splits)}")
    part = splits[given]
    if part in ("train", "val") or ("is_query" not in values and "is_gallery" not in values):
        return part
    query, gallery = (_parse_flag(where, name, values.get(name)) for name in ("is_query", "is_gallery"))
    if not query and not gallery:
        raise DataError(f"{where}: neither is_query nor is_gallery is true; set one, or remove the row")
    return "test" if query and gallery else "query" if query else "gallery"


def _parse_flag(where: str, name: str, value: Any) -> bool:
    text = read_cell(value).lower()
    if text not in TRUE + FALSE:
        raise DataError(f"{where}: {name}: expected true, false, 1, 0 or nothing, got {value!r}")
    return text in TRUE


def parse_box(where: str, values: Mapping[str, Any]) -> Box | None:
    """The crop box of a row; None if it has none. `where` is how an error refers to the row."""
    texts = [read_cell(values.get(name)) for name in BOX]
    if not any(texts):
        return None
    try:
        left, upper, right, lower = (int(float(text)) for text in texts)
    except (ValueError, OverflowError):
        raise DataError(
            f"{where}: crop box: expected four finite numbers, got {dict(zip(BOX, texts, strict=True))}"
        ) from None
    if left >= right or upper >= lower:
        raise DataError(f"{where}: crop box: expected x_1 < x_2 and y_1 < y_2, got {left, upper, right, lower}")
    return left, upper, right, lower


def read_cell(value: Any) -> str:
    """A cell as text; a missing value is the empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = str(value).strip()
    return "" if text.lower() == "nan" else text
