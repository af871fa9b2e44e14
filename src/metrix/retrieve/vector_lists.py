"""Vectors to index or to search with, for runs that were trained on vectors: files of them, with or without labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metrix.data import Catalogue, Dataset, Part
from metrix.data.catalogue import UNSPLIT
from metrix.data.layouts.vectors import NAME, name_vectors, read_vectors
from metrix.errors import DataError, InvalidInput
from metrix.retrieve.encoder import BATCH, ImageEncoder
from metrix.retrieve.image_lists import ImageList, name_all
from metrix.runs.trained_model import TrainedModel
from metrix.search import LABEL
from metrix.search.items import RESERVED, read_column

NOT_KEPT = ("path", "part", *RESERVED)  # columns that are ids, or are about the training


def list_vectors(given: Sequence[str | os.PathLike[str]], model: TrainedModel) -> ImageList:
    """The vectors of files, with their ids and columns; they need no labels.

    Args:
        given: files of vectors (.parquet, .npz, .npy).
        model: of the run, whose network says how long the vectors are.
    """
    files = [Path(one).expanduser() for one in name_all(given)]
    read = [(file, *read_vectors(file)) for file in files]
    for file, vectors, _ in read:
        _check_length(file, vectors, model)
    ids = tuple(name for _, vectors, columns in read for name in name_vectors(columns, len(vectors)))
    if len(set(ids)) < len(ids):
        raise DataError("vectors: expected an id once over all files, got one several times; add a column 'id'")
    columns = _columns(read)
    named = [name or "" for name in columns[LABEL].to_pylist()] if LABEL in columns else [""] * len(ids)
    classes = tuple(dict.fromkeys(named))  # "": unlabelled
    number = {name: label for label, name in enumerate(classes)}
    everything = np.concatenate([vectors for _, vectors, _ in read])
    catalogue = Catalogue(
        layout=NAME,
        root=None,
        paths=ids,
        labels=np.array([number[name] for name in named], dtype=np.int64),
        class_names=classes,
        parts=np.full(len(ids), UNSPLIT, dtype=np.str_),
        vectors=everything,
    )
    dataset = Dataset(catalogue)
    part = Part(dataset, np.arange(len(ids)), np.arange(len(classes)))
    return ImageList(dataset, part, ids, columns, (), None, None)


def refuse_root(model: TrainedModel, root: Path | None) -> None:
    """An error if a folder of images is given, where the run was trained on vectors."""
    if root is not None:
        raise InvalidInput(f"--root: expected images, got vectors, which {model.run.path} was trained on")


def embed_vector_files(
    given: Sequence[str | os.PathLike[str]], encoder: ImageEncoder
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """A name and an embedding for each vector of files."""
    names: list[str] = []
    embedded = []
    for file in (Path(one).expanduser() for one in name_all(given)):
        vectors, columns = read_vectors(file)
        _check_length(file, vectors, encoder.model)
        names += [f"{file.name}[{name}]" for name in name_vectors(columns, len(vectors))]
        batches = torch.split(torch.from_numpy(vectors), BATCH)
        embedded += [encoder.embed(list(batch)) for batch in batches]
    return tuple(names), np.concatenate(embedded)


def _check_length(file: Path, vectors: NDArray[np.float32], model: TrainedModel) -> None:
    expected = model.embedder.config.inputs
    if vectors.shape[1] != expected:
        raise InvalidInput(
            f"{file}: expected vectors of {expected} numbers, as {model.run.path} was trained on, got "
            f"{vectors.shape[1]}"
        )


def _columns(read: Sequence[tuple[Path, NDArray[np.float32], dict[str, Sequence[Any]]]]) -> dict[str, Any]:
    """The columns that all files have, as Arrow arrays; `label` first, as text."""
    common = [name for name in read[0][2] if name not in NOT_KEPT and all(name in columns for _, _, columns in read)]
    found = {}
    for name in sorted(common, key=lambda name: name != LABEL):
        values = [value for _, _, columns in read for value in columns[name]]
        if name == LABEL:
            values = [None if value is None else str(value) for value in values]
        found[name] = read_column(name, values)
    return found
