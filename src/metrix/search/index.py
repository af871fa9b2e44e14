"""An index of embeddings, in memory or in a folder, on faiss or on Milvus.

    index = Index.build(vectors, ids=paths, columns={"label": labels})    # in memory
    hits = index.search(queries, k=10, where=["label=cat"])               # hits.ids, hits.records()
    index.save("photos.index")

    index = Index.open("photos.index")                                    # memory-mapped
    index.add(Items.read(more_vectors, more_paths))                       # also update, delete, merge

`exact` compares a query with everything; the other kinds are approximate, and `measure_recall` says what they miss.
A change writes a new generation beside the old one and then switches to it: a process that is killed leaves the
old index as it was, readers never see half of one, and of two writers one waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import DataError, InvalidInput, ShapeError, check_integer, unknown_choice
from metrix.search.adapters import FittedAdapter
from metrix.search.adapting import keep_adapter, open_adapter
from metrix.search.changing import change_columns, change_items, change_vectors, require_known_ids, scan_below
from metrix.search.description import Description, Fingerprint, IndexAdapter, OpenSet, Threshold
from metrix.search.faiss_store import FaissStore
from metrix.search.filters import read_filter
from metrix.search.generations import check_store, create_index, hold_for_writing, open_store
from metrix.search.hits import Hits
from metrix.search.items import Items, drop_id, in_batches, unit_vectors
from metrix.search.parts import IndexPart, join_parts
from metrix.search.recall import measure_recall
from metrix.search.refining import ALPHA
from metrix.search.searching import rows_of_own, search_store
from metrix.search.settings import Settings
from metrix.search.stores import KINDS, SCAN_ROWS, Store


class Index:
    """Items to search. Make one with `Index.build`, `Index.create` or `Index.open`."""

    def __init__(self, store: Store, description: Description, folder: Path | None = None) -> None:
        self.store, self.description, self.folder = store, description, folder
        self.adapter = open_adapter(folder, description)
        self._root: str | None = None  # that the user gave, of images that have moved

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
        batches: Iterable[Items],
        kind: str = "exact",
        *,
        store: str = "faiss",
        model: Fingerprint | None = None,
        root: str | None = None,
        data: str | None = None,
        follow_links: bool = False,
        skipped: int = 0,
        threshold: Threshold | None = None,
        open_set: OpenSet | None = None,
        settings: Settings | None = None,
        count: int | None = None,
    ) -> Index:
        """Write an index to a folder, in bounded memory, and open it; one that is there is replaced.

        Args:
            folder: the index; it is made if it is missing.
            batches: the items, in batches that fit in memory.
            kind: exact, hnsw, ivf, sq8 or ivf-pq.
            store: `faiss`, or `milvus:PATH` (embedded) or `milvus:http://HOST:PORT`.
            model: which model made the vectors; queries of another one are then refused.
            root: the folder that the ids are paths below; `data`: the embedded dataset that they are of instead.
            follow_links: images may be outside the root, through symbolic links.
            skipped: how many images could not be read, for the record.
            threshold: the similarity above which two images are the same thing.
            open_set: the probability from which on a query is of an enrolled class.
            settings: of the approximate kinds.
            count: how many items there will be, needed for `ivf` and `ivf-pq` on Milvus.
        """
        if kind not in KINDS:
            raise unknown_choice("kind", kind, KINDS)
        check_store(store)
        folder, settings, batches = Path(folder), settings or Settings(), iter(batches)
        first = next(batches, None)
        if first is None:
            raise InvalidInput("items: expected at least one, got none; an index cannot be empty")
        if model is not None and model.dim != first.dim:
            raise ShapeError(f"vectors: expected dimension {model.dim}, of the model, got {first.dim}")
        about: dict[str, Any] = {"skipped": skipped, "root": root, "data": data, "follow_links": follow_links}
        about |= {"model": model, "threshold": threshold, "open_set": open_set}
        create_index(folder, store, first, batches, kind, settings, count, about)
        return cls.open(folder, store)

    @classmethod
    def join(
        cls,
        folder: str | os.PathLike[str],
        parts: Sequence[IndexPart],
        kind: str = "exact",
        *,
        model: Fingerprint,
        settings: Settings | None = None,
        **about: Any,
    ) -> Index:
        """Make an index of parts that `write_index_part` wrote, in this order, and open it; no vector is copied.

        `about` are `root`, `follow_links`, `skipped` and `threshold`, as for `create`.
        """
        if kind not in KINDS:
            raise unknown_choice("kind", kind, KINDS)
        check_store("faiss")
        join_parts(Path(folder), parts, kind, settings or Settings(), dim=model.dim, model=model, **about)
        return cls.open(folder)

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], store: str | None = None, root: str | os.PathLike[str] | None = None
    ) -> Index:
        """The index in a folder. With faiss nothing is read but what a search touches.

        Args:
            folder: the index.
            store: `milvus:http://HOST:PORT`, where the description says that its vectors are. It is asked for where
                that is not beside the index: a description of a stranger may name any address.
            root: the folder of its images, if they have moved.
        """
        folder = Path(folder)
        for _ in range(20):
            description = Description.read(folder)
            if description.store == "milvus":
                from metrix.search.milvus_collections import require_known_address

                require_known_address(str(description.place.get("uri")), folder, store)
            try:
                opened = cls(open_store(folder, description), description, folder)
                if root is not None:
                    opened._root = str(Path(root).resolve())
                    opened.description = description.model_copy(update={"root": opened._root})
                return opened
            except FileNotFoundError as error:
                if Description.read(folder) == description:  # not replaced meanwhile
                    raise DataError(f"{folder}: expected {error.filename}, which is missing; build it anew") from error
        raise DataError(f"{folder}: it was replaced over and over while it was opened; try again")

    def reopen(self) -> Index:
        """The index as its folder has it now: this one, unless another process has changed or replaced it.

        Searches in this one that are under way still end; close it after them.
        """
        if self.folder is None:
            return self
        now, root = Description.read(self.folder), self._root
        if (now if root is None else now.model_copy(update={"root": root})) == self.description:
            return self
        uri = self.description.place.get("uri")  # which the user has named, or is beside the index
        return Index.open(self.folder, f"milvus:{uri}" if uri is not None and "://" in str(uri) else None, root)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def dim(self) -> int:
        """d, the number of entries of a vector."""
        return self.store.dim

    @property
    def kind(self) -> str:
        """exact, hnsw, ivf, sq8 or ivf-pq."""
        return self.store.kind

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that items have, and the type of each: text, integer, number or boolean."""
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
        own: Sequence[int] | None = None,
        adapted: bool = False,
    ) -> Hits:
        """The k nearest items of each query by cosine, with their columns; fewer if a filter keeps fewer.

        Args:
            queries: vectors (q, d) of the model that the index names, in any scale.
            k: how many.
            where: filters such as `label=cat` or `price<10 or label in (cat, dog)`, all of which an item has to meet.
            exclude: an id for each query that it must not find, as its own; None for none.
            expand: query expansion with so many neighbours (αQE), 0 for none; `alpha` is its α.
            rerank: k-reciprocal re-ranking of so many candidates, 0 for none. Similarities stay cosines, in the
                new order.
            model: the model of the queries, checked against that of the index.
            own: as `exclude`, by row, -1 for none: for items that were looked up by `find`.
            adapted: the queries are vectors of items, or went through `adapt` already. It matters where the index was
                upgraded to another model than made its items.
        """
        if model is not None:
            self.require_model(model)
        check_integer("k", k, 1)
        check_integer("expand", expand, 0)
        check_integer("rerank", rerank, 0)
        unit = unit_vectors(queries, "queries") if adapted else self.adapt(queries)
        if unit.shape[1] != self.dim:
            raise ShapeError(f"queries: expected dimension {self.dim}, as the index has, got {unit.shape[1]}")
        chosen = read_filter(where, self.columns)
        left_out = rows_of_own(self.store, exclude, own, len(unit))
        return Hits.look_up(search_store(self.store, unit, int(k), chosen, left_out, expand, alpha, rerank), self.store)

    @property
    def query_dim(self) -> int:
        """The number of entries of a query: d, unless another model made the items."""
        return self.dim if self.adapter is None else self.adapter.new_dim

    def adapt(self, queries: object) -> NDArray[np.float32]:
        """Unit vectors of queries as the model that made the items would have them: see `metrix upgrade`."""
        return unit_vectors(queries, "queries") if self.adapter is None else self.adapter(queries)

    def prepare(self) -> None:
        """Make now what speeds up exact search for single queries, in memory; else it is made after some of them.

        A byte for each entry of the vectors, where that is at most 1 GB; answers stay the same.
        """
        self.store.prepare()

    def find(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not there; rows hold until the index is changed or opened again."""
        return self.store.find(list(ids))

    def get(self, ids: Sequence[Any]) -> Items:
        """The items of these ids, in this order, with vectors and columns; an unknown id is an error."""
        return self.take(self.require_known(ids))

    def take(self, rows: NDArray[np.int64]) -> Items:
        """The items of these rows, in this order, with vectors and columns."""
        table = self.store.read_table(rows)
        return Items(table["id"].combine_chunks(), self.store.read_vectors(rows), drop_id(table))

    def require_known(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """The row of each id; an unknown one is an error."""
        return require_known_ids(self.store, ids)

    def require_model(self, model: Fingerprint) -> None:
        """An error if vectors of this model cannot be compared with those of the index."""
        if self.description.model is not None:
            self.description.model.require(model)

    def require_query_model(self, model: Fingerprint) -> None:
        """An error unless vectors of this model may query the index: of its own model, or one compatible with it."""
        own = self.description.model
        if own is not None and not own.may_be_queried_by(model):
            own.require(model)

    def measure_recall(self, k: int = 10, sample: int | None = None, seed: int = 0) -> float:
        """The share of the true k nearest neighbours that `search` finds, over a sample of the items."""
        return measure_recall(self.store, k, sample, seed)

    def save(self, folder: str | os.PathLike[str]) -> Index:
        """Write the index to a folder and open that; everything or nothing, as with `create`."""
        kept = ("root", "data", "follow_links", "skipped", "threshold", "open_set")
        about = {name: getattr(self.description, name) for name in kept}
        if (record := self.description.adapter) is not None:
            about |= {"threshold": record.before.threshold, "open_set": record.before.open_set}
        batches = (items for _, items in self.store.scan())
        model = self.description.model_of_items
        made = Index.create(folder, batches, self.kind, model=model, settings=self.store.settings, **about)
        now = self.description
        if self.adapter is not None and record is not None and now.model is not None:
            made.keep_adapter(self.adapter, record, now.model, now.threshold, now.open_set)
        return made

    def add(self, items: Items, skipped: int = 0, mapped: int = 0) -> None:
        """Add items under ids that are not there yet; `mapped` of them went through the adapter, for the record."""
        about = {"skipped": skipped, "mapped": mapped}
        self._change(items.ids.to_pylist(), lambda: in_batches(items, SCAN_ROWS), new_only=True, **about)

    def update(self, items: Items, skipped: int = 0, mapped: int = 0) -> None:
        """Replace the items under these ids; those that are not there are added."""
        about = {"skipped": skipped, "mapped": mapped}
        self._change(items.ids.to_pylist(), lambda: in_batches(items, SCAN_ROWS), **about)

    def delete(self, ids: Sequence[Any]) -> None:
        """Take items away; an id that is not there is an error."""
        self._change([], lambda: (), delete=list(dict.fromkeys(ids)))

    def set_columns(self, ids: Sequence[Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """Set columns of some items, new ones too, without touching vectors; other items keep what they have.

        On Milvus, a column has to be there already.
        """
        with self._changing() as folder:
            change_columns(folder, self.store, self.description, ids, columns)

    def keep_open_set(self, found: OpenSet) -> None:
        """Store from which probability on a query is of an enrolled class, for `metrix classify`."""
        with self._changing() as folder:
            self.description.model_copy(update={"open_set": found}).write(folder)

    def keep_adapter(
        self,
        adapter: FittedAdapter,
        record: IndexAdapter,
        model: Fingerprint,
        threshold: Threshold | None = None,
        open_set: OpenSet | None = None,
    ) -> None:
        """Let queries go through another model and an adapter; the vectors of the items stay as they are.

        Args:
            adapter: maps its vectors to those of the items.
            record: what is remembered of it, and of what was before; its `file` is chosen here.
            model: that queries go through from now on.
            threshold, open_set: for its queries.
        """
        with self._changing() as folder:
            keep_adapter(folder, self.description, adapter, record, model, threshold=threshold, open_set=open_set)

    def replace_vectors(
        self,
        model: Fingerprint,
        replace: Callable[[Items], Items | None],
        *,
        skipped: int = 0,
        threshold: Threshold | None = None,
        open_set: OpenSet | None = None,
    ) -> None:
        """Give all items vectors of another model, in one step; ids and columns stay.

        Args:
            model: that made them, and that queries go through from now on; an adapter is no longer needed.
            replace: the same items with new vectors, perhaps fewer or none; called for some at a time.
            skipped: how many `replace` leaves out, for the record.
            threshold, open_set: for the new model.
        """
        with self._changing() as folder:
            about: dict[str, Any] = {"model": model, "adapter": None, "threshold": threshold, "open_set": open_set}
            about["skipped"] = self.description.skipped + skipped
            change_vectors(folder, self.store, self.description, replace, **about)

    def merge(self, other: Index) -> None:
        """Add the items of another index of the same model.

        Where its root is a folder below this one's, its ids get that folder in front.
        """
        mine, its = self.description.model_of_items, other.description.model_of_items
        if mine is not None and its is not None:
            mine.require(its)
            mine.require_engine(its.engine)
        roots = self.description.root, other.description.root
        ids = [one for items in scan_below(other.store, *roots) for one in items.ids.to_pylist()]
        self._change(ids, lambda: scan_below(other.store, *roots), new_only=True)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Path]:
        """Hold the folder for writing, with its current generation open before and after: others may have written."""
        if self.folder is None:
            raise InvalidInput("an index in memory cannot be changed; save it to a folder first, or build another")
        with hold_for_writing(self.folder):
            self._reload(self.folder)
            yield self.folder
            self._reload(self.folder)

    def _change(self, ids: Sequence[Any], batches: Callable[[], Iterable[Items]], **options: Any) -> None:
        embedded_for = self.description.model_of_items
        with self._changing() as folder:
            made_by = self.description.model_of_items
            if ids and embedded_for is not None and made_by is not None and made_by.digest != embedded_for.digest:
                raise InvalidInput(f"{folder}: its items were replaced by those of another model; repeat the command")
            change_items(folder, self.store, self.description, ids, batches, **options)

    def _reload(self, folder: Path) -> None:
        current = Description.read(folder)
        if current != self.description:
            if current.store == "milvus" and current.place.get("uri") != self.description.place.get("uri"):
                from metrix.search.milvus_collections import require_known_address

                require_known_address(str(current.place.get("uri")), folder, None)
            self.store.close()
            self.description, self.store = current, open_store(folder, current)
            self.adapter = open_adapter(folder, current)
