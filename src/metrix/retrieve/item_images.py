"""The images that the items of an index are of: where they are, what they show, and how many are missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import glyphs, load_image
from metrix.data.paths import leaves_root
from metrix.data.shards import image_status
from metrix.errors import InvalidInput, MetrixError
from metrix.retrieve.image_lists import split_id
from metrix.search import Index


def image_file(index: Index, one: str) -> Path:
    """The file of an item; a path that leads outside the root is refused, unless by a link that is to be followed.

    Raises:
        InvalidInput: the index is not of files, or the file is outside its root.
    """
    root = index.description.root
    if root is None:
        raise InvalidInput(f"{one}: expected an index of image files, got one of {index.description.data or 'vectors'}")
    name = split_id(one)[0]
    path = (Path(root) / name).resolve()
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
