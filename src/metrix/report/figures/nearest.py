"""Galleries: queries and the nearest neighbours that each model finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.report.page import Gallery, Hit, Picture, Query
from metrix.search import Neighbours, nearest_others
from metrix.search.items import unit_vectors


@dataclass(frozen=True, eq=False)
class NeighbourSearch:
    """Embeddings of queries and of the gallery they search; without one, they search the other queries."""

    queries: NDArray[Any]  # (n, d)
    gallery: NDArray[Any] | None = None  # (m, d)

    def nearest(self, rows: Sequence[int], k: int) -> Neighbours:
        """The k nearest neighbours (rows, k) of some queries, without the queries themselves, and their cosines."""
        queries = unit_vectors(self.queries, "queries")
        gallery = queries if self.gallery is None else unit_vectors(self.gallery, "gallery")
        return nearest_others(queries[list(rows)], gallery, k, None if self.gallery is not None else rows)


def build_gallery(
    searchers: Mapping[str, NeighbourSearch],
    rows: Sequence[int],
    labels: NDArray[Any],
    picture: Callable[[int], NDArray[np.uint8]],
    gallery_labels: NDArray[Any] | None = None,
    gallery_picture: Callable[[int], NDArray[np.uint8]] | None = None,
    *,
    k: int = 5,
    caption: str = "",
    name: str = "gallery",
) -> Gallery:
    """Build a gallery of the nearest neighbours that each searcher finds for some queries.

    Args:
        searchers: by the name that the gallery shows.
        rows: row numbers of the queries.
        labels: the classes of all queries.
        picture: gives the pixels of a query by its row number.
        gallery_labels: the classes of the gallery, if it is separate.
        gallery_picture: gives the pixels of a gallery example, if the gallery is separate.
        k: neighbours of each query.
        caption: below the gallery.
        name: of the gallery's files.
    """
    found = {who: searcher.nearest(rows, k) for who, searcher in searchers.items()}
    searched_labels = labels if gallery_labels is None else gallery_labels
    searched_picture = picture if gallery_picture is None else gallery_picture
    known: dict[int, Picture] = {}

    def seen(at: int) -> Picture:
        if at not in known:
            known[at] = Picture(searched_picture(at), str(searched_labels[at]))
        return known[at]

    queries = []
    for n, row in enumerate(rows):
        hits = {
            who: [
                Hit(seen(int(at)), bool(searched_labels[at] == labels[row]), float(cosine))
                for at, cosine in zip(ids[n], cosines[n], strict=True)
            ]
            for who, (ids, cosines) in found.items()
        }
        queries.append(Query(Picture(picture(int(row)), str(labels[row])), hits))
    return Gallery(queries, caption, name)
