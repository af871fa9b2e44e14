"""A look at the files of a catalogue before training: are they present, below the root, and decodable?"""

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

import numpy as np

from metrix.data.catalogue import Catalogue
from metrix.data.images import ImageError, load_image
from metrix.data.shards import NotRegularError, find_member, image_status
from metrix.errors import DataError
from metrix.files import cache_folder, mark_used, remove_temporaries, warn_not_cached, write_json
from metrix.messages import OnProgress, count, first_few

Item = TypeVar("Item")
Result = TypeVar("Result")


class Broken(NamedTuple):
    """An image that cannot be decoded."""

    position: int  # in the catalogue
    path: str
    reason: str


class Decoded(NamedTuple):
    """The result of decoding every image: sizes (width, height), which are (0, 0) for broken images."""

    sizes: tuple[tuple[int, int], ...]
    broken: tuple[Broken, ...]


class Survey(NamedTuple):
    """The state of a catalogue's files on disk."""

    missing: tuple[str, ...]
    stamp: str  # a hash that changes when a path, a size or a modification time does


def survey(catalogue: Catalogue) -> Survey:
    """Look at every file without reading it.

    Raises:
        DataError: if a symbolic link leads outside the root, unless the catalogue follows links.
    """
    if catalogue.root is None:
        return Survey((), catalogue.fingerprint())
    root = os.path.realpath(catalogue.root)
    digest = hashlib.sha256(root.encode())
    missing: list[str] = []
    outside: list[str] = []
    irregular: list[str] = []
    inside: dict[str, bool] = {}
    for position, path in enumerate(catalogue.paths):
        full = os.path.join(root, path)
        member = find_member(full)
        folder = os.path.dirname(full) if member is None else member[0].path
        if folder not in inside:
            inside[folder] = _is_below(folder, root)
        if not inside[folder] or (member is None and os.path.islink(full) and not _is_below(full, root)):
            outside.append(path)
            if not catalogue.follow_links:
                continue
        try:
            status = image_status(full) if member is None else member[0].stat(member[1])
        except NotRegularError:
            irregular.append(path)
            continue
        except OSError:
            missing.append(path)
            continue
        digest.update(repr((path, catalogue.box(position), *status)).encode())
    if outside and not catalogue.follow_links:
        raise DataError(
            f"{count(len(outside), 'file')} of {root} lead outside it through a symbolic link: "
            f"{first_few(outside)}; follow links with follow_links (--follow-links), copy the files, or give the "
            "folder that contains them all"
        )
    if irregular:
        raise DataError(
            f"{count(len(irregular), 'path')} of {root} lead to no regular file but to a folder, a pipe or a device: "
            f"{first_few(irregular)}; remove them from the list"
        )
    return Survey(tuple(missing), digest.hexdigest())


def describe_missing(catalogue: Catalogue, found: Survey) -> str:
    """The error message about missing files; empty if none is missing."""
    if not found.missing:
        return ""
    return (
        f"{len(found.missing):,} of {count(len(catalogue), 'image')} are not in {catalogue.root}: "
        f"{first_few(found.missing)}; add them to the folder, or remove them from the list"
    )


def decode_all(
    catalogue: Catalogue, stamp: str, *, workers: int | None = None, progress: OnProgress | None = None
) -> Decoded:
    """Decode every image once; the result is cached until a file changes.

    Args:
        catalogue: the images.
        stamp: that of their `survey`.
        workers: number of threads; by default one for each processor.
        progress: called with (images done, images in all).
    """
    cached = cache_folder() / "decoded" / f"{stamp[:32]}.json"
    known = _read_decoded(cached, len(catalogue))
    if known is not None:
        mark_used(cached)
        return known

    def measure(index: int) -> tuple[int, int] | str:
        try:
            return load_image(catalogue.file(index), catalogue.box(index)).size
        except ImageError as error:
            return error.reason

    sizes: list[tuple[int, int]] = []
    broken: list[Broken] = []
    for index, result in enumerate(map_in_order(measure, range(len(catalogue)), workers)):
        if isinstance(result, str):
            broken.append(Broken(index, catalogue.paths[index], result))
            result = (0, 0)
        sizes.append(result)
        if progress is not None:
            progress(index + 1, len(catalogue))
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(cached.parent, older_than=86400)  # of processes that were killed
        write_json(cached, {"sizes": sizes, "broken": broken}, indent=None)
    except OSError as error:
        warn_not_cached("results of checking images", error)
    return Decoded(tuple(sizes), tuple(broken))


def map_in_order(work: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None) -> Iterator[Result]:
    """Results of `work` in the order of the items, computed by threads (decoding releases the GIL).

    Pillow warns about odd metadata in images that decode correctly: from here on its warnings are ignored, for good.
    Filters that were put back at the end would be those of the whole process, and the end that of the last result,
    which may never be asked for.
    """
    workers = workers or os.cpu_count() or 1
    block = 64 * workers  # bounds how many results wait in memory
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for start in range(0, len(items), block):
            yield from pool.map(work, items[start : start + block])


def describe_broken(catalogue: Catalogue, broken: Sequence[Broken]) -> str:
    """How many images are broken, which, and why."""
    listed = first_few([f"{b.path} ({b.reason})" for b in broken], limit=10)
    return f"{len(broken):,} of {count(len(catalogue), 'image')} cannot be read: {listed}"


def describe_too_many_broken(catalogue: Catalogue, broken: Sequence[Broken], max_bad: int | float) -> str:
    """The error message if more than `max_bad` images are broken; else empty."""
    limit = bad_limit(max_bad, len(catalogue))
    if len(broken) <= limit:
        return ""
    return (
        f"{describe_broken(catalogue, broken)}; max_bad={max_bad:g} allows {limit}: repair or remove them, or allow "
        f"more (--max-bad {len(broken)})"
    )


def describe_emptied_classes(catalogue: Catalogue, broken: Sequence[Broken]) -> str:
    """The error message about classes whose images are all broken; empty if there are none."""
    left = np.delete(catalogue.labels, [b.position for b in broken])
    counts, before = (np.bincount(labels, minlength=len(catalogue.class_names)) for labels in (left, catalogue.labels))
    lost = [catalogue.class_names[k] for k in np.flatnonzero((counts == 0) & (before > 0)).tolist()]
    return f"every image of these classes is broken: {first_few(lost)}; repair them or remove the class" if lost else ""


def bad_limit(max_bad: int | float, total: int) -> int:
    """How many of `total` images may be broken: an integer as it is, a fraction below 1 of all, rounded up.

    >>> bad_limit(3, 1000), bad_limit(0.01, 1000), bad_limit(0.01, 50), bad_limit(0, 50)
    (3, 10, 1, 0)
    """
    if max_bad < 0 or (isinstance(max_bad, float) and max_bad >= 1):
        raise DataError(f"max_bad: expected a number of images, or a fraction below 1, got {max_bad}")
    return max_bad if isinstance(max_bad, int) else ceil(max_bad * total)


def _is_below(path: str, root: str) -> bool:
    real = os.path.realpath(path)
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def _read_decoded(path: Path, total: int) -> Decoded | None:
    try:
        content = json.loads(path.read_bytes())
        sizes = tuple((int(width), int(height)) for width, height in content["sizes"])
        broken = tuple(Broken(int(index), str(name), str(reason)) for index, name, reason in content["broken"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Decoded(sizes, broken) if len(sizes) == total else None
