"""Vectors of mirrored images, by which mirrored copies in an index are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import ImageError
from metrix.data.survey import map_in_order
from metrix.errors import InvalidInput
from metrix.retrieve.encoder import BATCH, ImageEncoder
from metrix.retrieve.image_lists import split_id
from metrix.retrieve.item_images import image_file, read_item_image
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
        vectors = [np.empty((0, self.encoder.fingerprint.dim), np.float32)]
        places: list[int] = []
        for start in range(0, len(ids), BATCH):
            some = [str(one) for one in ids[start : start + BATCH]]
            views = [(start + n, view) for n, view in enumerate(map_in_order(self._view, some)) if view is not None]
            if views:
                vectors.append(self.encoder.embed([view for _, view in views]))
                places += [place for place, _ in views]
        self.unread += len(ids) - len(places)
        return np.concatenate(vectors), np.array(places, dtype=np.int64)

    def _view(self, one: str) -> Tensor | None:
        try:
            if self.index.description.data is not None:
                view = self.encoder.view(read_item_image(self.index, one))
            else:
                view = self.encoder.view(image_file(self.index, one), split_id(one)[1])
        except (ImageError, OSError):
            return None
        return view.flip(-1)
