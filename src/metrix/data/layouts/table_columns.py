"""Which column of a Parquet or Arrow table has the images, which one the labels, and what its numbers mean."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metrix.data.image_tables import BYTES, PATH, is_binary, scan_images
from metrix.data.images import readable_formats
from metrix.data.layouts.manifest import is_plain, join_labels, read_cell
from metrix.errors import DataError, unknown_choice
from metrix.messages import first_few

LABELS = ("label", "labels", "class", "class_name", "target")  # names of a column of labels, if none is declared as one
IMAGE = "image"  # the name that decides between several columns of images


class ColumnChoice(NamedTuple):
    """The columns that a user named; those left out are found."""

    image: str | None = None
    label: str | None = None

    def refuse(self, what: str) -> None:
        """Raise a DataError if a column was named for data without tables of images."""
        for flag, name in (("--image-column", self.image), ("--label-column", self.label)):
            if name is not None:
                raise DataError(
                    f"{flag} {name}: expected with images in Parquet files or data of Hugging Face (hf:), got {what}; "
                    "leave it out"
                )


class TableColumns(NamedTuple):
    """The columns of a table: of images, of labels (None if there is none), and a note if others could be meant."""

    image: str
    label: str | None
    notes: tuple[str, ...]


def find_image_columns(path: Path, schema: Any, *, look: bool = True) -> list[str]:
    """The columns with images: declared as such, structures of bytes and a path, or bytes that start as images do.

    Args:
        path: the table.
        schema: of pyarrow.
        look: at the values of columns of bytes; otherwise these do not count.
    """
    from pyarrow import types

    declared = _features(schema)
    found = []
    for field in schema:
        kind = field.type
        fields = (
            {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)} if types.is_struct(kind) else {}
        )
        bytes_and_path = PATH in fields and BYTES in fields and is_binary(fields[BYTES])
        is_image = _kind_of(declared.get(field.name)) == "Image" and (bytes_and_path or is_binary(kind))
        if bytes_and_path or is_image or (look and is_binary(kind) and _starts_as_image(path, field.name)):
            found.append(field.name)
    return found


def choose_columns(path: Path, schema: Any, choice: ColumnChoice) -> TableColumns:
    """The columns that a user named, or those that can be meant.

    Raises:
        DataError: there is no such column, or several could be meant.
    """
    notes: list[str] = []
    images = find_image_columns(path, schema)
    if choice.image is not None:
        if choice.image not in images:
            raise DataError(f"{path}: {unknown_choice('--image-column', choice.image, images)}")
        image = choice.image
    else:
        image = _only(path, images, (IMAGE,), "images", "--image-column", schema.names, notes)
    labels = [name for name in schema.names if name != image and _can_label(schema.field(name).type)]
    if choice.label is not None:
        if choice.label not in labels:
            raise DataError(f"{path}: {unknown_choice('--label-column', choice.label, labels)}")
        return TableColumns(image, choice.label, tuple(notes))
    declared = [name for name in labels if _class_names(_features(schema).get(name)) is not None]
    usual = declared or [name for name in labels if name.lower() in LABELS]
    label = _only(path, usual, LABELS[:1], "labels", "--label-column", labels, notes) if usual else None
    return TableColumns(image, label, tuple(notes))


def read_label(schema: Any, name: str) -> Callable[[str, Any], str]:
    """What makes the name of a class of a value in a column, "" for none; it is given the place for its errors."""
    names = _class_names(_features(schema).get(name))
    several = _is_list(schema.field(name).type)

    def one(where: str, value: Any) -> str:
        if names is None or not isinstance(value, int):
            return read_cell(value)
        if value >= len(names):
            raise DataError(f"{where}: {name}: expected a number below {len(names)}, one of its classes, got {value}")
        return names[value] if value >= 0 else ""  # -1: labels that are kept secret

    def all_of(where: str, value: Any) -> str:
        found = [text for text in (one(where, item) for item in value or ()) if text]
        return join_labels(where, found) if found else ""

    return all_of if several else one


def name_classes(schema: Any, name: str, values: list[Any]) -> list[Any]:
    """The values of a column, with names of classes in place of numbers if it is declared as one of classes."""
    names = _class_names(_features(schema).get(name))
    if names is None:
        return values
    return [names[one] if isinstance(one, int) and 0 <= one < len(names) else None for one in values]


def require_label(path: Path | str, columns: TableColumns, names: Sequence[str]) -> str:
    """The column of labels, or an error that says how to name it."""
    if columns.label is None:
        raise DataError(
            f"{path}: expected a column of labels ({', '.join(LABELS)}), got {first_few(names, 12)}; name it with "
            "--label-column (label_column)"
        )
    return columns.label


def _only(
    path: Path,
    found: Sequence[str],
    preferred: Sequence[str],
    what: str,
    flag: str,
    all_names: Sequence[str],
    notes: list[str],
) -> str:
    """The one column that was found, or the one with the preferred name, which a note then says."""
    if not found:
        raise DataError(f"{path}: expected a column of {what}, got {first_few(all_names, 12)}; name it with {flag}")
    if len(found) == 1:
        return found[0]
    named = [name for name in found if name in preferred]
    if len(named) != 1:
        raise DataError(f"{path}: expected one column of {what}, got {', '.join(found)}; choose one with {flag}")
    others = ", ".join(name for name in found if name not in named)
    notes.append(f"the {what} are those of the column {named[0]}; {flag} chooses another ({others})")
    return named[0]


def _can_label(kind: Any) -> bool:
    return is_plain(kind.value_type if _is_list(kind) else kind)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _features(schema: Any) -> dict[str, Any]:
    """What the metadata of Hugging Face's datasets say of columns; nothing if there are none."""
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, ValueError, TypeError):
        return {}


def _kind_of(feature: Any) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _class_names(feature: Any) -> list[str] | None:
    """The names of the classes of a feature, or of those in its lists; None if it is none of classes."""
    if isinstance(feature, list):  # a list of one feature, as old versions write it
        return _class_names(feature[0]) if len(feature) == 1 else None
    if _kind_of(feature) in ("Sequence", "List", "LargeList"):
        return _class_names(feature.get("feature"))
    names = feature.get("names") if _kind_of(feature) == "ClassLabel" else None
    return [str(name) for name in names] if isinstance(names, list) and names else None


def _starts_as_image(path: Path, name: str) -> bool:
    """Whether the first value of a column of bytes is an image."""
    from PIL import Image

    try:
        for images in scan_images(str(path), name):
            for one in images.drop_null().slice(0, 1):
                with Image.open(io.BytesIO(one.as_py()), formats=readable_formats()):
                    return True
    except Exception:  # Pillow raises all kinds of exceptions, and another reader reports what is wrong with the file
        return False
    return False
