"""Generations of an index in a folder: written beside the old one, switched to, and tidied up.

The description names the files of the current generation. A new one is complete on disk before the description is
replaced, so a process that is killed leaves the old index as it was; the next writer removes what it left behind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from metrix.errors import DataError, InvalidInput
from metrix.extras import require_extra
from metrix.files import describe_failure, lock
from metrix.messages import first_few
from metrix.search import faiss_store
from metrix.search.description import FILE, Description
from metrix.search.faiss_graph import Settings
from metrix.search.items import Items
from metrix.search.recall import measure_recall
from metrix.search.stores import Store

LOCK = ".lock"
_GENERATION = re.compile(r"vectors-\d{6,}\.npy|items-\d{6,}\.arrow|graph-\d{6,}(-part\d+)?\.(faiss|ivfdata)")


def name_generation(generation: int) -> str:
    """The number of a generation as its files have it."""
    return f"{generation:06d}"


def check_store(text: str) -> str:
    """The store, faiss or milvus, of a text such as `faiss` or `milvus:PATH`; its package must be installed."""
    if text == "faiss":
        require_extra("faiss")
        return "faiss"
    if text.startswith("milvus:"):
        require_extra("pymilvus")
        return "milvus"
    raise InvalidInput(f"store: expected faiss, milvus:PATH or milvus:http://HOST:PORT, got {text!r}")


def write_items(
    store: str,
    folder: Path,
    generation: int,
    lots: Iterable[Items],
    kind: str,
    settings: Settings,
    count: int | None,
) -> dict[str, Any]:
    """Write the items of a new generation; returns where they are, for the description."""
    if check_store(store) == "faiss":
        return faiss_store.write_generation(folder, name_generation(generation), lots, kind, settings)
    from metrix.search import milvus_store

    if kind == "ivf" and count is None:
        lots = list(lots)
        count = sum(map(len, lots))
    return milvus_store.write_collection(folder, milvus_store.address(store, folder), lots, kind, settings, count or 0)


def switch_generation(folder: Path, description: Description, before: Description | None) -> None:
    """Complete the description of a new generation with what is measured, switch to it and remove the old one."""
    made = open_store(folder, description, counted=False)
    try:
        found = {"count": len(made), "recall": None if made.kind == "exact" else measure_recall(made)}
    finally:
        made.close()
    description = description.model_copy(update=found)
    description.write(folder)
    _tidy(folder, description, before)
    if description.store == "milvus":
        from metrix.search.milvus_store import PENDING

        (folder / PENDING).unlink(missing_ok=True)


def open_store(folder: Path, description: Description, counted: bool = True) -> Store:
    """The store that a description describes; unless `counted`, before its items were counted."""
    place = description.place
    needed = ["vectors", "items"] if description.store == "faiss" else ["uri", "collection"]
    needed += ["graph"] if description.store == "faiss" and description.kind != "exact" else []
    for key in needed:
        if key not in place:
            raise DataError(f"{folder}: expected place.{key} in its description, got none; build the index anew")
    store: Store
    if description.store == "faiss":
        store = faiss_store.open_generation(folder, place, description.kind)
        if dict(store.column_types) != dict(description.columns) or (counted and len(store) != description.count):
            raise DataError(f"{folder}: its files do not fit its description (items or columns differ); build it anew")
    else:
        from metrix.search.milvus_store import MilvusStore

        store = MilvusStore(place, description.kind, description.columns, folder)
    if store.dim != description.dim:
        raise DataError(f"{folder}: expected vectors of dimension {description.dim}, got {store.dim}; build it anew")
    return store


def read_sound_description(folder: Path) -> Description | None:
    """The description of a folder; None if there is none, or a damaged one."""
    try:
        return Description.read(folder)
    except DataError:
        return None


@contextlib.contextmanager
def hold_for_writing(folder: Path) -> Iterator[None]:
    """One writer at a time; a place that cannot be written is a clear error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / LOCK):
            yield
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {describe_failure(error)}; choose another place") from error


def require_index_folder(folder: Path) -> None:
    """An error if a folder has files that are not of an index: those of the user are never touched."""
    if not folder.is_dir() or (folder / FILE).exists():
        return
    other = sorted(
        path.name for path in folder.iterdir() if not path.name.startswith(".") and not _GENERATION.fullmatch(path.name)
    )
    if other:
        raise InvalidInput(
            f"{folder}: expected an index, or a folder that is new or empty, got one with {first_few(other)}; choose "
            "another name"
        )


def _tidy(folder: Path, now: Description, before: Description | None) -> None:
    """Remove files of other generations, also what a killed writer left, and a collection that was replaced."""
    kept = faiss_store.files_of(now.place)
    for path in folder.iterdir():
        if _GENERATION.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)
    if (
        before is not None
        and before.store == "milvus"
        and before.place.get("collection") != now.place.get("collection")
    ):
        from metrix.search.milvus_store import drop_collection

        drop_collection(folder, before.place)
