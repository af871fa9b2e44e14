"""What the page shows: a set of embedded images with classes, its neighbours, mistakes and confusions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError
from metrix.evaluate.confusion import Confusion
from metrix.evaluate.retrieval import find_first_classes
from metrix.explore.pictures import PictureReader
from metrix.search import nearest_others

DEPTH = 10  # neighbours of each image that mistakes and confusions are counted from
ROWS_AT_ONCE = 4096


@dataclass(eq=False)
class Collection:
    """Embedded images. With a separate gallery, the first `queries` rows search the rows after them.

    Args:
        name: on the page.
        ids: of the images.
        labels: the class of each image; None if there are no classes.
        vectors: unit vectors (n, d).
        picture: gives the image of a row as a file, its shorter side at most so many pixels, unless the tag is known.
        queries: rows that are queries only; 0 if all images search all others.
        embed: gives the vector of an uploaded image; None if the model is not known.
        about: measures, curves and settings, for the page.
        key: of the images; collections with the same key can be compared row by row.
        version: of images and vectors; no other collection has it.
        sequences: the track or shoot of each image, "" for none; one's own does not count in mistakes.
    """

    name: str
    ids: Sequence[str]
    labels: NDArray[Any] | None
    vectors: NDArray[np.float32]
    picture: PictureReader
    queries: int = 0
    embed: Callable[[bytes], NDArray[np.float32]] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    version: str = "0"
    sequences: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes, in alphabetical order."""
        return [] if self.labels is None else [str(name) for name in np.unique(self.labels)]

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The number of each row's class in `classes`; -1 without classes."""
        if self.labels is None:
            return np.full(len(self), -1, dtype=np.int64)
        return np.unique(self.labels, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def gallery_classes(self) -> int:
        """The number of classes among the images that are searched."""
        return 0 if self.labels is None else len(np.unique(self.codes[self.queries :]))

    def find(self, vectors: NDArray[np.float32], k: int, own: Sequence[int] | None = None) -> Nearest:
        """The k nearest images of the gallery for each vector, without the row that it is of."""
        first = self.queries
        gallery = self.vectors[first:]
        found = nearest_others(vectors, gallery, k, None if own is None else np.asarray(own) - first)
        return Nearest(found.rows + first, found.similarities)

    def has_row(self, row: int) -> bool:
        """Whether there is such a row."""
        return 0 <= row < len(self)


@dataclass(frozen=True)
class Nearest:
    """Neighbours of some vectors, nearest first."""

    rows: NDArray[np.int64]  # (queries, k)
    similarities: NDArray[np.float32]  # (queries, k)


class Mistakes:
    """Which images find another class first, as `metrix evaluate` counts them.

    `right` has 1 for a right nearest neighbour, 0 for a wrong one and -1 for an image that is no query, by row.
    """

    def __init__(self, collection: Collection) -> None:
        self.right = np.full(len(collection), -1, dtype=np.int8)
        self.worst: NDArray[np.int64] = np.empty(0, np.int64)
        self.pairs: list[dict[str, Any]] = []
        if collection.labels is None:
            return
        first, codes = collection.queries, collection.codes
        asked = slice(0, first or None)
        tracks, others = collection.sequences, slice(first, None)
        searched = {
            "gallery": collection.vectors[others] if first else None,
            "gallery_labels": codes[others] if first else None,
            "sequences": None if tracks is None else tracks[asked],
            "gallery_sequences": None if tracks is None or not first else tracks[others],
        }
        try:
            found = find_first_classes(collection.vectors[asked], codes[asked], **searched)
        except LabelError:  # no query has another image of its class to find
            return
        self.right[found.rows] = found.right
        self.pairs = _describe_pairs(found.confusion)
        wrong = found.rows[~found.right]
        depth = min(DEPTH, len(collection) - first - (0 if first else 1))
        agree, nearest_cosine = np.empty(len(wrong), np.int64), np.empty(len(wrong), np.float32)
        for start in range(0, len(wrong), ROWS_AT_ONCE):
            rows = wrong[start : start + ROWS_AT_ONCE]
            near = collection.find(collection.vectors[rows], depth, rows.tolist())
            agree[start : start + len(rows)] = (codes[near.rows] == codes[rows][:, None]).sum(1)
            nearest_cosine[start : start + len(rows)] = near.similarities[:, 0]
        self.worst = wrong[np.lexsort((-nearest_cosine, agree))]  # fewest right ones, then surest first


def _describe_pairs(confusion: Confusion) -> list[dict[str, Any]]:
    """How often images of a class find another class first, most often first."""
    order = np.lexsort((confusion.found, confusion.own, -confusion.counts))
    own, found = confusion.names[confusion.own[order]].tolist(), confusion.names[confusion.found[order]].tolist()
    counts, asked = confusion.counts[order].tolist(), confusion.queries[confusion.own[order]].tolist()
    return [
        {"of": a, "as": b, "count": count, "share": count / of}
        for a, b, count, of in zip(own, found, counts, asked, strict=True)
    ]


class Later:
    """Something that is computed once, when it is first asked for, by whoever `submit` gives the work to."""

    def __init__(self, compute: Callable[[], Any], submit: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self._compute, self._submit, self._lock = compute, submit, threading.Lock()
        self._future: Future[Any] | None = None

    def start(self) -> Future[Any]:
        """The future of the value, which is shared by all who ask."""
        with self._lock:
            if self._future is None:
                self._future = self._submit(self._compute)
            shared: Future[Any] = Future()  # who gives up waiting does not give up for the others
            self._future.add_done_callback(lambda done: _pass_on(done, shared))
            return shared

    def drop(self) -> None:
        """Do not compute it, unless that has begun."""
        with self._lock:
            if self._future is not None:
                self._future.cancel()


def _pass_on(done: Future[Any], to: Future[Any]) -> None:
    if not to.set_running_or_notify_cancel():
        return
    if done.cancelled():
        to.set_exception(InvalidInput("what is shown was replaced; load the page again"))
    elif (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())
