"""An index of embeddings, in memory or in a folder, on faiss or on Milvus.

    index = Index.build(vectors, ids=paths, columns={"label": labels})    # in memory
    ids, similarities = index.search(queries, k=10, where=["label=cat"])
    index.save("photos.index")

    index = Index.open("photos.index")                                    # memory-mapped
    index.add(Items.read(more_vectors, more_paths))                       # also update, delete, merge

`exact` compares a query with everything; `hnsw` and `ivf` are approximate, and `measure_recall` says what they miss.
A change writes a new generation beside the old one and then switches to it: a process that is killed leaves the
old index as it was, readers never see half of one, and of two writers one waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metrix.errors import DataError, InvalidInput, ShapeError, check_integer, unknown_choice
from metrix.messages import first_few
from metrix.search.description import Description, Fingerprint, Threshold
from metrix.search.faiss_graph import Settings
from metrix.search.faiss_store import FaissStore
from metrix.search.filters import read_filter
from metrix.search.generations import (
    check_store,
    hold_for_writing,
    name_generation,
    open_store,
    read_sound_description,
    require_index_folder,
    switch_generation,
    write_items,
)
from metrix.search.items import Items, chained, in_batches, same_columns, unit_vectors
from metrix.search.recall import measure_recall
from metrix.search.refining import ALPHA
from metrix.search.searching import search_store
from metrix.search.stores import KINDS, SCAN_ROWS, Found, Store


class Index:
    """Items to search. Make one with `Index.build`, `Index.create` or `Index.open`."""

    def __init__(self, store: Store, description: Description, folder: Path | None = None) -> None:
        self.store, self.description, self.folder = store, description, folder

    @classmethod
    def build(
        cls,
        vectors: object,
        ids: object = None,
        kind: str = "exact",
        *,
        columns: Mapping[str, Sequence[Any]] | None = None,
        settings: Settings | None = None,
    ) -> Index:
        """An index in memory of vectors (n, d) under n distinct ids, integers or text; row numbers by default.

        >>> index = Index.build([[1.0, 0.0], [0.0, 1.0]], ids=["right", "up"])
        >>> index.search([[0.1, 2.0]], k=1).ids.tolist()
        [['up']]
        """
        if kind not in KINDS:
            raise unknown_choice("kind", kind, KINDS)
        items = Items.read(vectors, ids, columns)
        if items.vectors is vectors:
            items = Items(items.ids, items.vectors.copy(), items.columns)  # the caller may change theirs
        description = Description(kind=kind, dim=items.dim, columns=items.column_types, count=len(items))
        return cls(FaissStore.build(items, kind, settings), description)

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        lots: Iterable[Items],
        kind: str = "exact",
        *,
        store: str = "faiss",
        model: Fingerprint | None = None,
        root: str | None = None,
        data: str | None = None,
        follow_links: bool = False,
        skipped: int = 0,
        threshold: Threshold | None = None,
        settings: Settings | None = None,
        count: int | None = None,
    ) -> Index:
        """Write an index to a folder, in bounded memory, and open it; one that is there is replaced.

        Args:
            folder: the index; it is made if it is missing.
            lots: the items, in lots that fit in memory.
            kind: exact, hnsw or ivf.
            store: `faiss`, or `milvus:PATH` (embedded) or `milvus:http://HOST:PORT`.
            model: which model made the vectors; queries of another one are then refused.
            root: the folder that the ids are paths below; `data`: the embedded dataset that they are of instead.
            follow_links: images may be outside the root, through symbolic links.
            skipped: how many images could not be read, for the record.
            threshold: the similarity above which two images are the same thing.
            settings: of the approximate kinds.
            count: how many items there will be, needed for `ivf` on Milvus.
        """
        if kind not in KINDS:
            raise unknown_choice("kind", kind, KINDS)
        chosen = check_store(store)
        folder, settings, lots = Path(folder), settings or Settings(), iter(lots)
        first = next(lots, None)
        if first is None:
            raise InvalidInput("items: expected at least one, got none; an index cannot be empty")
        if model is not None and model.dim != first.dim:
            raise ShapeError(f"vectors: expected dimension {model.dim}, of the model, got {first.dim}")
        with hold_for_writing(folder):
            require_index_folder(folder)
            before = read_sound_description(folder)
            generation = 1 if before is None else before.generation + 1
            if chosen == "milvus":
                from metrix.search.milvus_store import drop_pending

                drop_pending(folder, None if before is None else str(before.place.get("collection")))
            place = write_items(store, folder, generation, chained(first, lots), kind, settings, count)
            description = Description(
                generation=generation,
                store=chosen,
                kind=kind,
                place=place,
                dim=first.dim,
                columns=first.column_types,
                count=0,
                skipped=skipped,
                root=root,
                data=data,
                follow_links=follow_links,
                model=model,
                threshold=threshold,
            )
            switch_generation(folder, description, before)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Index:
        """The index in a folder. With faiss nothing is read but what a search touches."""
        folder = Path(folder)
        for _ in range(20):
            description = Description.read(folder)
            try:
                return cls(open_store(folder, description), description, folder)
            except FileNotFoundError as error:
                if Description.read(folder).generation == description.generation:  # not replaced meanwhile
                    raise DataError(f"{folder}: expected {error.filename}, which is missing; build it anew") from error
        raise DataError(f"{folder}: it was replaced over and over while it was opened; try again")

    def reopen(self) -> Index:
        """The index as its folder has it now: this one, unless another process has changed or replaced it.

        Searches in this one that are under way still end; close it after them.
        """
        if self.folder is None or Description.read(self.folder) == self.description:
            return self
        return Index.open(self.folder)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self.store.dim

    @property
    def kind(self) -> str:
        """exact, hnsw or ivf."""
        return self.store.kind

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that items have, and the kind of each: text, integer, number or boolean."""
        return self.store.column_types

    def __repr__(self) -> str:
        return f"Index({len(self)} x {self.dim}, {self.kind})"

    def close(self) -> None:
        """Let go of files and connections."""
        self.store.close()

    def search(
        self,
        queries: object,
        k: int = 10,
        *,
        where: Sequence[str] = (),
        exclude: Sequence[Any] | None = None,
        expand: int = 0,
        alpha: float = ALPHA,
        rerank: int = 0,
        model: Fingerprint | None = None,
    ) -> Found:
        """The k nearest items of each query by cosine; fewer if the index, or what a filter keeps, is smaller.

        Args:
            queries: vectors (q, d), in any scale.
            k: how many.
            where: conditions such as `label=cat` or `price<10`, all of which an item has to meet.
            exclude: an id for each query that it must not find, as its own; None for none.
            expand: query expansion with so many neighbours (αQE), 0 for none; `alpha` is its α.
            rerank: k-reciprocal re-ranking of so many candidates, 0 for none. Similarities stay cosines, in the
                new order.
            model: the model of the queries, checked against that of the index.
        """
        if model is not None:
            self.require_model(model)
        check_integer("k", k, 1)
        check_integer("expand", expand, 0)
        check_integer("rerank", rerank, 0)
        unit = unit_vectors(queries, "queries")
        if unit.shape[1] != self.dim:
            raise ShapeError(f"queries: expected dimension {self.dim}, as the index has, got {unit.shape[1]}")
        if exclude is not None and len(exclude) != len(unit):
            raise ShapeError(f"exclude: expected an id or None for each of {len(unit)} queries, got {len(exclude)}")
        chosen = read_filter(where, self.columns)
        return search_store(self.store, unit, int(k), chosen, exclude, expand, alpha, rerank)

    def get(self, ids: Sequence[Any]) -> Items:
        """The items of these ids, in this order, with vectors and columns; an unknown id is an error."""
        self._require_known(ids)
        return self.store.get(list(ids))

    def _require_known(self, ids: Sequence[Any]) -> None:
        unknown = [one for one, known in zip(ids, self.store.has(ids), strict=True) if not known]
        if unknown:
            raise InvalidInput(f"id: expected one of {len(self):,}, as {self._example()!r}, got {first_few(unknown)}")

    def _example(self) -> Any:
        return next(iter(self.store.scan(1))).ids[0].as_py()

    def require_model(self, model: Fingerprint) -> None:
        """An error if vectors of this model cannot be compared with those of the index."""
        if self.description.model is not None:
            self.description.model.require(model)

    def measure_recall(self, k: int = 10, sample: int = 1000, seed: int = 0) -> float:
        """The share of the true k nearest neighbours that `search` finds, over a sample of the items."""
        return measure_recall(self.store, k, sample, seed)

    def save(self, folder: str | os.PathLike[str]) -> Index:
        """Write the index to a folder and open that; everything or nothing, as with `create`."""
        m = self.description
        return Index.create(
            folder,
            self.store.scan(),
            self.kind,
            model=m.model,
            root=m.root,
            data=m.data,
            follow_links=m.follow_links,
            skipped=m.skipped,
            threshold=m.threshold,
            settings=self.store.settings if isinstance(self.store, FaissStore) else None,
        )

    def add(self, items: Items, skipped: int = 0) -> None:
        """Add items under ids that are not there yet."""
        self._change(items.ids.to_pylist(), lambda: in_batches(items, SCAN_ROWS), skipped=skipped, new_only=True)

    def update(self, items: Items, skipped: int = 0) -> None:
        """Replace the items under these ids; those that are not there are added."""
        self._change(items.ids.to_pylist(), lambda: in_batches(items, SCAN_ROWS), skipped=skipped)

    def delete(self, ids: Sequence[Any]) -> None:
        """Take items away; an id that is not there is an error."""
        self._change([], lambda: (), delete=list(dict.fromkeys(ids)))

    def merge(self, other: Index) -> None:
        """Add the items of another index of the same model.

        Where its root is a folder below this one's, its ids get that folder in front.
        """
        if self.description.model is not None and other.description.model is not None:
            self.description.model.require(other.description.model)
            self.description.model.require_engine(other.description.model.engine)
        prefix = _prefix(self.description.root, other.description.root)

        def lots() -> Iterator[Items]:
            for lot in other.store.scan():
                yield lot.with_ids([f"{prefix}{one}" for one in lot.ids.to_pylist()]) if prefix else lot

        ids = [one for lot in lots() for one in lot.ids.to_pylist()]
        self._change(ids, lots, new_only=True)

    def _need_folder(self) -> Path:
        if self.folder is None:
            raise InvalidInput("an index in memory cannot be changed; save it to a folder first, or build another")
        return self.folder

    def _change(
        self,
        ids: Sequence[Any],
        lots: Callable[[], Iterable[Items]],
        delete: Sequence[Any] = (),
        skipped: int = 0,
        new_only: bool = False,
    ) -> None:
        """Take away `delete`, and put the items in `lots`, of these ids, into the index."""
        folder = self._need_folder()
        with hold_for_writing(folder):
            self._reload(folder)  # another writer may have been here
            before = self.description
            self._require_known(delete)
            there = [one for one, known in zip(ids, self.store.has(ids), strict=True) if known]
            if new_only and there:
                raise InvalidInput(f"add: expected new ids, got {first_few(there)}, in the index already; update them")
            if len(self) + len(ids) == len(there) + len(delete):
                raise InvalidInput("delete: expected at least one item to stay, got all; remove the folder instead")
            fitting = (same_columns(_of_dim(lot, self.dim), self.columns) for lot in lots())
            generation = before.generation + 1
            place = self.store.change(folder, name_generation(generation), fitting, delete, there)
            update = {"generation": generation, "place": place, "skipped": before.skipped + skipped}
            switch_generation(folder, before.model_copy(update=update), before)
            self._reload(folder)

    def _reload(self, folder: Path) -> None:
        current = Description.read(folder)
        if current.generation != self.description.generation:
            self.store.close()
            self.description, self.store = current, open_store(folder, current)


def _of_dim(items: Items, dim: int) -> Items:
    if items.dim != dim:
        raise ShapeError(f"vectors: expected dimension {dim}, as the index has, got {items.dim}")
    return items


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
