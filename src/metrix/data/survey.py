"""Looking at the files of a catalogue before they are used: present, below the root, decodable."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeVar

from metrix.data.catalogue import Catalogue
from metrix.data.images import ImageError, load_image
from metrix.errors import DataError, MetrixWarning
from metrix.files import cache_folder, write_json
from metrix.messages import count, first_few

Progress = Callable[[int, int], None]  # images done, images in all
Item = TypeVar("Item")
Result = TypeVar("Result")


class Broken(NamedTuple):
    """An image that cannot be decoded."""

    position: int  # in the catalogue
    path: str
    reason: str


class Decoded(NamedTuple):
    """What decoding every image showed: sizes (width, height), (0, 0) where broken."""

    sizes: tuple[tuple[int, int], ...]
    broken: tuple[Broken, ...]


class Survey(NamedTuple):
    """The files of a catalogue as they are on disk."""

    missing: tuple[str, ...]
    stamp: str  # changes when a path, a size or a modification time does


def survey(catalogue: Catalogue) -> Survey:
    """Look at every file, without reading it; a symbolic link that leads outside the root is an error."""
    if catalogue.root is None:
        return Survey((), catalogue.fingerprint())
    root = os.path.realpath(catalogue.root)
    digest = hashlib.sha256(root.encode())
    missing: list[str] = []
    outside: list[str] = []
    inside: dict[str, bool] = {}
    boxes = catalogue.boxes or (None,) * len(catalogue)
    for path, box in zip(catalogue.paths, boxes, strict=True):
        full = os.path.join(root, path)
        folder = os.path.dirname(full)
        if folder not in inside:
            inside[folder] = _below(folder, root)
        if not inside[folder] or (os.path.islink(full) and not _below(full, root)):
            outside.append(path)
            continue
        try:
            status = os.stat(full)
        except OSError:
            missing.append(path)
            continue
        digest.update(repr((path, box, status.st_size, status.st_mtime_ns)).encode())
    if outside:
        raise DataError(
            f"{count(len(outside), 'file')} of {root} lead outside it through a symbolic link: "
            f"{first_few(outside)}; copy them, or give the folder that holds them all"
        )
    return Survey(tuple(missing), digest.hexdigest())


def require_files(catalogue: Catalogue) -> Survey:
    """The survey, or a DataError that names the missing files."""
    found = survey(catalogue)
    if found.missing:
        raise DataError(missing_files(catalogue, found))
    return found


def missing_files(catalogue: Catalogue, found: Survey) -> str:
    """The message about missing files."""
    return (
        f"{len(found.missing):,} of {count(len(catalogue), 'image')} are not in {catalogue.root}: "
        f"{first_few(found.missing)}; complete the folder, or take them off the list"
    )


def decode_all(
    catalogue: Catalogue, stamp: str, *, workers: int | None = None, progress: Progress | None = None
) -> Decoded:
    """Decode every image once; the result is remembered for as long as the files stay the same."""
    remembered = cache_folder() / "decoded" / f"{stamp[:32]}.json"
    known = _recall(remembered, len(catalogue))
    if known is not None:
        return known

    def size(index: int) -> tuple[int, int] | str:
        try:
            return load_image(catalogue.file(index), _box(catalogue, index)).size
        except ImageError as error:
            return error.reason

    sizes: list[tuple[int, int]] = []
    broken: list[Broken] = []
    for index, result in enumerate(in_order(size, range(len(catalogue)), workers)):
        if isinstance(result, str):
            broken.append(Broken(index, catalogue.paths[index], result))
            result = (0, 0)
        sizes.append(result)
        if progress is not None:
            progress(index + 1, len(catalogue))
    remembered.parent.mkdir(parents=True, exist_ok=True)
    write_json(remembered, {"sizes": sizes, "broken": broken}, indent=None)
    return Decoded(tuple(sizes), tuple(broken))


def in_order(work: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None) -> Iterator[Result]:
    """Results in the order of the items, from threads (decoding runs outside Python's lock)."""
    workers = workers or os.cpu_count() or 1
    block = 64 * workers  # so that a long list is neither queued nor held whole
    with contextlib.ExitStack() as stack:
        # Pillow warns about odd metadata of pictures that are whole.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for start in range(0, len(items), block):
            yield from pool.map(work, items[start : start + block])


def tolerate(broken: Sequence[Broken], total: int, max_bad: int | float) -> None:
    """Warn once about broken images; raise if there are more than `max_bad`.

    An integer is a number of images; a fraction below 1 is a share of all, rounded up.
    """
    limit = bad_limit(max_bad, total)
    if not broken:
        return
    listed = first_few([f"{b.path} ({b.reason})" for b in broken], limit=10)
    text = f"{len(broken):,} of {count(total, 'image')} cannot be read"
    if len(broken) > limit:
        raise DataError(f"{text}, more than max_bad={max_bad} allows ({limit}): {listed}; repair or remove them")
    warnings.warn(f"{text} and are left out: {listed}", MetrixWarning, stacklevel=3)


def bad_limit(max_bad: int | float, total: int) -> int:
    """How many of `total` images may be broken.

    >>> bad_limit(3, 1000), bad_limit(0.01, 1000), bad_limit(0.01, 50), bad_limit(0, 50)
    (3, 10, 1, 0)
    """
    if max_bad < 0 or (isinstance(max_bad, float) and max_bad >= 1):
        raise DataError(f"max_bad is a whole number of images, or a share below 1; got {max_bad}")
    return max_bad if isinstance(max_bad, int) else ceil(max_bad * total)


def _below(path: str, root: str) -> bool:
    real = os.path.realpath(path)
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def _box(catalogue: Catalogue, index: int) -> tuple[int, int, int, int] | None:
    return catalogue.boxes[index] if catalogue.boxes is not None else None


def _recall(path: Path, total: int) -> Decoded | None:
    try:
        content = json.loads(path.read_bytes())
        sizes = tuple((int(width), int(height)) for width, height in content["sizes"])
        broken = tuple(Broken(int(index), str(name), str(reason)) for index, name, reason in content["broken"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Decoded(sizes, broken) if len(sizes) == total else None
