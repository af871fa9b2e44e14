"""Galleries: queries and what each searcher finds nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.report.page import Gallery, Hit, Picture, Query
from metrix.search import Index


@dataclass(frozen=True, eq=False)
class NeighbourSearch:
    """Embeddings of queries, and of what is searched; without a gallery, the other queries are searched."""

    queries: NDArray[Any]  # (n, d)
    gallery: NDArray[Any] | None = None  # (m, d)

    def nearest(self, rows: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k nearest (rows, k) of some queries, never a query itself, and their cosines."""
        searched = self.queries if self.gallery is None else self.gallery
        found = Index.build(searched).search(self.queries[list(rows)], k=k + (self.gallery is None))
        if self.gallery is not None:
            return found.ids, found.similarities
        keep = found.ids != np.asarray(rows)[:, None]
        keep[keep.all(1), -1] = False  # a query behind more than k others that are the same as it
        shape = (len(keep), -1)
        return found.ids[keep].reshape(shape), found.similarities[keep].reshape(shape)


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
    """What each searcher finds for the queries at `rows`; `picture(row)` gives the pixels of one."""
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
