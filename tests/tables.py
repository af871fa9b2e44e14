"""Parquet files and saved data sets of Hugging Face with the images of class folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

IMAGE = {"_type": "Image"}
CONTENT = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def list_files(photos: Path) -> list[Path]:
    return sorted(path for path in photos.rglob("*") if path.is_file())


def build_table(
    files: Sequence[Path],
    *,
    plain: bool = False,
    numbers: bool = False,
    extra: dict[str, list[Any]] | None = None,
    label: str = "label",
) -> pa.Table:
    """A table of the files; a class is the name of a folder, or its number among the names in the metadata."""
    classes = [file.parent.name for file in files]
    names = sorted(set(classes))
    contents = [file.read_bytes() for file in files]
    images = contents if plain else [{"bytes": c, "path": f.name} for c, f in zip(contents, files, strict=True)]
    table = pa.table(
        {
            "image": pa.array(images, pa.binary() if plain else CONTENT),
            label: [names.index(one) for one in classes] if numbers else classes,
            **(extra or {}),
        }
    )
    return declare(table, {label: {"names": names, "_type": "ClassLabel"}} if numbers else {}, image=not plain)


def declare(table: pa.Table, features: dict[str, Any], image: bool = True) -> pa.Table:
    """The table with what the package `datasets` writes into the metadata."""
    all_features = {**({"image": IMAGE} if image else {}), **features}
    if not all_features:
        return table
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": all_features}})})


def write_parquet(path: Path, table: pa.Table, rows: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def save_split(folder: Path, table: pa.Table) -> Path:
    """A folder as `save_to_disk` of `datasets` writes it for one split."""
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=5)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def save_splits(folder: Path, tables: dict[str, pa.Table]) -> Path:
    """A folder as `save_to_disk` writes it for several splits."""
    for name, table in tables.items():
        save_split(folder / name, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(tables)}))
    return folder


def of_classes(files: Sequence[Path], keep: Callable[[str], bool]) -> list[Path]:
    return [file for file in files if keep(file.parent.name)]
