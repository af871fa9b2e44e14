"""Changes of an index: what is taken away, what is put in, and a generation of its own for the result.

Whoever changes an index holds it for writing and has its current generation open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, ShapeError
from metrix.messages import first_few
from metrix.search.description import Description
from metrix.search.generations import next_generation, switch_generation, write_items
from metrix.search.items import Items, chained, read_table_of, same_columns
from metrix.search.stores import Store


def require_known_ids(store: Store, ids: Sequence[Any]) -> NDArray[np.int64]:
    """The row of each id; an unknown one is an error."""
    rows = store.find(list(ids))
    unknown = [one for one, row in zip(ids, rows.tolist(), strict=True) if row < 0]
    if unknown:
        example = next(iter(store.scan(1)))[1].ids[0].as_py()
        raise InvalidInput(f"id: expected one of {len(store):,}, as {example!r}, got {first_few(unknown)}")
    return rows


def change_items(
    folder: Path,
    store: Store,
    before: Description,
    ids: Sequence[Any],
    batches: Callable[[], Iterable[Items]],
    delete: Sequence[Any] = (),
    skipped: int = 0,
    mapped: int = 0,
    new_only: bool = False,
) -> None:
    """Take away `delete`, and put the items in `batches`, of these ids, into an index; see `Index.add` and `update`."""
    if before.store == "milvus":
        from metrix.search.milvus_collections import require_owner

        require_owner(folder, before.place)
    gone = require_known_ids(store, delete)
    there = store.find(list(ids))
    if new_only and (there >= 0).any():
        known = [ids[int(n)] for n in np.flatnonzero(there >= 0)]
        raise InvalidInput(f"add: expected new ids, got {first_few(known)}, in the index already; update them")
    gone = np.concatenate([gone, there[there >= 0]])
    count = len(store) - len(gone) + len(ids)
    if count == 0:
        raise InvalidInput("delete: expected at least one item to stay, got all; remove the folder instead")
    generation = next_generation(folder, before)
    place = store.change(folder, generation, (_fit(store, items) for items in batches()), gone)
    update = {"generation": generation, "place": place, "count": count, "skipped": before.skipped + skipped}
    if mapped and before.adapter is not None:
        update["adapter"] = before.adapter.model_copy(update={"mapped": before.adapter.mapped + mapped})
    measure = before.place.get("codes") != place.get("codes")
    switch_generation(folder, before.model_copy(update=update), before, measure)


def change_columns(
    folder: Path, store: Store, before: Description, ids: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> None:
    """Set columns of some items, and leave their vectors as they are."""
    rows = require_known_ids(store, ids)
    table = read_table_of(columns, len(ids))
    generation = next_generation(folder, before)
    place, types = store.set_columns(folder, generation, rows, table)
    update = {"generation": generation, "place": place, "columns": types}
    switch_generation(folder, before.model_copy(update=update), before, measure=False)


class ItemsChangedError(Exception):
    """Other items are in an index than those that were prepared."""


def change_vectors(
    folder: Path, store: Store, before: Description, replace: Callable[[Items], Items | None], **about: Any
) -> None:
    """Switch to other vectors of all items at once; see `Index.replace_vectors`. `about` is for the description.

    Raises:
        ItemsChangedError: by `replace`; the index stays as it is.
    """
    generation = next_generation(folder, before)
    found = (replace(items) for _, items in store.scan())
    batches = (items for items in found if items is not None)
    first = next(batches, None)
    if first is None:
        raise InvalidInput("items: expected at least one to stay, got none; an index cannot be empty")
    settings, address = store.settings.fitting(len(store)), "faiss"
    if before.store == "milvus":
        uri = str(before.place["uri"])
        address = f"milvus:{uri if '://' in uri else folder / uri}"
    place, count = write_items(
        address, folder, generation, chained(first, batches), before.kind, settings, before.count
    )
    update = {"generation": generation, "place": place, "dim": first.dim, "count": count or 0, "recall": None, **about}
    switch_generation(folder, before.model_copy(update=update), before)


def scan_below(store: Store, root: str | None, other: str | None) -> Iterator[Items]:
    """The items of another index, whose root is `other`, with ids as seen from this root."""
    prefix = _prefix(root, other)
    for _, items in store.scan():
        yield items.with_ids([f"{prefix}{one}" for one in items.ids.to_pylist()]) if prefix else items


def _fit(store: Store, items: Items) -> Items:
    """Items with the columns of the index, if they are like those that it has."""
    if items.dim != store.dim:
        raise ShapeError(f"vectors: expected dimension {store.dim}, as the index has, got {items.dim}")
    if items.ids_are_text != store.ids_are_text:
        raise InvalidInput("ids: expected all integers or all text, as the index has")
    return same_columns(items, store.column_types)


def _prefix(root: str | None, other: str | None) -> str:
    if root == other or root is None or other is None:
        return ""
    try:
        return Path(other).relative_to(root).as_posix() + "/"
    except ValueError:
        raise InvalidInput(
            f"merge: expected an index of images in {root} or below it, got one of {other}; ids are paths relative "
            "to the root, so build one index of a folder that holds both"
        ) from None
