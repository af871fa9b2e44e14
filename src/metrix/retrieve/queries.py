"""From a query to its neighbours in an index, with the model that the index was built with."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import Broken
from metrix.data.vector_files import read_embeddings
from metrix.errors import InvalidInput, MetrixWarning
from metrix.messages import first_few
from metrix.retrieve.encoder import ImageEncoder, fingerprint
from metrix.retrieve.engine_choice import open_query_engine
from metrix.retrieve.image_lists import join_id, list_images, split_id
from metrix.retrieve.vector_lists import embed_vector_files, refuse_root
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.search import Index
from metrix.search.description import Description, VectorEngine
from metrix.search.sequences import SEQUENCE, group_by_sequence
from metrix.train.batches import Report, ignore_report
from metrix.train.run_folder import open_run_folder


@dataclass(frozen=True, eq=False)
class Queries:
    """What is searched with: a name and a vector each; `own` is its row in the index, -1 if it is not of it.

    The vectors are comparable with those of the items: see `Index.adapt`.
    """

    names: tuple[str, ...]
    vectors: NDArray[np.float32]
    own: tuple[int, ...]  # a row or -1 each
    files: tuple[Path | None, ...]
    skipped: tuple[Broken, ...] = ()
    sequences: tuple[Any, ...] = ()  # of each, None for none, as a manifest of queries says; () if none does
    are_items: bool = False  # whether the vectors are those that the index has


def open_model(index: Index, run: Path | None = None, report: Report = ignore_report) -> TrainedModel:
    """The run that an index was built with, or the given one, after checking that it is the same model.

    A given run may also be another one that was trained to be compatible with it, which a warning says.
    """
    made_by = index.description.model
    place = run if run is not None else None if made_by is None or made_by.run is None else Path(made_by.run)
    if place is None:
        raise InvalidInput("run: expected the run that made the vectors of this index, got none; give --run RUN")
    if run is None and not place.is_dir():
        raise InvalidInput(f"run: expected {place}, which the index was built with, got nothing there; give --run RUN")
    model = open_run(place, report, dim=find_prefix(index.description, place), force_dim=True)
    of_queries = fingerprint(model, index.description.data)
    index.require_query_model(of_queries)
    if made_by is not None and made_by.digest != of_queries.digest:
        warnings.warn(
            f"queries go through {place}, which is compatible with the model of this index, but not the same: measure "
            f"what they find with metrix evaluate {place} --against {made_by.run}; thresholds and probabilities of "
            "the index are those of its own model",
            MetrixWarning,
            stacklevel=2,
        )
    return model


def find_prefix(description: Description, run: Path) -> int | None:
    """How many numbers of a run's embeddings an index has, if it has not all of them; None for the whole."""
    made_by, before = description.model, None if description.adapter is None else description.adapter.before.model
    if before is not None and open_run(run).digest == before.digest:  # items of the old model, not queries of the new
        made_by = before
    dim = description.dim if made_by is None else made_by.dim
    return dim if dim < open_run_folder(run).config.model.dim else None


def open_encoder(index: Index, run: Path | None = None, report: Report = ignore_report) -> ImageEncoder:
    """What queries to an index go through: its model (see `open_model`), by the engine that made its vectors.

    That engine is used where its vectors differ from the exact ones by more than rounding. Where the index was
    upgraded, the model is the new one, and vectors go through the adapter.
    """
    model = open_model(index, run, report)
    own = index.description.model
    # the engine of an index was measured with its own model
    used = VectorEngine() if own is None or own.digest != model.digest else own.engine
    return ImageEncoder(model, index.description.data, open_query_engine(used, model), index.adapter)


def embed_queries(
    encoder: ImageEncoder,
    index: Index,
    images: Sequence[str | os.PathLike[str]],
    *,
    root: Path | None = None,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    report: Report = ignore_report,
) -> Queries:
    """Embed images to search with: files, folders, lists of paths or manifests. Images of the index know their id.

    Relative paths of a list or a manifest that are not beside it are looked for below `root`. With a model of vectors,
    the queries are files of vectors.
    """
    if encoder.model.embedder.takes_vectors:
        refuse_root(encoder.model, root)
        names, vectors = embed_vector_files(images, encoder)
        return Queries(names, vectors, (-1,) * len(names), (None,) * len(names))
    listed = list_images(images, root, max_bad=max_bad, follow_links=follow_links, check=False)
    if listed.root is None:
        raise InvalidInput(f"query: expected images, got the embedded data {listed.data}; give --id ID")
    files, boxes = zip(*((listed.root / path, box) for path, box in map(split_id, listed.ids)), strict=True)
    vectors, rows, broken = encoder.embed_files(files, boxes, report)
    listed = listed.without({one.position: one.reason for one in broken})
    listed.require_few(max_bad)
    names = tuple(join_id(str(files[row]), boxes[row]) for row in rows)
    named = listed.columns.get(SEQUENCE)  # of the images that could be read, as the vectors are
    sequences = () if named is None else tuple(named.to_pylist())
    files = tuple(files[row] for row in rows)
    return Queries(names, vectors, _rows_in(index, names), files, listed.skipped, sequences)


def queries_by_id(index: Index, ids: Sequence[str]) -> Queries:
    """Items of the index to search with; each is left out of its own answer."""
    rows = index.require_known(ids)
    root = index.description.root
    files = tuple(None if root is None else Path(root) / split_id(one)[0] for one in ids)
    return Queries(tuple(ids), index.store.read_vectors(rows), tuple(rows.tolist()), files, are_items=True)


def queries_from_file(path: Path, index: Index) -> Queries:
    """Vectors of a file (.npy, .parquet, .csv), of the model of the index, to search with: (d,), or several (n, d)."""
    if path.suffix.lower() == ".npy" and path.is_file():
        from metrix.data.vector_files import read_array

        array = read_array(path)
        vectors = array[None] if array.ndim == 1 else array
    else:
        vectors = read_embeddings(path)
    names = tuple(f"{path.name}[{n}]" for n in range(len(vectors)))
    return Queries(names, index.adapt(vectors), (-1,) * len(names), (None,) * len(names))


def search_queries(
    index: Index,
    queries: Queries,
    k: int,
    *,
    minimum: float | None = None,
    not_same_sequence: bool = False,
    where: Sequence[str] = (),
    **options: Any,
) -> list[list[dict[str, Any]]]:
    """For each query, the neighbours as plain dictionaries: id, similarity and columns, nearest first.

    `minimum` leaves out neighbours that are less similar, `not_same_sequence` those of the query's own sequence;
    `where` and `options` are those of `Index.search`.
    """
    own = list(queries.own) if any(row >= 0 for row in queries.own) else None
    if not not_same_sequence:
        return index.search(queries.vectors, k, own=own, where=where, adapted=True, **options).records(minimum)
    answers: list[list[dict[str, Any]]] = [[]] * len(queries.names)
    for numbers, other in group_by_sequence(_sequences_of(index, queries)):
        mine = None if own is None else [own[n] for n in numbers]
        hits = index.search(queries.vectors[numbers], k, own=mine, where=[*where, *other], adapted=True, **options)
        for n, records in zip(numbers, hits.records(minimum), strict=True):
            answers[n] = records
    return answers


def _sequences_of(index: Index, queries: Queries) -> list[Any]:
    """The sequence of each query, by the index for its items and by the manifest of queries for others."""
    if SEQUENCE not in index.columns:
        listed = ", ".join(index.columns) or "none"
        raise InvalidInput(
            f"--not-same-sequence: expected an index with a column {SEQUENCE!r}, got one with the columns {listed}; "
            "index a manifest that has it, or set it with metrix index --set FILE"
        )
    found = list(queries.sequences) or [None] * len(queries.names)
    known = [n for n, row in enumerate(queries.own) if row >= 0]
    columns = index.take(np.array([queries.own[n] for n in known], dtype=np.int64)).columns if known else None
    for n, sequence in zip(known, [] if columns is None else columns[SEQUENCE].to_pylist(), strict=True):
        found[n] = sequence
    if all(sequence in (None, "") for sequence in found):
        raise InvalidInput(
            f"--not-same-sequence: expected queries with a sequence, got {first_few(queries.names)} without one; "
            "search with items of the index, or with a manifest that has the column"
        )
    return found


def same_threshold(index: Index, model: TrainedModel | None = None) -> float:
    """The similarity above which two images are the same thing: the index's, or the run's."""
    stored, record = index.description.threshold, index.description.adapter
    if stored is None and record is not None:
        raise InvalidInput(
            "--same: expected a stored threshold, got none that holds for queries of the new model; give --threshold, "
            "or undo the upgrade, store one, and repeat metrix upgrade on items with labels"
        )
    if stored is None and model is not None:
        stored = read_threshold(model)
    if stored is None:
        run = "RUN" if index.description.model is None else index.description.model.run
        raise InvalidInput(
            f"--same: expected a stored threshold, got none; measure one: metrix threshold {run} --precision 0.99"
        )
    return stored.similarity


def _rows_in(index: Index, files: Sequence[str]) -> tuple[int, ...]:
    """The row of each file, or part of a file, that is in the index, -1 for others."""
    root = index.description.root
    if root is None:
        return (-1,) * len(files)
    return tuple(index.find([os.path.relpath(file, root).replace(os.sep, "/") for file in files]).tolist())
