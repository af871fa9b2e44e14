"""Activations at the freezing boundary, computed once and kept in a memory-mapped file.

With the trunk frozen, an image gives the same activations in every epoch. So `views` augmented views of
each image go through the trunk once, and training reads their activations:

    cache = ActivationCache.build(root, key, items=5864, views=8, source=augmented, trunk=embedder.trunk)
    features = embedder.features_from(cache.read([(17, 3), (4, 0)]))

On disk, in a folder named after the key: `activations.bin` (view after view, in each the items in order),
`done.bin` (one byte per finished block of images) and `description.json`. A block is marked only after its
activations are on the disk, so an interrupted build loses the block under way and goes on from there; a
later build with more views adds those views.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from metrix.errors import InvalidInput, check_integer, unknown_choice
from metrix.files import write_json

DTYPES = ("float32", "float16")
_DATA, _DONE, _DESCRIPTION = "activations.bin", "done.bin", "description.json"

Source = Callable[[int, int], Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Description:
    """What the files of a cache hold; `shape` is of one image's activations."""

    key: str
    items: int
    block: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one image's activations."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def blocks_per_view(self) -> int:
        """Blocks of `block` images that the items of one view make, the last one shorter."""
        return -(-self.items // self.block)

    def rows_of(self, block: int) -> tuple[int, range]:
        """The view and the items of a block."""
        view, position = divmod(block, self.blocks_per_view)
        start = position * self.block
        return view, range(start, min(start + self.block, self.items))


class ActivationCache:
    """Finished activations: `read([(index, view), ...])` gives a float32 tensor (n, *shape).

    `items`, `views` and `shape` say what is there. Made by `build`, which opens what is already complete.
    """

    def __init__(self, folder: Path, description: Description, views: int) -> None:
        self.folder = folder
        self.items = description.items
        self.views = views
        self.shape = description.shape
        self.dtype = description.dtype
        rows = (views * self.items, *self.shape)
        self._rows = np.memmap(folder / _DATA, dtype=self.dtype, mode="r", shape=rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the activations on disk."""
        return int(self._rows.nbytes)

    def read(self, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """The activations (n, *shape), float32, of n pairs (index, view)."""
        if len(pairs) == 0:
            return torch.empty(0, *self.shape)
        index, view = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
        for what, given, count in (("index", index, self.items), ("view", view, self.views)):
            if given.min() < 0 or given.max() >= count:
                raise InvalidInput(
                    f"{what} {int(given.min())} to {int(given.max())} asked of activations with {self.items} "
                    f"items and {self.views} views; accepted: 0 to {count - 1}"
                )
        return torch.from_numpy(self._rows[view * self.items + index]).float()

    @classmethod
    def build(
        cls,
        root: str | Path,
        key: str,
        *,
        items: int,
        source: Source,
        trunk: Callable[[Tensor], Tensor],
        views: int = 1,
        dtype: str = "float32",
        block: int = 64,
        workers: int = 0,
        progress: Progress | None = None,
    ) -> ActivationCache:
        """Compute what is missing of `items` x `views` activations under `root`, and open them.

        Args:
            root: folder of caches; this one gets a folder of its own in it, named after `key`.
            key: everything the activations depend on: the trunk's fingerprint, the transform, the files.
                The same key must mean the same values.
            items: number of images.
            source: `source(index, view)` gives the image tensor (c, h, w) of a view; the same each time.
            trunk: batch of images (n, c, h, w) to activations (n, ...): `Embedder.trunk`.
            views: number of views of each image.
            dtype: 'float32' keeps the exact values; 'float16' takes half the space, rounded to 11 bits.
            block: images per call of the trunk, and the most that an interruption loses.
            workers: threads that call `source` for the next block meanwhile; 0 calls it in between.
            progress: called with (images done, images in all) at the start and after each block.

        At most two blocks of images and one of activations are in memory.
        """
        for what, value in (("items", items), ("views", views), ("block", block)):
            check_integer(what, value, least=1)
        if dtype not in DTYPES:
            raise unknown_choice("dtype of activations", dtype, DTYPES)
        identity = hashlib.sha256(f"{items}|{dtype}|{key}".encode()).hexdigest()
        folder = Path(root) / f"activations-{identity[:20]}"
        folder.mkdir(parents=True, exist_ok=True)
        stored = _stored(folder)
        if stored is None:
            shape = _activations(trunk, [source(0, 0)], dtype).shape[1:]
            stored = Description(key, items, block, dtype, tuple(shape))
            (folder / _DONE).unlink(missing_ok=True)
            write_json(folder / _DESCRIPTION, asdict(stored))
        _fill(folder, stored, views, source, trunk, workers, progress)
        return cls(folder, stored, views)


def _stored(folder: Path) -> Description | None:
    path = folder / _DESCRIPTION
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Description(**{**content, "shape": tuple(content["shape"])})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is damaged ({error!r}); delete the folder, and it is built again") from error


def _fill(
    folder: Path,
    description: Description,
    views: int,
    source: Source,
    trunk: Callable[[Tensor], Tensor],
    workers: int,
    progress: Progress | None,
) -> None:
    total = views * description.items
    blocks = views * description.blocks_per_view
    data = os.open(folder / _DATA, os.O_RDWR | os.O_CREAT, 0o666)
    done = os.open(folder / _DONE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        marks = os.pread(done, blocks, 0).ljust(blocks, b"\0")
        present = os.fstat(data).st_size
        if present < _last_marked_byte(description, marks):  # the file was cut: nothing in it is sure
            os.ftruncate(done, 0)
            marks = b"\0" * blocks
        missing = [block for block in range(blocks) if not marks[block]]
        finished = total - sum(len(description.rows_of(block)[1]) for block in missing)
        if missing:
            _check_space(folder, total * description.row_bytes - os.fstat(data).st_blocks * 512)
        if present < total * description.row_bytes:
            os.ftruncate(data, total * description.row_bytes)
        if progress is not None:
            progress(finished, total)
        for block, images in _loaded(description, missing, source, workers):
            view, rows = description.rows_of(block)
            values = _activations(trunk, images, description.dtype)
            if values.shape != (len(rows), *description.shape):
                raise InvalidInput(
                    f"the trunk gave activations of shape {values.shape} for items {rows.start} to "
                    f"{rows.stop - 1}, where it gave {description.shape} per image before; "
                    "all images must have one size"
                )
            _write(data, values, (view * description.items + rows.start) * description.row_bytes)
            os.fsync(data)
            os.pwrite(done, b"\1", block)
            finished += len(rows)
            if progress is not None:
                progress(finished, total)
        os.fsync(done)
    finally:
        os.close(data)
        os.close(done)


def _last_marked_byte(description: Description, marks: bytes) -> int:
    last = marks.rfind(1)
    if last < 0:
        return 0
    view, rows = description.rows_of(last)
    return (view * description.items + rows.stop) * description.row_bytes


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidInput(
            f"the activations take {needed / 1e9:.1f} GB more and {folder} has {free / 1e9:.1f} GB free. "
            "Take fewer views, dtype='float16' (half the space), a later stage to freeze to, or a larger disk"
        )


def _loaded(
    description: Description, blocks: list[int], source: Source, workers: int
) -> Iterator[tuple[int, list[Tensor]]]:
    """The images of each block; with workers, those of the next block are loaded meanwhile."""
    if workers < 1:
        for block in blocks:
            view, rows = description.rows_of(block)
            yield block, [source(index, view) for index in rows]
        return
    with ThreadPoolExecutor(workers) as pool:

        def ask(block: int) -> Iterator[Tensor]:
            view, rows = description.rows_of(block)
            return pool.map(source, rows, [view] * len(rows))

        coming = ask(blocks[0]) if blocks else iter(())
        for position, block in enumerate(blocks):
            images = list(coming)
            if position + 1 < len(blocks):
                coming = ask(blocks[position + 1])
            yield block, images


def _activations(trunk: Callable[[Tensor], Tensor], images: list[Tensor], dtype: str) -> np.ndarray:
    with torch.no_grad():
        values = trunk(torch.stack(images)).to(device="cpu", dtype=getattr(torch, dtype)).contiguous()
    if not values.isfinite().all():
        advice = "dtype='float32' holds larger values" if dtype == "float16" else "look at images and weights"
        raise InvalidInput(f"the trunk gave activations that are not finite in {dtype}; {advice}")
    array: np.ndarray = values.numpy()
    return array


def _write(file: int, values: np.ndarray, offset: int) -> None:
    remaining = values.data.cast("B")
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written
