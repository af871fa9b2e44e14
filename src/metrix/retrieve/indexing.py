"""From images to an index, with the model of a run; `queries` searches it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data import Broken
from metrix.data.layouts.manifest import infer_types, read_columns
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.errors import DataError, InvalidInput
from metrix.files import describe_failure, lock
from metrix.messages import first_few
from metrix.model.engines import AUTO, TORCH, Engine
from metrix.retrieve.encoder import fingerprint, short_side
from metrix.retrieve.engine_choice import (
    ChosenEngine,
    WantedEngine,
    agree_on_engine,
    read_engine,
    reopen_engine,
)
from metrix.retrieve.image_lists import ImageList, list_images
from metrix.retrieve.relabel import Relabelled
from metrix.retrieve.vector_lists import list_vectors, refuse_root
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.open_set import read_open_set
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel
from metrix.search import LABEL, Fingerprint, Index, Items, Settings
from metrix.search.adapters import FittedAdapter
from metrix.search.description import VectorEngine
from metrix.search.generations import read_sound_description, require_index_folder
from metrix.search.items import join_items

BLOCKS_AT_ONCE = 32  # of embeddings, that are put into the index together


@dataclass(frozen=True)
class Indexed:
    """An index that was built or changed, and what was left out."""

    index: Index
    images: int  # embedded this time
    skipped: tuple[Broken, ...]
    engine: dict[str, Any] | None = None  # what embedded them: see `describe_engine`
    mapped: bool = False  # by another model than made the other items, through the adapter
    relabelled: Relabelled | None = None  # by a table of decisions


def index_images(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    output: Path,
    *,
    kind: str = "exact",
    store: str = "faiss",
    root: Path | None = None,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    settings: Settings | None = None,
    engine: str = TORCH,
    overwrite: bool = True,
) -> Indexed:
    """Embed images and write an index of them; one that is there stays in place until the new one is complete.

    Images are decoded once: those that cannot be read are found while they are embedded. Embeddings are kept in blocks
    until the index is complete, so a build that was interrupted resumes when it is started again.

    Args:
        model: of the run, from `open_run`.
        images: what `list_images` takes.
        output: the folder of the index.
        kind: exact, hnsw, ivf, sq8 or ivf-pq.
        store: `faiss`, or `milvus:PATH`, `milvus:http://HOST:PORT`.
        root: the folder that ids are relative to.
        max_bad: how many images may be unreadable; any number by default.
        follow_links: allow symbolic links that lead outside the root.
        columns: those of images and labels in Parquet files, if they are not to be found.
        settings: of the approximate kinds.
        engine: what runs the network, as in `write_embeddings`; it is stored in the index, and used for what is added
            later and, if its vectors differ from the exact ones, for queries.
        overwrite: replace an index of another model or of other images; False refuses to.

    Raises:
        InvalidInput: there is an index of another model or of other images, and `overwrite` is False.
        DataError: more images are unreadable than `max_bad`, or all of them; an index that is there stays as it is.
    """
    require_index_folder(output)
    wanted = read_engine(engine, model)
    given = list_for_model(
        model, images, root, max_bad=max_bad, follow_links=follow_links, columns=columns, check=False
    )
    if not overwrite:
        require_same(output, fingerprint(model, given.data), given)
    with _embedded(model, given, output, max_bad, wanted) as (listed, batches, chosen):
        index = Index.create(
            output,
            batches,
            kind,
            store=store,
            model=fingerprint(model, listed.data).model_copy(update={"engine": chosen.to_record()}),
            root=None if listed.root is None else str(listed.root),
            data=listed.data,
            follow_links=follow_links,
            skipped=len(listed.skipped),
            threshold=read_threshold(model),
            open_set=read_open_set(model.run.path, model.digest) if model.is_whole else None,
            settings=settings,
            count=len(listed),
        )
    return Indexed(index, len(listed), listed.skipped, chosen.to_dict())


def require_same(output: Path, model: Fingerprint, given: ImageList) -> None:
    """An error if there is an index of another model or of other images."""
    before = read_sound_description(output)
    if before is None:
        return
    made_by = before.model
    if made_by is not None and (made_by.digest, made_by.view) != (model.digest, model.view):
        kept = " and its threshold" if before.threshold is not None else ""
        raise InvalidInput(
            f"{output} holds {before.count:,} {before.examples} of another model ({made_by.run or made_by.digest[:12]})"
            f"{kept}: choose another name, or give --overwrite"
        )
    root = None if given.root is None else str(given.root)
    if (before.root, before.data) != (root, given.data):
        where = before.root or before.data or "vectors"
        raise InvalidInput(f"{output} is an index of {where}: choose another name, or give --overwrite")


def set_columns_from(index: Index, path: Path) -> None:
    """Set columns of items by a table with a column `id`, or `path`, and others; vectors stay as they are."""
    table = read_columns(path)
    key = next((name for name in ("id", "path") if name in table), None)
    if key is None:
        raise DataError(f"{path}: expected a column 'id', got {first_few(list(table), 10)}")
    ids: list[Any] = ["" if one is None else str(one).strip() for one in table[key]]
    if not index.store.ids_are_text:
        ids = infer_types(ids)
    columns = {
        # a label stays text, also where it looks like a number; an empty one is none, as in a manifest
        name: [None if one == "" else one for one in values] if name == LABEL else infer_types(values)
        for name, values in table.items()
        if name != key
    }
    if not columns:
        raise DataError(f"{path}: expected columns to set beside {key!r}, got none")
    index.set_columns(ids, columns)


def add_images(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    output: Path,
    *,
    store: str | None = None,
    replace: bool = False,
    max_bad: int | float | None = None,
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    engine: str = AUTO,
) -> Indexed:
    """Embed images and add them to an index; with `replace`, those that it has are embedded anew.

    The images have to be below the index's root; links out of it are followed if the index was built that way. They go
    through the engine that the index was built with; another one than `auto` must be the same. An index that was
    upgraded takes images by the model that made its items, or by the new one and the adapter; `Indexed.mapped` says so.
    """
    index = Index.open(output, store)
    root = index.description.root
    adapter = _choose_adapter(index, fingerprint(model, index.description.data))
    if root is None and not model.embedder.takes_vectors:
        raise InvalidInput(f"{output}: expected an index of image files to add to, got one of {index.description.data}")
    wanted = _same_engine(index, model, engine)
    below = None if root is None else Path(root)
    follow_links = index.description.follow_links
    given = list_for_model(
        model, images, below, max_bad=max_bad, follow_links=follow_links, columns=columns, check=False
    )
    with _embedded(model, given, output, max_bad, wanted) as (listed, batches, chosen):
        items = join_items(list(batches))
        if adapter is not None:
            items = Items(items.ids, adapter(items.vectors), items.columns)
        change = index.update if replace else index.add
        change(items, skipped=len(listed.skipped), mapped=0 if adapter is None else len(items))
    return Indexed(index, len(listed), listed.skipped, chosen.to_dict(), adapter is not None)


def _choose_adapter(index: Index, model: Fingerprint) -> FittedAdapter | None:
    """What vectors of a model go through to be items of an index; an error if the model is none of the index."""
    made_by, asked = index.description.model_of_items, index.description.model
    if index.adapter is None or made_by is None or asked is None:
        index.require_model(model)
        return None
    if (made_by.digest, made_by.view) == (model.digest, model.view):
        made_by.require(model)  # of its whole length
        return None
    if asked.digest != model.digest:
        raise InvalidInput(
            f"model: expected {made_by.run}, which made the items of {index.folder}, or {asked.run}, which its queries "
            f"go through, got {model.run}"
        )
    asked.require(model)
    return index.adapter


def _same_engine(index: Index, model: TrainedModel, engine: str) -> WantedEngine:
    """The engine that an index was built with; an error if the user wants another one."""
    made_by = index.description.model_of_items
    asked = index.description.model
    by_new = index.adapter is not None and asked is not None and asked.digest == model.digest
    used = VectorEngine() if made_by is None or by_new else made_by.engine
    if engine != AUTO and read_engine(engine, model).name != used.name:
        raise InvalidInput(
            f"--engine: expected {used.file or used.name}, which made the vectors of {index.folder}, got "
            f"{engine}; leave it out, or build the index anew with --engine {engine}"
        )
    return reopen_engine(used, model)


def list_for_model(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    root: Path | None = None,
    *,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    check: bool = True,
    share: tuple[int, int] = (0, 1),
) -> ImageList:
    """The images that a user named (see `list_images`), as the model reads those of its own data."""
    if model.embedder.takes_vectors:
        refuse_root(model, root)
        return list_vectors(images, model)
    return list_images(
        images,
        root,
        max_bad=max_bad,
        follow_links=follow_links,
        columns=columns,
        check=check,
        short_side=short_side(model),
        share=share,
        **_checking(model),
    )


def _checking(model: TrainedModel) -> dict[str, Any]:
    """How images of a model are checked: threads, and what is called with the progress."""
    return {
        "workers": model.config.data.workers or None,
        "progress": lambda done, of: model.report("checking images", done, of),
    }


@contextmanager
def _embedded(
    model: TrainedModel, given: ImageList, output: Path, max_bad: int | float | None, wanted: WantedEngine
) -> Iterator[tuple[ImageList, Iterator[Items], ChosenEngine]]:
    """Embed the images into blocks beside the index; give those that could be read, and their items in batches.

    The blocks go when all went well.
    """
    key = wanted.extend_key(model.embeddings_key(given.dataset, given.part))
    blocks = EmbeddingBlocks(output / f".embedding-{key[:16]}", len(given))
    try:
        blocks.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {describe_failure(error)}; choose another place") from error

    with lock(output / ".embedding.lock"):
        chosen = agree_on_engine(model, blocks.folder, given.dataset, given.part, wanted)
        embed_into(blocks, model, given, max_bad, chosen.engine)
        listed = given.without(blocks.broken())
        listed.require_few(max_bad)
        yield listed, read_batches(blocks, listed), chosen
        for old in output.glob(".embedding-*"):
            shutil.rmtree(old, ignore_errors=True)


def embed_into(
    blocks: EmbeddingBlocks, model: TrainedModel, given: ImageList, max_bad: int | float | None, engine: Engine
) -> None:
    """Embed what is missing; once too many images are broken, only check the others, for an error that names all."""
    most = given.most_broken(max_bad)
    broken = {} if most is None else blocks.broken()  # what was found before an interruption

    def require_few() -> None:
        if most is not None and len(given.skipped) + len(broken) > most:
            given.check(**_checking(model)).require_few(max_bad)
            given.without(broken).require_few(max_bad)  # in case that a check finds fewer

    def leave_out(row: int, reason: str) -> None:
        broken[row] = reason
        require_few()

    require_few()
    model.fill_blocks(blocks, given.dataset, given.part, engine=engine, on_broken=leave_out)


def read_batches(blocks: EmbeddingBlocks, listed: ImageList) -> Iterator[Items]:
    """The embedded images of a list, in batches that fit in memory; blocks have no rows for those that it left out."""
    start = 0
    for first in range(0, blocks.count, BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, blocks.count)
        vectors = np.concatenate([blocks.read(number) for number in range(first, last)])
        rows = slice(start, start + len(vectors))
        if len(vectors):  # else all of them are broken
            columns = {name: values[rows] for name, values in listed.columns.items()}
            yield Items.read(vectors, listed.ids[rows], columns)
        start = rows.stop
    if start != len(listed):
        raise DataError(f"{blocks.folder}: expected {len(listed):,} embeddings, got {start:,}; remove it, and repeat")


def describe_skipped(skipped: Sequence[Broken]) -> str:
    """One line about the images that were left out; empty if there are none."""
    if not skipped:
        return ""
    listed = first_few([f"{one.path} ({one.reason})" for one in skipped])
    return f"{len(skipped):,} skipped: {listed}"
