"""An index as a collection for the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.explore.collection import Collection
from metrix.explore.pictures import Picture
from metrix.search import LABEL, Index
from metrix.search.sequences import SEQUENCE

MOST = 100_000  # images on the map; of a larger index, every n-th


def read_collection(
    index: Index, name: str, read_picture: Callable[[Any, int, str], Picture], *, version: str, uploads: bool
) -> Collection:
    """The items of an index, or an even sample if there are very many.

    Args:
        index: what is shown.
        name: on the page.
        read_picture: gives the image of an id as a file, its shorter side at most so many pixels.
        version: of the index and its model.
        uploads: whether the page may search by an image, because the model is known.
    """
    every = -(-len(index) // MOST)
    vectors: list[NDArray[np.float32]] = []
    ids: list[Any] = []
    labels: list[Any] = []
    sequences: list[Any] = []
    seen = 0
    labelled = LABEL in index.columns
    for _, items in index.store.scan():
        rows = np.arange(-seen % every, len(items), every)
        seen += len(items)
        part = items.part(rows)
        vectors.append(np.array(part.vectors))
        ids += part.ids.to_pylist()
        labels += part.columns[LABEL].to_pylist() if labelled else []
        sequences += part.columns[SEQUENCE].to_pylist() if SEQUENCE in index.columns else []

    def picture(row: int, size: int, known: str) -> Picture:
        return read_picture(ids[row], size, known)

    description = index.description
    settings = {
        "items": len(index),
        "shown": len(ids),
        "kind": description.kind,
        "store": description.store,
        "dimension": description.dim,
        "generation": description.generation,
    }
    return Collection(
        name=name,
        ids=[str(one) for one in ids],
        labels=np.array(["" if label is None else str(label) for label in labels]) if labelled else None,
        vectors=np.ascontiguousarray(np.concatenate(vectors), dtype=np.float32),
        picture=picture,
        about={"uploads": uploads, "measures": [], "curves": {}, "settings": settings},
        key=version,
        version=version,
        sequences=np.array(["" if one is None else str(one) for one in sequences]) if sequences else None,
    )
