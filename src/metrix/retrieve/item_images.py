"""The images that the items of an index are of: where they are, what they show, and how many are missing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import ImageError, glyphs, load_image
from metrix.data.paths import leaves_root
from metrix.data.shards import image_status
from metrix.data.survey import map_in_order
from metrix.errors import InvalidInput, MetrixError
from metrix.retrieve.encoder import BATCH, ImageEncoder
from metrix.retrieve.image_lists import split_id
from metrix.search import Index
from metrix.train.batches import Report, ignore_report


def image_file(index: Index, one: str) -> Path:
    """The file of an item; a path that leads outside the root is refused, unless by a link that is to be followed.

    Raises:
        InvalidInput: the index is not of files, or the file is outside its root.
    """
    root = index.description.root
    if root is None:
        raise InvalidInput(f"{one}: expected an index of image files, got one of {index.description.data or 'vectors'}")
    name = split_id(one)[0]
    if "\0" in name:
        raise InvalidInput(f"{one!r}: expected the path of a file")
    path = Path(os.path.realpath(Path(root) / name))  # unlike Path.resolve, does not fail on links that lead in circles
    below = not leaves_root(name) if index.description.follow_links else path.is_relative_to(Path(root).resolve())
    if not below:
        raise InvalidInput(f"{one}: expected a path below {root}")
    return path


def read_item_image(index: Index, one: str) -> NDArray[np.uint8]:
    """The image of an item: (height, width, 3), or (height, width) for an embedded dataset of grey images."""
    if index.description.data is not None:
        catalogue = glyphs.load(index.description.data)
        pixels: Any = catalogue.pixels
        found: NDArray[np.uint8] = pixels[catalogue.paths.index(one)]
        return found
    box = split_id(one)[1]
    return np.array(load_image(image_file(index, one), box, 512 if box is None else None))


def embed_items(
    index: Index,
    encoder: ImageEncoder,
    ids: Sequence[Any],
    change: Callable[[Tensor], Tensor] | None = None,
    report: Report = ignore_report,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors (m, d) of the images of some items, and which of the ids (m,) they are of: those that can be read.

    `change` is applied to the network's input; `report` is called after each batch, if there are several.
    """

    def view(one: str) -> Tensor | None:
        try:
            if index.description.data is not None:
                found = encoder.view(read_item_image(index, one))
            else:
                found = encoder.view(image_file(index, one), split_id(one)[1])
        except (ImageError, OSError):
            return None
        return found if change is None else change(found)

    vectors = [np.empty((0, encoder.dim), np.float32)]
    places: list[int] = []
    for start in range(0, len(ids), BATCH):
        some = [str(one) for one in ids[start : start + BATCH]]
        views = [(start + n, found) for n, found in enumerate(map_in_order(view, some)) if found is not None]
        if views:
            vectors.append(encoder.embed([found for _, found in views]))
            places += [place for place, _ in views]
        if len(ids) > BATCH:
            report("embedding items", min(start + BATCH, len(ids)), len(ids))
    return np.concatenate(vectors), np.array(places, dtype=np.int64)


def has_image(index: Index, one: Any) -> bool:
    """Whether the image of an item is there."""
    root = index.description.root
    return index.description.data is not None or (root is not None and _is_there(Path(root) / split_id(str(one))[0]))


def count_missing(index: Index, most: int) -> tuple[int, int]:
    """How many images were looked for, and how many of them are not there; (0, 0) if the items are not files.

    Args:
        index: the index.
        most: how many images are looked for; of a larger index, every n-th.
    """
    root = index.description.root
    if root is None or index.description.data is not None:
        return 0, 0
    names = [str(one) for one in _every(index, -(-len(index) // most))]
    return len(names), sum(not _is_there(Path(root) / split_id(name)[0]) for name in names)


def _every(index: Index, n: int) -> Iterable[Any]:
    """The id of every n-th item."""
    if index.description.store == "faiss":
        ids: list[Any] = index.store.read_table(np.arange(0, len(index), n))["id"].to_pylist()
        return ids
    everything = (one for _, items in index.store.scan() for one in items.ids.to_pylist())
    return itertools.islice(everything, 0, None, n)


def _is_there(path: Path) -> bool:
    try:
        image_status(path)
    except (OSError, ValueError, MetrixError):
        return False
    return True
