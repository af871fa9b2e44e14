"""From images to an index, and from a query to its neighbours, with the model of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import Broken
from metrix.data.catalogue import leaves_root
from metrix.data.vector_files import read_embeddings
from metrix.errors import DataError, InvalidInput
from metrix.files import describe_failure, lock
from metrix.messages import first_few
from metrix.runs.embedding_blocks import EmbeddingBlocks
from metrix.runs.encoder import ImageEncoder, fingerprint, short_side
from metrix.runs.image_lists import ImageList, list_images, split_id
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.runs.vector_lists import embed_vector_files, list_vectors
from metrix.search import Found, Index, Items, Settings
from metrix.search.generations import require_index_folder
from metrix.search.items import together
from metrix.train.batches import Report, ignore_report

BLOCKS_AT_ONCE = 32  # of embeddings, that are put into the index together


@dataclass(frozen=True)
class Indexed:
    """An index that was built or changed, and what was left out."""

    index: Index
    images: int  # embedded this time
    skipped: tuple[Broken, ...]


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
    settings: Settings | None = None,
) -> Indexed:
    """Embed images and write an index of them; one that is there stays in place until the new one is complete.

    Images are decoded once: those that cannot be read are found while they are embedded. Embeddings are kept in blocks
    until the index is complete, so a build that was interrupted resumes when it is started again.

    Args:
        model: of the run, from `open_run`.
        images: what `list_images` takes.
        output: the folder of the index.
        kind: exact, hnsw or ivf.
        store: `faiss`, or `milvus:PATH`, `milvus:http://HOST:PORT`.
        root: the folder that ids are relative to.
        max_bad: how many images may be unreadable; any number by default.
        follow_links: allow symbolic links that lead outside the root.
        settings: of the approximate kinds.

    Raises:
        DataError: more images are unreadable than `max_bad`, or all of them; an index that is there stays as it is.
    """
    require_index_folder(output)
    given = list_for_model(model, images, root, max_bad=max_bad, follow_links=follow_links, check=False)
    with _embedded(model, given, output, max_bad) as (listed, lots):
        index = Index.create(
            output,
            lots,
            kind,
            store=store,
            model=fingerprint(model, listed.data),
            root=None if listed.root is None else str(listed.root),
            data=listed.data,
            follow_links=follow_links,
            skipped=len(listed.skipped),
            threshold=read_threshold(model),
            settings=settings,
            count=len(listed),
        )
    return Indexed(index, len(listed), listed.skipped)


def add_images(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    output: Path,
    *,
    replace: bool = False,
    max_bad: int | float | None = None,
) -> Indexed:
    """Embed images and add them to an index; with `replace`, those that it has are embedded anew.

    The images have to be below the index's root; links out of it are followed if the index was built that way.
    """
    index = Index.open(output)
    root = index.manifest.root
    index.require_model(fingerprint(model, index.manifest.data))
    if root is None and not model.embedder.takes_vectors:
        raise InvalidInput(f"{output}: expected an index of image files to add to, got one of {index.manifest.data}")
    below = None if root is None else Path(root)
    follow_links = index.manifest.follow_links
    given = list_for_model(model, images, below, max_bad=max_bad, follow_links=follow_links, check=False)
    with _embedded(model, given, output, max_bad) as (listed, lots):
        items = together(list(lots))
        change = index.update if replace else index.add
        change(items, skipped=len(listed.skipped))
    return Indexed(index, len(listed), listed.skipped)


def list_for_model(
    model: TrainedModel,
    images: Sequence[str | os.PathLike[str]],
    root: Path | None = None,
    *,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    check: bool = True,
) -> ImageList:
    """The images that a user named (see `list_images`), as the model reads those of its own data."""
    if model.embedder.takes_vectors:
        _refuse_root(model, root)
        return list_vectors(images, model)
    return list_images(
        images,
        root,
        max_bad=max_bad,
        follow_links=follow_links,
        check=check,
        short_side=short_side(model),
        **_checking(model),
    )


def _checking(model: TrainedModel) -> dict[str, Any]:
    """How images of a model are checked: threads, and who hears of the progress."""
    return {
        "workers": model.config.data.workers or None,
        "progress": lambda done, of: model.report("checking images", done, of),
    }


def _refuse_root(model: TrainedModel, root: Path | None) -> None:
    if root is not None:
        raise InvalidInput(f"--root: expected images, got vectors, which {model.run.path} was trained on")


@contextmanager
def _embedded(
    model: TrainedModel, given: ImageList, output: Path, max_bad: int | float | None
) -> Iterator[tuple[ImageList, Iterator[Items]]]:
    """Embed the images into blocks beside the index; give those that could be read, and their items in lots.

    The blocks go when all went well.
    """
    key = model.embeddings_key(given.dataset, given.part)
    blocks = EmbeddingBlocks(output / f".embedding-{key[:16]}", len(given))
    try:
        blocks.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {describe_failure(error)}; choose another place") from error

    with lock(output / ".embedding.lock"):
        _fill_blocks(model, blocks, given, max_bad)
        listed = given.without(blocks.broken())
        listed.require_few(max_bad)
        yield listed, _lots(blocks, listed)
        for old in output.glob(".embedding-*"):
            shutil.rmtree(old, ignore_errors=True)


def _fill_blocks(model: TrainedModel, blocks: EmbeddingBlocks, given: ImageList, max_bad: int | float | None) -> None:
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
    model.fill_blocks(blocks, given.dataset, given.part, on_broken=leave_out)


def _lots(blocks: EmbeddingBlocks, listed: ImageList) -> Iterator[Items]:
    """The embedded images of a list, in lots that fit in memory; blocks have no rows for those that it left out."""
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


@dataclass(frozen=True, eq=False)
class Queries:
    """What is searched with: a name and a vector each; `own` is its id in the index, if it is of the index."""

    names: tuple[str, ...]
    vectors: NDArray[np.float32]
    own: tuple[Any, ...]  # an id or None each
    files: tuple[Path | None, ...]
    skipped: tuple[Broken, ...] = ()


def open_model(index: Index, run: Path | None = None, report: Report = ignore_report) -> TrainedModel:
    """The run that an index was built with, or the given one, after checking that it is the same model."""
    made_by = index.manifest.model
    place = run if run is not None else None if made_by is None or made_by.run is None else Path(made_by.run)
    if place is None:
        raise InvalidInput("run: expected the run that made the vectors of this index, got none; give --run RUN")
    if run is None and not place.is_dir():
        raise InvalidInput(f"run: expected {place}, which the index was built with, got nothing there; give --run RUN")
    model = open_run(place, report)
    index.require_model(fingerprint(model, index.manifest.data))
    return model


def embed_queries(
    encoder: ImageEncoder,
    index: Index,
    images: Sequence[str | os.PathLike[str]],
    *,
    root: Path | None = None,
    max_bad: int | float | None = None,
    follow_links: bool = False,
) -> Queries:
    """Embed images to search with: files, folders, lists of paths or manifests. Images of the index know their id.

    Relative paths of a list or a manifest that are not beside it are looked for below `root`. With a model of vectors,
    the queries are files of vectors.
    """
    if encoder.model.embedder.takes_vectors:
        _refuse_root(encoder.model, root)
        names, vectors = embed_vector_files(images, encoder.model)
        return Queries(names, vectors, (None,) * len(names), (None,) * len(names))
    listed = list_images(images, root, max_bad=max_bad, follow_links=follow_links, check=False)
    if listed.root is None:
        raise InvalidInput(f"query: expected images, got the embedded data {listed.data}; give --id ID")
    files = [listed.root / split_id(name)[0] for name in listed.ids]
    vectors, rows, broken = encoder.embed_files(files)
    listed = listed.without({one.position: one.reason for one in broken})
    listed.require_few(max_bad)
    files = [files[row] for row in rows]
    own = _ids_in(index, files)
    return Queries(tuple(map(str, files)), vectors, own, tuple(files), listed.skipped)


def queries_by_id(index: Index, ids: Sequence[str]) -> Queries:
    """Items of the index to search with; each is left out of its own answer."""
    items = index.get(list(ids))
    root = index.manifest.root
    files = tuple(None if root is None else Path(root) / split_id(one)[0] for one in ids)
    return Queries(tuple(ids), items.vectors, tuple(ids), files)


def queries_from_file(path: Path) -> Queries:
    """Vectors of a file (.npy, .parquet, .csv) to search with: one (d,), or several (n, d)."""
    if path.suffix.lower() == ".npy" and path.is_file():
        from metrix.data.vector_files import read_array

        array = read_array(path)
        vectors = array[None] if array.ndim == 1 else array
    else:
        vectors = read_embeddings(path)
    names = tuple(f"{path.name}[{n}]" for n in range(len(vectors)))
    return Queries(names, vectors, (None,) * len(names), (None,) * len(names))


def search_queries(
    index: Index, queries: Queries, k: int, *, least: float | None = None, **options: Any
) -> list[list[dict[str, Any]]]:
    """For each query, the neighbours as plain dictionaries: id, similarity and columns, nearest first.

    `least` leaves out neighbours that are less similar; `options` are those of `Index.search`.
    """
    exclude = list(queries.own) if any(own is not None for own in queries.own) else None
    found: Found = index.search(queries.vectors, k, exclude=exclude, **options)
    known = sorted({one for row in found.ids.tolist() for one in row if one not in ("", -1)})
    columns = {record.pop("id"): record for record in index.get(known).records()} if known else {}
    answers = []
    for ids, similarities in zip(found.ids.tolist(), found.similarities.tolist(), strict=True):
        answers.append(
            [
                {"id": one, "similarity": value, **columns[one]}
                for one, value in zip(ids, similarities, strict=True)
                if one in columns and (least is None or value >= least)
            ]
        )
    return answers


def same_threshold(index: Index, model: TrainedModel | None = None) -> float:
    """The similarity above which two images are the same thing: the index's, or the run's."""
    stored = index.manifest.threshold or (None if model is None else read_threshold(model))
    if stored is None:
        run = "RUN" if index.manifest.model is None else index.manifest.model.run
        raise InvalidInput(
            f"--same: expected a stored threshold, got none; measure one: metrix threshold {run} --precision 0.99"
        )
    return stored.similarity


def image_file(index: Index, one: str) -> Path:
    """The file of an item; a path that leads outside the root is refused, unless by a link that is to be followed.

    Raises:
        InvalidInput: the index is not of files, or the file is outside its root.
    """
    root = index.manifest.root
    if root is None:
        raise InvalidInput(f"{one}: expected an index of image files, got one of {index.manifest.data or 'vectors'}")
    name = split_id(one)[0]
    path = (Path(root) / name).resolve()
    below = not leaves_root(name) if index.manifest.follow_links else path.is_relative_to(Path(root).resolve())
    if not below:
        raise InvalidInput(f"{one}: expected a path below {root}")
    return path


def read_item_image(index: Index, one: str) -> NDArray[np.uint8]:
    """The image of an item: (height, width, 3), or (height, width) for an embedded dataset of grey images."""
    from metrix.data import load_image
    from metrix.data.glyphs import load

    if index.manifest.data is not None:
        catalogue = load(index.manifest.data)
        pixels: Any = catalogue.pixels
        found: NDArray[np.uint8] = pixels[catalogue.paths.index(one)]
        return found
    box = split_id(one)[1]
    return np.array(load_image(image_file(index, one), box, 512 if box is None else None))


def _ids_in(index: Index, files: Sequence[Path]) -> tuple[Any, ...]:
    """The id of each file that is in the index, None for others."""
    root = index.manifest.root
    if root is None:
        return (None,) * len(files)
    names = [os.path.relpath(file, root).replace(os.sep, "/") for file in files]
    return tuple(name if known else None for name, known in zip(names, index.store.has(names), strict=True))


def describe_skipped(skipped: Sequence[Broken]) -> str:
    """One line about the images that were left out; empty if there are none."""
    if not skipped:
        return ""
    listed = first_few([f"{one.path} ({one.reason})" for one in skipped])
    return f"{len(skipped):,} skipped: {listed}"
