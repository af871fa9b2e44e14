"""What the page shows of a collection, and what is computed when it asks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from metrix.explore.collection import Collection, Later, Mistakes
from metrix.explore.maps import project_linearly, project_to_map

STATIC = Path(__file__).parent / "static"
Submit = Callable[[Callable[[], Any]], "Future[Any]"]


class PageData:
    """A collection with what is computed about it when the page asks.

    Args:
        collection: what is shown.
        compute: takes work of seconds.
        place: takes work of minutes, the map.
    """

    def __init__(self, collection: Collection, compute: Submit, place: Submit) -> None:
        self.collection = collection
        self.mistakes = Later(lambda: Mistakes(collection), compute)
        self.maps = {
            "pca": Later(lambda: project_linearly(collection.vectors), compute),
            "tsne": Later(lambda: project_to_map(collection.vectors), place),
        }

    def drop(self) -> None:
        """Compute nothing more about it: another collection is shown."""
        for later in (self.mistakes, *self.maps.values()):
            later.drop()

    def describe(self, number: int) -> dict[str, Any]:
        """What the page shows at once."""
        one = self.collection
        sizes = np.bincount(one.codes, minlength=len(one.classes)).tolist() if one.labels is not None else []
        return {
            "number": number,
            "name": one.name,
            "count": len(one),
            "queries": one.queries,
            "dim": int(one.vectors.shape[1]),
            "classes": one.classes,
            "sizes": sizes,
            "gallery": {"items": len(one) - one.queries, "classes": one.gallery_classes},
            "uploads": one.embed is not None,
            "key": one.key,
            "version": one.version,
            **one.about,
        }

    def neighbours(self, vector: Any, k: int, row: int | None) -> dict[str, Any]:
        """The neighbours of a vector; `row` is that of the image that it is of."""
        one = self.collection
        found = one.find(np.atleast_2d(vector), min(k, len(one)), None if row is None else [row])
        code = None if row is None or one.labels is None else int(one.codes[row])
        return {
            "query": None if row is None else self.item(row),
            "neighbours": [
                {
                    **self.item(int(at)),
                    "similarity": float(cosine),
                    "right": None if code is None else int(one.codes[at]) == code,
                }
                for at, cosine in zip(found.rows[0], found.similarities[0], strict=True)
            ],
        }

    def item(self, row: int) -> dict[str, Any]:
        """Row, id and class of an image."""
        one = self.collection
        return {"row": row, "id": one.ids[row], "class": int(one.codes[row]) if one.labels is not None else None}
