"""A cache of the activations of a frozen trunk, in a memory-mapped file.

A frozen trunk returns the same activations for an image in every epoch. So a number of augmented views of each image
are run through the trunk once, and training reads their activations:

    cache = ActivationCache.build(root, key, items=5864, views=8, source=augmented, trunk=embedder.trunk)
    features = embedder.features_from(cache.read([(17, 3), (4, 0)]))

The folder of a cache, named after the key, has `activations.bin` (one view after another, the items of each in order),
`done.bin` (one byte per block of images) and `description.json`. A block is marked as done after its activations are on
the disk, so an interrupted build loses at most one block and resumes; a later build with more views adds only those.
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
from metrix.files import mark_used, write_json
from metrix.messages import OnProgress

DTYPES = ("float32", "float16")
_DATA, _DONE, _DESCRIPTION = "activations.bin", "done.bin", "description.json"

ViewSource = Callable[[int, int], Tensor]  # (index, view) to the image (c, h, w)


@dataclass(frozen=True)
class CacheDescription:
    """The content of a cache; `shape` is that of the activations of one image."""

    key: str
    items: int
    block: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of the activations of one image."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def blocks_per_view(self) -> int:
        """Number of blocks of `block` images in a view; the last one may be shorter."""
        return -(-self.items // self.block)

    def rows_of(self, block: int) -> tuple[int, range]:
        """The view and the items of a block."""
        view, position = divmod(block, self.blocks_per_view)
        start = position * self.block
        return view, range(start, min(start + self.block, self.items))


class ActivationCache:
    """Activations on disk: `read([(index, view), …])` returns a float32 tensor (n, *shape).

    Created, completed or opened by `build`. `items`, `views` and `shape` describe the content.

    >>> import tempfile
    >>> cache = ActivationCache.build(tempfile.mkdtemp(), "ones", items=5, views=2, source=lambda index, view:
    ...     torch.full((1, 4, 4), float(index)), trunk=lambda images: images.mean((2, 3)))
    >>> cache.read([(3, 0), (1, 1)])
    tensor([[3.],
            [1.]])
    """

    def __init__(self, folder: Path, description: CacheDescription, views: int) -> None:
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
                    f"{what}: expected 0 to {count - 1} for activations of {self.items} items and {self.views} views, "
                    f"got {int(given.min())} to {int(given.max())}"
                )
        return torch.from_numpy(self._rows[view * self.items + index]).float()

    @classmethod
    def build(
        cls,
        root: str | Path,
        key: str,
        *,
        items: int,
        source: ViewSource,
        trunk: Callable[[Tensor], Tensor],
        views: int = 1,
        dtype: str = "float32",
        block: int = 64,
        workers: int = 0,
        device: torch.device | str = "cpu",
        progress: OnProgress | None = None,
    ) -> ActivationCache:
        """Open a cache of `items` x `views` activations, after computing those that are missing.

        Args:
            root: folder in which the folder of the cache is created.
            key: identifies the activations: everything that they depend on, such as the fingerprint of the trunk,
                the transform and the image files.
            items: number of images.
            source: `source(index, view)` returns the image (c, h, w) of a view, always the same.
            trunk: from images (n, c, h, w) to activations (n, …), such as `Embedder.trunk`.
            views: number of views of each image.
            dtype: 'float32' stores exact values; 'float16' rounds them to 11 bits and takes half the space.
            block: images per call of the trunk; at most so many are lost if the build is interrupted.
            workers: threads that load the next block while the trunk runs; 0 loads between two blocks.
            device: where the trunk is; images are copied there.
            progress: called with (images done, images in all) at the start and after each block.

        At most two blocks of images and one block of activations are in memory.
        """
        for what, value in (("items", items), ("views", views), ("block", block)):
            check_integer(what, value, least=1)
        if dtype not in DTYPES:
            raise unknown_choice("dtype of activations", dtype, DTYPES)
        identity = hashlib.sha256(f"{items}|{dtype}|{key}".encode()).hexdigest()
        folder = Path(root) / f"activations-{identity[:20]}"
        folder.mkdir(parents=True, exist_ok=True)
        stored = _read_description(folder)

        def run(images: list[Tensor], dtype: str) -> np.ndarray:
            return _compute(lambda stacked: trunk(stacked.to(device)), images, dtype)

        if stored is None:
            shape = run([source(0, 0)], dtype).shape[1:]
            stored = CacheDescription(key, items, block, dtype, tuple(shape))
            (folder / _DONE).unlink(missing_ok=True)
            write_json(folder / _DESCRIPTION, asdict(stored))
        _fill(folder, stored, views, source, run, workers, progress)
        mark_used(folder / _DESCRIPTION)
        return cls(folder, stored, views)


def _read_description(folder: Path) -> CacheDescription | None:
    path = folder / _DESCRIPTION
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return CacheDescription(**{**content, "shape": tuple(content["shape"])})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is damaged ({error!r}); delete its folder to build it again") from error


def _fill(
    folder: Path,
    description: CacheDescription,
    views: int,
    source: ViewSource,
    run: Callable[[list[Tensor], str], np.ndarray],
    workers: int,
    progress: OnProgress | None,
) -> None:
    total = views * description.items
    blocks = views * description.blocks_per_view
    data = os.open(folder / _DATA, os.O_RDWR | os.O_CREAT, 0o666)
    done = os.open(folder / _DONE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        marks = os.pread(done, blocks, 0).ljust(blocks, b"\0")
        present = os.fstat(data).st_size
        if present < _last_marked_byte(description, marks):  # the file was truncated: recompute everything
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
        for block, images in _load_blocks(description, missing, source, workers):
            view, rows = description.rows_of(block)
            values = run(images, description.dtype)
            if values.shape != (len(rows), *description.shape):
                raise InvalidInput(
                    f"activations of items {rows.start} to {rows.stop - 1}: expected the shape "
                    f"{(len(rows), *description.shape)}, got {values.shape}; all images must have one size"
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


def _last_marked_byte(description: CacheDescription, marks: bytes) -> int:
    last = marks.rfind(1)
    if last < 0:
        return 0
    view, rows = description.rows_of(last)
    return (view * description.items + rows.stop) * description.row_bytes


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidInput(
            f"the activations need {needed / 1e9:.1f} GB more and {folder} has {free / 1e9:.1f} GB free; "
            "use fewer views, dtype='float16' (half the space), a later stage to freeze to, or a larger disk"
        )


def _load_blocks(
    description: CacheDescription, blocks: list[int], source: ViewSource, workers: int
) -> Iterator[tuple[int, list[Tensor]]]:
    """The images of each block; with workers, the next block is loaded in the background."""
    if workers < 1:
        for block in blocks:
            view, rows = description.rows_of(block)
            yield block, [source(index, view) for index in rows]
        return
    with ThreadPoolExecutor(workers) as pool:

        def request(block: int) -> Iterator[Tensor]:
            view, rows = description.rows_of(block)
            return pool.map(source, rows, [view] * len(rows))

        coming = request(blocks[0]) if blocks else iter(())
        for position, block in enumerate(blocks):
            images = list(coming)
            if position + 1 < len(blocks):
                coming = request(blocks[position + 1])
            yield block, images


def _compute(trunk: Callable[[Tensor], Tensor], images: list[Tensor], dtype: str) -> np.ndarray:
    with torch.no_grad():
        values = trunk(torch.stack(images)).to(device="cpu", dtype=getattr(torch, dtype)).contiguous()
    if not values.isfinite().all():
        advice = "use dtype='float32'" if dtype == "float16" else "check the images and the weights"
        raise InvalidInput(f"the trunk returned activations that are not finite in {dtype}; {advice}")
    array: np.ndarray = values.numpy()
    return array


def _write(file: int, values: np.ndarray, offset: int) -> None:
    remaining = values.data.cast("B")
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written
