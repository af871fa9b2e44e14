"""An index as a collection for the page."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.explore.collection import Collection
from metrix.explore.limits import Limits
from metrix.explore.opened_index import OpenedIndex
from metrix.search import LABEL

MOST = 100_000  # images on the map; of a larger index, every n-th


def read_collection(opened: OpenedIndex, name: str, limits: Limits) -> Collection:
    """The items of an index, or an even sample if there are very many."""
    every = -(-len(opened.index) // MOST)
    vectors: list[NDArray[np.float32]] = []
    ids: list[Any] = []
    labels: list[Any] = []
    seen = 0
    labelled = LABEL in opened.index.columns
    for lot in opened.index.store.scan():
        rows = np.arange(-seen % every, len(lot), every)
        seen += len(lot)
        part = lot.part(rows)
        vectors.append(np.array(part.vectors))
        ids += part.ids.to_pylist()
        labels += part.columns[LABEL].to_pylist() if labelled else []

    def picture(row: int, size: int) -> bytes:
        return opened.picture(ids[row], size, limits)

    manifest = opened.index.manifest
    settings = {
        "items": len(opened.index),
        "shown": len(ids),
        "kind": manifest.kind,
        "engine": manifest.engine,
        "dimension": manifest.dim,
        "generation": manifest.generation,
    }
    return Collection(
        name=name,
        ids=[str(one) for one in ids],
        labels=np.array(["" if label is None else str(label) for label in labels]) if labelled else None,
        vectors=np.ascontiguousarray(np.concatenate(vectors), dtype=np.float32),
        picture=picture,
        about={"uploads": opened.encoder is not None, "measures": [], "curves": {}, "settings": settings},
        key=f"{manifest.generation}",
    )
