"""Parquet files with a column of images: one file, or all of a folder.

The images are encoded (JPEG, PNG …): values of bytes, or structures of `bytes` and `path`, as Hugging Face's datasets
write them; one without bytes is the file at its path. Labels are in the column that is declared as one of classes, or
else called `label`, `labels`, `class`, `class_name` or `target`. `split`, `is_query`, `is_gallery`, `category` and
`sequence` are those of a manifest. Without a column `split`, the names of files or folders may give the parts
(`train-00000-of-00002.parquet`, `test/0.parquet`), unless a class of the test part is also in the training part: then
classes are split at random, as those of a folder of class folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metrix.data.catalogue import UNSPLIT, Catalogue, ImageRow
from metrix.data.image_tables import PARQUET, PATH, open_arrow
from metrix.data.images import readable_suffixes
from metrix.data.layouts import manifest
from metrix.data.layouts.folder import walk_files
from metrix.data.layouts.table_columns import (
    ColumnChoice,
    TableColumns,
    choose_columns,
    find_image_columns,
    name_classes,
    read_label,
    require_label,
)
from metrix.data.shards import open_table
from metrix.errors import DataError
from metrix.messages import OnProgress, count, first_few

NAME = "parquet"
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    **{name: name for name in ("query", "gallery")},
}
_SPLIT = re.compile(rf"({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
_PARTS = {"split", "is_query", "is_gallery"}
ROW_COLUMNS = (*_PARTS, "category", "sequence")  # what else a catalogue needs of a row


class TableFile(NamedTuple):
    """A table, and the split that its place says it is of, "" for none."""

    path: Path
    split: str = ""


class TableImage(NamedTuple):
    """An image of a table: its path, its label ("" for none), the split of its file, and other columns of its row."""

    path: str
    label: str
    split: str
    columns: dict[str, Any]
    is_file: bool = False  # beside the table, which only has its path


class TableImages(NamedTuple):
    """The images of tables in the order of their rows, and of the tables: columns, and whether labels are sets."""

    images: list[TableImage]
    columns: TableColumns
    names: tuple[str, ...]
    sets: bool


def recognises(path: Path) -> bool:
    """Whether the path is a Parquet file with images, or a folder with such files and without images."""
    if path.is_dir():
        suffixes, first = readable_suffixes(), None
        for file in walk_files(path):
            if file.suffix.lower() in suffixes:
                return False
            if first is None and file.suffix.lower() == PARQUET and not file.name.startswith("."):
                first = file
        return first is not None and _has_images(first)
    return path.suffix.lower() == PARQUET and path.is_file() and _has_images(path)


def _has_images(path: Path) -> bool:
    """Whether a file has images that are meant: a column of bytes beside a column of paths may be thumbnails."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        return bool(find_image_columns(path, schema, look="path" not in map(str.lower, schema.names)))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return False


def read(path: Path, choice: ColumnChoice, progress: OnProgress | None = None) -> Catalogue:
    """The catalogue of a Parquet file, or of all below a folder."""
    root, files = find_tables(path)
    found = list_images_in(files, choice, progress)
    notes = [
        "the images of the table are used, not those in the column path; manifest:FILE uses those"
        for name in found.names
        if name.lower() == "path"
    ]
    if "split" not in found.names:
        return compose(NAME, root, found, files[0].path, notes)
    splits, more = manifest.choose_splits([one.columns["split"] for one in found.images])

    def parse_part(one: TableImage) -> str:
        return manifest.parse_part(one.path, {name: one.columns[name] for name in _PARTS & one.columns.keys()}, splits)

    return _compose(NAME, root, found, files[0].path, parse_part, [*notes, *more])


def find_tables(path: Path) -> tuple[Path, list[TableFile]]:
    """The folder of the Parquet files at a path, and the files, with the splits that their names say."""
    path = path.resolve()
    if path.is_file():
        return path.parent, [TableFile(path)]
    files = _files_below(path)
    if not files:
        raise DataError(f"{path}: expected Parquet files with images, got none")
    named = [_split_of(file.relative_to(path)) for file in files]
    if not all(named) and any(named):
        other = [file.name for file, split in zip(files, named, strict=True) if not split]
        raise DataError(
            f"{path}: expected every file to be of a split ({', '.join(SPLITS)}), or none, as there are others, got "
            f"{first_few(other)}; rename or remove them"
        )
    return path, [TableFile(file, split) for file, split in zip(files, named, strict=True)]


def list_images_in(
    files: Sequence[TableFile],
    choice: ColumnChoice,
    progress: OnProgress | None = None,
    others: Collection[str] | None = ROW_COLUMNS,
) -> TableImages:
    """The images of tables with the same columns; their bytes are not kept.

    Args:
        files: at least one.
        choice: the columns that the user named.
        others: columns of texts and numbers that are wanted, too; None for all.
        progress: called with (tables done, tables in all).

    Raises:
        DataError: a table is damaged, or has other columns than the first.
    """
    images: list[TableImage] = []
    columns, names, sets = TableColumns("", None, ()), (), False
    for done, file in enumerate(files, start=1):
        schema = _read_schema(file.path)
        if done == 1:
            columns, names = choose_columns(file.path, schema, choice), tuple(schema.names)
        missing = {columns.image, columns.label} - {None, *schema.names}
        if missing:
            raise DataError(
                f"{file.path}: expected the columns of {files[0].path.name}, got none named {first_few(missing)}"
            )
        kind = None if columns.label is None else schema.field(columns.label).type
        sets = sets or (kind is not None and not manifest.is_plain(kind))
        images += _list_table(file, schema, columns, others)
        if progress is not None:
            progress(done, len(files))
    return TableImages(images, columns, names, sets)


def compose(layout: str, root: Path, found: TableImages, given: Path, notes: Sequence[str] = ()) -> Catalogue:
    """A catalogue whose parts are the splits of the files, if these have different classes in training and testing.

    Args:
        layout: its name.
        root: a folder that all images are below.
        found: the images.
        given: the table that errors name.
        notes: on the choice of columns.
    """
    labelled = [one for one in found.images if one.label]
    parts, more = choose_parts([one.split for one in labelled], [one.label for one in labelled])
    of_label = iter(parts)
    return _compose(layout, root, found, given, lambda _: next(of_label), [*notes, *more])


def _compose(
    layout: str,
    root: Path,
    found: TableImages,
    given: Path,
    choose_part: Callable[[TableImage], str],
    notes: Sequence[str],
) -> Catalogue:
    """A catalogue of the images that have a label and a part."""
    label = require_label(given, found.columns, found.names)
    unlabelled = sum(not one.label for one in found.images)
    if unlabelled == len(found.images):
        raise DataError(f"{given}: column {label!r}: expected labels, got none in {count(unlabelled, 'row')}")
    rows = []
    for one in found.images:
        part = choose_part(one) if one.label else ""
        if part:
            category, sequence = (manifest.read_cell(one.columns.get(name)) for name in ("category", "sequence"))
            rows.append(ImageRow(relative_path(one.path, root), one.label, part, None, category, sequence))
    verb = "is" if unlabelled == 1 else "are"
    left_out = [f"{count(unlabelled, 'image')} without a label {verb} left out (column {label})"] if unlabelled else []
    return Catalogue.from_rows(
        layout,
        root,
        rows,
        notes=[*found.columns.notes, *notes, *left_out],
        separator=manifest.SEPARATOR if found.sets else None,
    )


def relative_path(path: str, root: Path) -> str:
    """A path below a folder, relative to it; of millions of rows, whose text alone is looked at."""
    above = os.path.join(root, "")
    below = path[len(above) :] if path.startswith(above) else os.path.relpath(path, root)
    return below.replace(os.sep, "/")


def choose_parts(splits: Sequence[str], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """The part of each image by the split and the class of all, "" for those that are left out; and notes on them.

    >>> choose_parts(["train", "train", "test"], ["a", "b", "c"])[0]
    ['train', 'train', 'test']
    >>> choose_parts(["train", "train", "test"], ["a", "b", "a"])[0]
    ['all', 'all', 'all']
    """
    there = sorted({split for split in splits if split})
    known = {split: SPLITS[split.lower()] for split in there if split.lower() in SPLITS}
    unknown = [split for split in there if split not in known]
    if len(there) < 2 or not known:
        return [UNSPLIT] * len(splits), []
    notes = []
    if unknown:
        number = sum(split in unknown for split in splits)
        notes.append(
            f"{count(number, 'image')} of the splits {first_few(unknown)} are left out: expected "
            f"{first_few(SPLITS, 99)}"
        )
    if "test" not in known.values() and not {"query", "gallery"} <= set(known.values()) and "val" in known.values():
        known = {split: "test" if part == "val" else part for split, part in known.items()}
        notes.append("no image is of the split test: validation images are the test part, not for selection")
    parts = [known.get(split, "") for split in splits]
    classes = {
        name: {label for part, label in zip(parts, labels, strict=True) if part in names}
        for name, names in {"train": ("train",), "val": ("val",), "test": ("test", "query", "gallery")}.items()
    }
    if not classes["train"] or not classes["test"]:
        return [UNSPLIT if part else "" for part in parts], notes
    seen = (classes["train"] | classes["val"]) & classes["test"]
    if seen:
        verb = "is" if len(seen) == 1 else "are"
        notes.append(
            f"{len(seen):,} of {count(len(classes['test']), 'class')} of the split test {verb}"
            " also in train or validation: the splits of the data are not used, classes are split at random into seen "
            "and unseen ones"
        )
        return [UNSPLIT if part else "" for part in parts], notes
    if classes["train"] & classes["val"]:
        notes.append("validation images are of training classes: they are part of the training part")
        parts = ["train" if part == "val" else part for part in parts]
    return parts, notes


def _list_table(
    file: TableFile, schema: Any, columns: TableColumns, others: Collection[str] | None
) -> Iterator[TableImage]:
    try:
        sizes = open_table(file.path).column(columns.image).sizes
    except OSError as error:
        raise DataError(f"{file.path}: {error}") from error
    places = _paths_of_empty(file.path, columns.image) if (sizes == 0).any() else [None] * len(sizes)
    kept = [
        name
        for name in schema.names
        if name not in columns[:2] and manifest.is_plain(schema.field(name).type) and (others is None or name in others)
    ]
    plain = _read_plain(file.path, kept if columns.label is None else [*kept, columns.label])
    labels = [""] * len(sizes)
    if columns.label is not None:
        name_label = read_label(schema, columns.label)
        labels = [name_label(f"{file.path}, row {n}", one) for n, one in enumerate(plain[columns.label], start=1)]
    plain |= {name: name_classes(schema, name, plain[name]) for name in kept}
    inside = os.path.join(file.path, columns.image, "")
    for row, (size, place) in enumerate(zip(sizes.tolist(), places, strict=True)):
        values = {name: plain[name][row] for name in kept}
        if not size and place:
            path = os.path.normpath(os.path.join(file.path.parent, place))
            yield TableImage(path, labels[row], file.split, values, is_file=True)
        else:
            yield TableImage(f"{inside}{row}", labels[row], file.split, values)


def _read_schema(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path) if path.suffix.lower() == PARQUET else open_arrow(path).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error
    if len(set(schema.names)) < len(schema.names):
        raise DataError(f"{path}: expected each column once, got {first_few(schema.names, 12)}")
    return schema


def _read_plain(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns of a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix.lower() == PARQUET:
            table = pq.read_table(path, columns=list(names), partitioning=None)
        else:
            table = open_arrow(path).select(list(names))
        return {name: table[name].to_pylist() for name in names}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _paths_of_empty(path: Path, name: str) -> Sequence[str | None]:
    """The field `path` of each image, where there is one."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyarrow import types

    kind = _read_schema(path).field(name).type
    if not types.is_struct(kind) or kind.get_field_index(PATH) < 0:
        return [None] * len(open_table(path).column(name).sizes)
    if path.suffix.lower() == PARQUET:
        with pq.ParquetFile(path) as file:
            column = file.read(columns=[f"{name}.{PATH}"]).column(name)
    else:
        column = open_arrow(path).column(name)
    return [str(one) if one else None for one in pc.struct_field(column, PATH).to_pylist()]


def _files_below(folder: Path) -> list[Path]:
    found = sorted(file for file in walk_files(folder) if file.suffix.lower() == PARQUET)
    return [file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def _split_of(relative: Path) -> str:
    """The split that the name of a file, or of a folder that it is in, starts with."""
    for name in (relative.name, *reversed(relative.parts[:-1])):
        if matched := _SPLIT.match(name):
            return matched[1].lower()
    return ""
