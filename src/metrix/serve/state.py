"""One state of an index with the model that its queries go through, and how batches of queries are answered."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import glyphs, load_image
from metrix.errors import EmbeddingError, ShapeError
from metrix.explore.collection import Collection
from metrix.explore.index_collection import read_collection
from metrix.explore.pictures import check_pixels, encode
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import split_id
from metrix.retrieve.indexing import image_file
from metrix.retrieve.queries import Queries, open_encoder, search_queries
from metrix.search import Index
from metrix.search.description import FILE
from metrix.search.refining import DEPTH
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics

Neighbour = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How a query is to be answered; queries with the same options are searched together."""

    k: int = 10
    where: tuple[str, ...] = ()
    expand: int = 0
    rerank: bool = False
    least: float | None = None


class ServedIndex:
    """An index as it was when it was opened: a later state is another object, so queries end on the one they began.

    Args:
        folder: the index.
        run: the run that it was built with, if it has moved.
        before: an earlier state, whose network is used again if the model is the same.
    """

    def __init__(self, folder: Path, run: Path | None = None, before: ServedIndex | None = None) -> None:
        self.stamp = read_stamp(folder)
        self.index = Index.open(folder)
        made_by = self.index.description.model
        self.encoder: ImageEncoder | None = None
        if made_by is not None:
            same = before is not None and before.index.description.model == made_by
            same = same and before is not None and before.index.description.data == self.index.description.data
            if same and before is not None:
                self.encoder = before.encoder
            else:
                self.encoder = open_encoder(self.index, run)
        first = next(iter(self.index.store.scan(1))).ids
        self._text = pa.types.is_string(first.type) or pa.types.is_large_string(first.type)
        self._lock = threading.Lock()  # a client of Milvus is not for several threads at once

    def find_id(self, text: str) -> Any | None:
        """The id that the index has for the text of a request; None if there is no such item."""
        one: Any = text
        if not self._text:
            if not re.fullmatch(r"-?[0-9]{1,18}", text):
                return None
            one = int(text)
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return one if self.index.store.has([one])[0] else None

    def record(self, one: Any) -> dict[str, Any]:
        """Id and columns of an item."""
        return plain(self.index.get([one]).records()[0])

    def vector_of(self, one: Any) -> NDArray[np.float32]:
        """The vector of an item."""
        found: NDArray[np.float32] = self.index.get([one]).vectors[0]
        return found

    def read_vector(self, values: Sequence[float]) -> NDArray[np.float32]:
        """The vector of a request at unit norm.

        Raises:
            InvalidInput: it has another dimension, is zero, or not finite.
        """
        vector = np.asarray(values, dtype=np.float64)
        if vector.shape != (self.index.dim,):
            raise ShapeError(f"vector: expected {self.index.dim} numbers, as the index has, got {len(values)}")
        largest = float(np.abs(vector).max())
        if not np.isfinite(largest) or largest == 0:
            raise EmbeddingError("vector: expected finite numbers that are not all zero")
        vector = vector / largest  # so that the squares of very large numbers stay finite
        return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)

    def view(self, content: bytes, limits: Limits) -> Tensor:
        """An uploaded image as the network's input.

        Raises:
            TooManyPixelsError: it is larger than the limits allow.
            ImageError: it cannot be decoded.
        """
        assert self.encoder is not None
        check_pixels(content, limits.pixels)
        return self.encoder.view(io.BytesIO(content))

    def picture(self, one: Any, size: int, limits: Limits) -> bytes:
        """The image of an item as JPEG or, if it is grey, PNG, its shorter side at most `size`.

        Raises:
            InvalidInput: the index is not of images, or the file is outside its root.
            ImageError: the file is missing, or is not an image.
        """
        if self.index.description.data is not None:
            return encode(self._embedded[str(one)])
        path, box = image_file(self.index, str(one)), split_id(str(one))[1]
        check_pixels(path, limits.pixels)
        return encode(np.array(load_image(path, box, size)))

    def read_page(self, name: str, limits: Limits) -> Collection:
        """The items for the page, or an even sample if there are very many."""
        return read_collection(
            self.index, name, lambda one, size: self.picture(one, size, limits), uploads=self.encoder is not None
        )

    @cached_property
    def _embedded(self) -> dict[str, NDArray[np.uint8]]:
        """The images of an embedded dataset by id."""
        catalogue = glyphs.load(str(self.index.description.data))
        pixels: Any = catalogue.pixels
        return dict(zip(catalogue.paths, pixels, strict=True))


@dataclass(frozen=True, eq=False)
class PendingQuery:
    """A query on a state of an index: a view for the network or a vector, and its own id if it is of the index."""

    opened: ServedIndex
    options: Options
    view: Tensor | None = None
    vector: NDArray[np.float32] | None = None
    own: Any = None


def answer_queries(queries: Sequence[PendingQuery], metrics: Metrics) -> list[list[Neighbour] | Exception]:
    """The neighbours of each query: one pass through the network, one search for queries with the same options."""
    vectors = _vectors(queries, metrics)
    answers: list[list[Neighbour] | Exception] = [[]] * len(queries)
    groups: dict[tuple[int, Options], list[int]] = {}
    for n, query in enumerate(queries):
        groups.setdefault((id(query.opened), query.options), []).append(n)
    start = time.perf_counter()
    for rows in groups.values():
        found: Sequence[list[Neighbour] | Exception] = _search(queries, vectors, rows)
        if len(rows) > 1 and any(isinstance(one, Exception) for one in found):
            found = [_search(queries, vectors, [row])[0] for row in rows]  # one bad query must not fail the others
        for row, one in zip(rows, found, strict=True):
            answers[row] = one
    metrics.searching.observe(time.perf_counter() - start)
    return answers


def _vectors(queries: Sequence[PendingQuery], metrics: Metrics) -> list[NDArray[np.float32]]:
    vectors: list[Any] = [query.vector for query in queries]
    by_index: dict[int, list[int]] = {}
    for n, query in enumerate(queries):
        if query.view is not None:
            by_index.setdefault(id(query.opened.encoder), []).append(n)
    for rows in by_index.values():
        encoder = queries[rows[0]].opened.encoder
        assert encoder is not None
        with metrics.inference.time():
            found = encoder.embed([view for n in rows if (view := queries[n].view) is not None])
        for n, vector in zip(rows, found, strict=True):
            vectors[n] = vector
    return vectors


def _search(
    queries: Sequence[PendingQuery], vectors: Sequence[NDArray[np.float32]], rows: Sequence[int]
) -> Sequence[list[Neighbour] | Exception]:
    first, options = queries[rows[0]], queries[rows[0]].options
    none = (None,) * len(rows)
    asked = Queries(("",) * len(rows), np.stack([vectors[n] for n in rows]), tuple(queries[n].own for n in rows), none)
    try:
        with first.opened._lock:
            found = search_queries(
                first.opened.index,
                asked,
                options.k,
                least=options.least,
                where=options.where,
                expand=options.expand,
                rerank=DEPTH if options.rerank else 0,
            )
    except Exception as error:
        return [error] * len(rows)
    return [[plain(hit) for hit in hits] for hits in found]


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record with null for what JSON has no number for."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in record.items()
    }


def read_stamp(folder: Path) -> tuple[int, int, int]:
    """What changes when the index in a folder is replaced or changed; zeros if there is none."""
    try:
        status = (folder / FILE).stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_ino, status.st_size
