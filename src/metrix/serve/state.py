"""One state of an index with the model that its queries go through."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metrix.data import glyphs
from metrix.data.images import PixelBudget
from metrix.errors import EmbeddingError, InvalidInput, ShapeError
from metrix.explore.collection import Collection
from metrix.explore.index_collection import read_collection
from metrix.explore.pictures import Picture, count_pixels, encode, name_picture, read_picture
from metrix.retrieve.classify import Classifier
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import split_id
from metrix.retrieve.item_images import count_missing, image_file
from metrix.retrieve.queries import open_encoder
from metrix.retrieve.shortening import shorten_index
from metrix.search import Index, Items
from metrix.search.description import FILE
from metrix.serve.limits import Limits

MOST_CHECKED = 100_000  # images that are looked for at the start; of a larger index, every n-th

Stamp = tuple[int, int, int]
NOTHING: Stamp = (0, 0, 0)


class ServedIndex:
    """An index as it was when it was opened: a later state is another object, so queries end on the one they began.

    Whoever uses it holds it meanwhile; once it is retired, it is closed when nobody does.

    Args:
        folder: the index.
        limits: on images.
        run: the run that it was built with, if it has moved.
        root: the folder of its images, if they have moved.
        store: of the index, as for `Index.open`.
        before: an earlier state, whose network is used again if the model is the same.
        queries: whether the model is opened, for queries.
        dim: so many numbers of each vector; all by default.
        force_dim: take a prefix that the model was not trained for.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        run: Path | None = None,
        root: Path | None = None,
        store: str | None = None,
        before: ServedIndex | None = None,
        queries: bool = True,
        dim: int | None = None,
        force_dim: bool = False,
    ) -> None:
        self.stamp, self.opened_at, self._limits = read_stamp(folder), time.monotonic(), limits
        self.folder, self.run, self.store = folder, run, store
        self.index = Index.open(folder, store, root)
        if not len(self.index):
            raise InvalidInput(f"{folder}: expected an index with items, got an empty one; build it anew")
        if dim is not None:
            whole = self.index
            self.index = shorten_index(whole, dim, force_dim, run)
            if self.index is not whole:
                whole.close()
        self.index.prepare()
        self.encoder = self._open_encoder(run, before) if queries else None
        # A client of Milvus is not for several threads at once; mapped files are.
        self.one_at_a_time = self.index.description.store == "milvus"
        self._lock: Any = threading.RLock() if self.one_at_a_time else contextlib.nullcontext()
        self.classes: Future[Classifier] = Future()  # for /classify, see metrix.serve.classes
        self._decoding = PixelBudget(limits.pixels)
        self._holding, self._users, self._retired = threading.Lock(), 0, False

    def _open_encoder(self, run: Path | None, before: ServedIndex | None) -> ImageEncoder | None:
        now = self.index.description
        if now.model is None:
            return None
        if before is not None:
            then = before.index.description
            if (then.model, then.data, then.adapter) == (now.model, now.data, now.adapter):
                return before.encoder
        return open_encoder(self.index, run)

    @cached_property
    def version(self) -> str:
        """A name of this state and its model that no other state has."""
        said = f"{self.index.description.model_dump_json()}{self.stamp}"
        made_by = self.index.description.model
        return (
            f"{hashlib.sha256(said.encode()).hexdigest()[:16]}-{'vectors' if made_by is None else made_by.digest[:12]}"
        )

    @property
    def retired(self) -> bool:
        """Whether another state has taken its place."""
        return self._retired

    @property
    def takes_images(self) -> bool:
        """Whether a query can be an image."""
        return self.encoder is not None and not self.encoder.model.embedder.takes_vectors

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Keep the state open while the block runs; False if it is closed already."""
        with self._holding:
            there = not (self._retired and self._users == 0)
            self._users += there
        try:
            yield there
        finally:
            if there:
                with self._holding:
                    self._users -= 1
                    last = self._retired and self._users == 0
                if last:
                    self._close()

    def retire(self) -> None:
        """Close it, now or when the last one who holds it is done."""
        with self._holding:
            last = not self._retired and self._users == 0
            self._retired = True
        if last:
            self._close()

    def _close(self) -> None:
        with self._lock:
            self.index.close()

    @contextlib.contextmanager
    def using_store(self) -> Iterator[Index]:
        """The index, for one thread at a time where the store needs that."""
        with self._lock:
            yield self.index

    def find(self, text: str) -> Items | None:
        """The item under the id that a request names; None if there is none."""
        row = self.find_row(text)
        if row < 0:
            return None
        with self.using_store() as index:
            return index.take(np.array([row]))

    def find_row(self, text: str) -> int:
        """The row of the id that a request names; -1 if there is none."""
        one = self.read_id(text)
        if one is None:
            return -1
        with self.using_store() as index:
            return int(index.find([one])[0])

    def vector_of(self, row: int) -> NDArray[np.float32]:
        """The vector of an item."""
        with self.using_store() as index:
            found: NDArray[np.float32] = index.store.read_vectors(np.array([row]))[0]
        return found

    def read_id(self, text: str) -> Any | None:
        """An id of the kind that the index has; None if the text is none."""
        if not self.index.store.ids_are_text:
            return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return text

    def list_items(self, start: int, count: int) -> list[dict[str, Any]]:
        """Ids and columns of items, in the order of the index."""
        with self.using_store() as index:
            found = index.store.read_table(index.store.rows_from(start, count))
        return [plain(record) for record in found.to_pylist()]

    def read_vector(self, values: Sequence[float]) -> NDArray[np.float32]:
        """The vector of a request at unit norm, comparable with those of the items.

        Raises:
            InvalidInput: it has another dimension, is zero, or not finite.
        """
        vector = np.asarray(values, dtype=np.float64)
        dim = self.index.query_dim
        if vector.shape != (dim,):
            raise ShapeError(f"vector: expected {dim} numbers, as the index has, got {len(values)}")
        largest = float(np.abs(vector).max())
        if not np.isfinite(largest) or largest == 0:
            raise EmbeddingError("vector: expected finite numbers that are not all zero")
        vector = vector / largest  # so that the squares of very large numbers stay finite
        unit = np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)
        return unit if self.index.adapter is None else self.index.adapt(unit[None])[0]

    def view(self, content: bytes) -> Tensor:
        """An uploaded image as the network's input.

        Raises:
            TooManyPixelsError: it is larger than the limits allow.
            ImageError: it cannot be decoded.
        """
        assert self.encoder is not None
        pixels = count_pixels(content, self._limits.pixels, slow_formats=self._limits.slow_formats)
        with self._decoding.hold(pixels):
            return self.encoder.view(io.BytesIO(content))

    def picture(self, one: Any, size: int, known: str = "") -> Picture:
        """The image of an item as JPEG or, if it is grey, PNG, its shorter side at most `size`.

        Raises:
            InvalidInput: the index is not of images, or the file is outside its root.
            ImageError: the file is missing, or is not an image.
        """
        data = self.index.description.data
        if data is None:
            path, box = image_file(self.index, str(one)), split_id(str(one))[1]
            return read_picture(path, box, size, self._limits.pixels, known)
        tag = name_picture(data, one)
        return Picture(None if tag == known else encode(self._embedded[str(one)]), tag)

    @cached_property
    def _embedded(self) -> dict[str, NDArray[np.uint8]]:
        """The images of an embedded dataset by id."""
        catalogue = glyphs.load(str(self.index.description.data))
        pixels: Any = catalogue.pixels
        return dict(zip(catalogue.paths, pixels, strict=True))

    def read_page(self, name: str) -> Collection:
        """The items for the page, or an even sample if there are very many."""
        with self.using_store() as index:
            return read_collection(index, name, self.picture, version=self.version, uploads=self.takes_images)

    def count_missing(self) -> tuple[int, int]:
        """How many images were looked for, and how many of them are not there; (0, 0) if the items are not files."""
        with self.using_store() as index:
            return count_missing(index, MOST_CHECKED)


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record with null for what JSON has no number for."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in record.items()
    }


def read_stamp(folder: Path) -> Stamp:
    """What changes when the index in a folder is replaced or changed; zeros if there is none."""
    try:
        status = (folder / FILE).stat()
    except OSError:
        return NOTHING
    return status.st_mtime_ns, status.st_ino, status.st_size
