"""A cache of decoded, shrunk images, in memory or memory-mapped from disk.

On disk, a cache is a folder with two files: `pixels.raw`, the uint8 RGB images one after another, and `index.json`,
their offsets and sizes. It is built under another name and renamed when it is complete, so an interrupted build is
never used. Its name is a hash of the paths, sizes and modification times of the image files, so images that changed
get a new cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data.catalogue import Catalogue
from metrix.data.images import ImageError, image_size, load_image
from metrix.data.survey import Broken, map_in_order
from metrix.errors import DataError, unknown_choice
from metrix.files import cache_folder, lock, mark_used, write_json
from metrix.messages import OnProgress

KINDS = ("none", "ram", "disk")
FORMAT = 2
SHORT_SIDE = 256  # pixels; enough for the usual crops of 224


class PixelCache:
    """Decoded images: `cache[i]` is image i of the catalogue, uint8 (height, width, 3), not copied."""

    def __init__(self, pixels: NDArray[np.uint8], index: dict[str, Any], file: Path | None = None) -> None:
        self._pixels, self._index, self._file = pixels, index, file
        self._starts = np.array(index["starts"], dtype=np.int64)  # (images + 1,)
        self._shapes = np.array(index["shapes"], dtype=np.int64).reshape(-1, 2)  # (images, 2)
        self.broken = tuple(Broken(int(i), str(path), str(reason)) for i, path, reason in index["broken"])

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        height, width = self._shapes[index]
        return self._pixels[self._starts[index] : self._starts[index + 1]].reshape(height, width, 3)

    def __getstate__(self) -> dict[str, Any]:
        """A loader process maps the file itself instead of receiving a copy of its contents."""
        pixels = None if self._file is not None else self._pixels
        return {"pixels": pixels, "index": self._index, "file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pixels = state["pixels"] if state["file"] is None else _map_file(state["file"])
        self.__init__(pixels, state["index"], state["file"])  # type: ignore[misc]


def build_cache(
    catalogue: Catalogue,
    kind: str,
    stamp: str,
    *,
    short_side: int = SHORT_SIDE,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> PixelCache:
    """Decode all images of a catalogue, or open the cache on disk if it exists.

    Args:
        catalogue: the images.
        kind: `ram` or `disk`.
        stamp: that of the catalogue's survey, which changes when a file does.
        short_side: length in pixels to which the shorter side is shrunk.
        workers: number of threads; by default one for each processor.
        progress: called with (images done, images in all).

    Raises:
        DataError: if there is not enough memory or disk space.
    """
    if kind == "disk":
        return _build_on_disk(catalogue, stamp, short_side, workers, progress)
    if kind != "ram":
        raise unknown_choice("cache", kind, KINDS)
    _require_room(_estimate_size(catalogue, short_side), _total_memory(), "memory", "cache='disk'")
    buffer = bytearray()
    index = _write_images(catalogue, _decode(catalogue, short_side, workers, progress), buffer.extend)
    return PixelCache(np.frombuffer(buffer, dtype=np.uint8), index)


def _build_on_disk(
    catalogue: Catalogue, stamp: str, short_side: int, workers: int | None, progress: OnProgress | None
) -> PixelCache:
    key = hashlib.sha256(f"{FORMAT} {stamp} {short_side}".encode()).hexdigest()[:32]
    folder = cache_folder() / "images" / key
    with lock(folder.with_suffix(".lock")):
        found = _open(folder)
        if found is not None:
            return found
        shutil.rmtree(folder, ignore_errors=True)
        building = folder.with_suffix(".building")
        shutil.rmtree(building, ignore_errors=True)  # left by a build that was killed
        building.mkdir(parents=True)
        try:
            free = shutil.disk_usage(building).free
            _require_room(
                _estimate_size(catalogue, short_side),
                free,
                f"free disk space in {building.parent}",
                "a smaller short_side",
            )
            with open(building / "pixels.raw", "wb") as file:
                index = _write_images(catalogue, _decode(catalogue, short_side, workers, progress), file.write)
                file.flush()
                os.fsync(file.fileno())
            write_json(building / "index.json", index, indent=None)
            os.replace(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        found = _open(folder)
    if found is None:
        raise DataError(f"the image cache in {folder} cannot be read back after writing it; check the disk")
    return found


def _decode(
    catalogue: Catalogue, short_side: int, workers: int | None, progress: OnProgress | None
) -> Iterator[NDArray[np.uint8] | str]:
    """Each image as an array, or the reason why it is broken."""

    def read(position: int) -> NDArray[np.uint8] | str:
        try:
            return np.asarray(load_image(catalogue.file(position), catalogue.box(position), short_side))
        except ImageError as error:
            return error.reason

    for done, result in enumerate(map_in_order(read, range(len(catalogue)), workers), start=1):
        yield result
        if progress is not None:
            progress(done, len(catalogue))


def _write_images(
    catalogue: Catalogue, images: Iterator[NDArray[np.uint8] | str], write: Callable[[bytes], object]
) -> dict[str, Any]:
    """Write the images one after another, and return the index of the cache."""
    starts, shapes, broken = [0], [], []
    for position, image in enumerate(images):
        if isinstance(image, str):
            broken.append((position, catalogue.paths[position], image))
            image = np.empty((0, 0, 3), np.uint8)
        write(image.tobytes())
        starts.append(starts[-1] + image.size)
        shapes.append(image.shape[:2])
    index = {"format": FORMAT, "starts": starts, "shapes": shapes, "broken": broken}
    return {**index, "sha256": _digest(index)}


def _digest(index: dict[str, Any]) -> str:
    """SHA-256 of an index without its digest: numbers that are changed could still fit each other."""
    content = {name: value for name, value in index.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _open(folder: Path) -> PixelCache | None:
    """The cache in a folder; None if it does not exist or is not complete."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        file = folder / "pixels.raw"
        if index["format"] != FORMAT or index["sha256"] != _digest(index):
            return None
        if file.stat().st_size != index["starts"][-1]:
            return None
        mark_used(folder / "index.json")
        return PixelCache(_map_file(file), index, file)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _map_file(file: Path) -> NDArray[np.uint8]:
    if file.stat().st_size == 0:
        return np.empty(0, np.uint8)
    # Copy on write: the file never changes, but torch only accepts arrays that are writable.
    return np.memmap(file, dtype=np.uint8, mode="c")


def _estimate_size(catalogue: Catalogue, short_side: int) -> int:
    """Estimated bytes of the cache, from the headers of up to 32 images."""
    areas: list[float] = []
    for position in np.linspace(0, len(catalogue) - 1, num=min(len(catalogue), 32), dtype=int).tolist():
        size = image_size(catalogue.file(position))
        if size is not None:
            areas.append(size[0] * size[1] * min(1.0, short_side / min(size)) ** 2)
    return int(3 * len(catalogue) * float(np.mean(areas))) if areas else 0


def _require_room(needed: int, room: int, what: str, instead: str) -> None:
    if needed > room:
        raise DataError(
            f"the image cache needs about {needed / 1e9:.1f} GB, and there are {room / 1e9:.1f} GB of {what}; "
            f"use {instead}"
        )


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62  # unknown on this system: no limit
