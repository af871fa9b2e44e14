"""Vectors of mirrored images, by which mirrored copies in an index are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.item_images import embed_items
from metrix.search import Index


class MirroredItems:
    """The images of an index, read again and embedded mirrored; `unread` counts those that cannot be read.

    Args:
        index: of images.
        encoder: the model of the index, from `open_encoder`.

    Raises:
        InvalidInput: the index is not of images.
    """

    def __init__(self, index: Index, encoder: ImageEncoder) -> None:
        if index.description.root is None and index.description.data is None:
            raise InvalidInput("--flips: expected an index of images, got one of vectors, which cannot be mirrored")
        self.index, self.encoder, self.unread = index, encoder, 0

    def __call__(self, ids: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Vectors (m, d) of the mirrored images of some items, and which of the ids (m,) they are of."""
        vectors, places = embed_items(self.index, self.encoder, ids, lambda view: view.flip(-1))
        self.unread += len(ids) - len(places)
        return vectors, places
