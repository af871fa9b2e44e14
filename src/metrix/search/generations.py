"""Generations of an index in a folder: written beside the old one, switched to, and tidied up.

The description names the files of the current generation. A new one is complete on disk before the description is
replaced, so a process that is killed leaves the old index as it was; the next writer removes what it left behind.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from metrix.errors import DataError, InvalidInput
from metrix.extras import require_extra
from metrix.files import describe_failure, lock
from metrix.messages import first_few
from metrix.search.description import FILE, Description
from metrix.search.faiss_files import FILE_NAME, files_of, write_generation
from metrix.search.faiss_store import FaissStore
from metrix.search.items import Items, chained
from metrix.search.recall import find_true_neighbours, recall_of
from metrix.search.settings import Settings
from metrix.search.sketches import FAR_K, NEAR_K
from metrix.search.stores import Store

LOCK = ".lock"


def check_store(text: str) -> str:
    """The store, faiss or milvus, of a text such as `faiss` or `milvus:PATH`; its package must be installed."""
    if text == "faiss":
        require_extra("faiss")
        return "faiss"
    if text.startswith("milvus:"):
        require_extra("pymilvus")
        return "milvus"
    raise InvalidInput(f"store: expected faiss, milvus:PATH or milvus:http://HOST:PORT, got {text!r}")


def create_index(
    folder: Path,
    store: str,
    first: Items,
    more: Iterator[Items],
    kind: str,
    settings: Settings,
    count: int | None,
    about: Mapping[str, Any],
) -> None:
    """Write an index of the first items and more of them to a folder; `about` are other entries of its description."""
    chosen = check_store(store)

    def write(generation: int, before: Description | None) -> tuple[dict[str, Any], int | None, dict[str, str]]:
        if chosen == "milvus":
            from metrix.search.milvus_collections import drop_pending

            drop_pending(folder, None if before is None else str(before.place.get("collection")))
        found = write_items(store, folder, generation, chained(first, more), kind, settings, count)
        return *found, first.column_types

    replace_index(folder, write, store=chosen, kind=kind, dim=first.dim, **about)


def replace_index(
    folder: Path,
    write: Callable[[int, Description | None], tuple[dict[str, Any], int | None, dict[str, str]]],
    **about: Any,
) -> None:
    """Switch to a new generation; `write` returns where it is, how many items if that is known, and column types."""
    with hold_for_writing(folder):
        require_index_folder(folder)
        before = read_sound_description(folder)
        generation = next_generation(folder, before)
        place, written, types = write(generation, before)
        description = Description(generation=generation, place=place, columns=types, count=written or 0, **about)
        switch_generation(folder, description, before)


def write_items(
    store: str,
    folder: Path,
    generation: int,
    batches: Iterator[Items],
    kind: str,
    settings: Settings,
    count: int | None,
) -> tuple[dict[str, Any], int | None]:
    """Write the items of a new generation; returns where they are, for the description, and how many if it is known."""
    if check_store(store) == "faiss":
        return write_generation(folder, generation, batches, kind, settings), None
    from metrix.search.milvus_collections import address, create_collection, drop_collection
    from metrix.search.milvus_store import MilvusStore

    if kind.startswith("ivf") and count is None:
        everything = list(batches)
        count, batches = sum(map(len, everything)), iter(everything)
    first = next(batches)
    place = create_collection(folder, address(store, folder), first, kind, settings, count or 0)
    try:
        opened = MilvusStore(place, kind, first.column_types, folder, generation, 0)
        try:
            added = opened.fill(chained(first, batches), generation)
        finally:
            opened.close()
    except BaseException:
        with contextlib.suppress(Exception):
            drop_collection(folder, place)
        raise
    return {**place, "next_row": added}, added


def switch_generation(
    folder: Path, description: Description, before: Description | None, measure: bool = True
) -> Description:
    """Complete the description of a new generation with what is measured, switch to it and remove the old one."""
    made = open_store(folder, description, counted=description.store == "milvus")
    try:
        found: dict[str, Any] = {"count": len(made)}
        if measure:
            found |= _measure_codes(made, description.place)
    finally:
        made.close()
    description = description.model_copy(update=found)
    description.write(folder)
    tidy(folder, description, before)
    return description


def _measure_codes(made: Store, place: Mapping[str, Any]) -> dict[str, Any]:
    """The recall of an approximate store, once it is known how far it has to search; None of an exact one."""
    if made.kind == "exact" or len(made) < 2:
        return {"recall": None if made.kind == "exact" else 1.0}
    known = find_true_neighbours(made, min(FAR_K, len(made) - 1))
    chosen = made.choose_reach(known) if isinstance(made, FaissStore) else {}
    return {"place": {**place, **chosen}, "recall": recall_of(made, known._replace(rows=known.rows[:, :NEAR_K]))}


def open_store(folder: Path, description: Description, counted: bool = True) -> Store:
    """The store that a description names; unless `counted`, before its items were counted."""
    place = description.place
    needed = ["vectors", "items"] if description.store == "faiss" else ["uri", "collection", "next_row"]
    needed += ["codes"] if description.store == "faiss" and description.kind != "exact" else []
    for key in needed:
        if key not in place:
            raise DataError(f"{folder}: expected place.{key} in its description, got none; build the index anew")
    store: Store
    if description.store == "faiss":
        store = FaissStore.open(folder, place, description.kind)
        if dict(store.column_types) != dict(description.columns) or (counted and len(store) != description.count):
            raise DataError(f"{folder}: its files do not fit its description (items or columns differ); build it anew")
    else:
        from metrix.search.milvus_store import MilvusStore

        store = MilvusStore(
            place, description.kind, description.columns, folder, description.generation, description.count
        )
    if store.dim != description.dim:
        raise DataError(f"{folder}: expected vectors of dimension {description.dim}, got {store.dim}; build it anew")
    return store


def read_sound_description(folder: Path) -> Description | None:
    """The description of a folder; None if there is none, or a damaged one."""
    try:
        return Description.read(folder)
    except DataError:
        return None


def next_generation(folder: Path, before: Description | None) -> int:
    """The number of the generation to write, above all that have left files, also where the description is damaged."""
    numbers = [0 if before is None else before.generation]
    for path in folder.iterdir():
        if FILE_NAME.fullmatch(path.name):
            text = path.name.split("-")[1]
            numbers.append(int(text) if text.isdecimal() else 0)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        numbers.append(int(json.loads((folder / FILE).read_bytes())["generation"]))  # of another version
    return max(numbers) + 1


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
        path.name for path in folder.iterdir() if not path.name.startswith(".") and not FILE_NAME.fullmatch(path.name)
    )
    if other:
        raise InvalidInput(
            f"{folder}: expected an index, or a folder that is new or empty, got one with {first_few(other)}; choose "
            "another name"
        )


def tidy(folder: Path, now: Description, before: Description | None) -> None:
    """Remove files of other generations, also what a killed writer left, and a collection that was replaced."""
    kept = {*files_of(now.place), *([] if now.adapter is None else [now.adapter.file])}
    for path in folder.iterdir():
        if FILE_NAME.fullmatch(path.name) and path.name not in kept:
            with contextlib.suppress(PermissionError):  # Windows: another process has it mapped; a later writer does
                path.unlink(missing_ok=True)
    if now.store != "milvus" and (before is None or before.store != "milvus"):
        return
    from metrix.search.milvus_collections import PENDING, drop_replaced

    replaced = before is not None and before.store == "milvus"
    if replaced and before is not None and before.place.get("collection") != now.place.get("collection"):
        drop_replaced(folder, before.place)
    (folder / PENDING).unlink(missing_ok=True)
