"""Near-copies of training images among test images: re-encoded, at another size, in grey, or mirrored.

An image is compared by the edges of its thumbnail: the differences of neighbouring pixels of 16 × 16 in grey, with norm
1, so that the product of two is their similarity. Measured on photographs of birds and cars, copies that were saved
again as JPEG of quality 30, as GIF or at half the size are at least 0.97 similar, different photographs at most 0.90,
those of cars in the same studio included. Where different images are more alike, as drawings of letters are, the bar is
higher: ten times closer than a training image usually is to the nearest other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.data.catalogue import Catalogue
from metrix.data.copies import digest_file
from metrix.data.images import load_image
from metrix.data.survey import Broken, map_in_order
from metrix.messages import OnProgress, count, first_few

SIDE = 16  # of a thumbnail, in pixels
DECODED = 64  # shorter side in pixels that an image is decoded to, which is faster
ALIKE = 0.94  # the similarity from which two images are near-copies, at least …
STRICTEST = 0.99  # … and at most
CLOSER = 10  # times closer than usual is a near-copy
SAMPLE = 1000  # training images that say what is usual
MOST = 10  # training images that are listed for a test image
FLAT = 2.0  # standard deviation in levels, below which a thumbnail has nothing to compare
ROWS_AT_ONCE = 2048

SAME_FILE, SAME_PIXELS, SAME_VECTOR = "same file", "same pixels", "same vector"
NEAR_COPY, MIRRORED = "near-copy", "mirrored"


class Leak(NamedTuple):
    """A test image that training has seen: as the same file, the same thumbnail, a near-copy, or mirrored."""

    test: str  # paths
    train: str
    kind: str
    similarity: float  # of the edges of their thumbnails, at most 1
    test_class: str
    train_class: str


def find_leaks(
    catalogue: Catalogue,
    broken: Sequence[Broken] = (),
    *,
    flips: bool = False,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> list[Leak]:
    """Test images of which training (or validation) has a near-copy, with at most ten such images each, nearest first.

    Vectors, and images in memory, leak only if they are equal.

    Args:
        catalogue: images in parts.
        broken: images that cannot be decoded, which are left out.
        flips: also find mirrored copies.
        workers: threads for decoding.
        progress: called with (images done, images in all) while they are read.
    """
    gone = [one.position for one in broken]
    seen = np.setdiff1d(np.concatenate([catalogue.where("train"), catalogue.where("val")]), gone)
    test = np.setdiff1d(catalogue.where("test"), gone)
    if not len(seen) or not len(test):
        return []
    values = catalogue.pixels if catalogue.vectors is None else catalogue.vectors
    if values is not None:
        equal = _find_equal(values[test], values[seen], SAME_PIXELS if catalogue.vectors is None else SAME_VECTOR)
    else:
        thumbnails = _read_thumbnails(catalogue, np.concatenate([test, seen]), workers, progress)
        here, there = thumbnails[: len(test)], thumbnails[len(test) :]
        equal = _find_equal(here, there, SAME_PIXELS, only=here.std(axis=1) < FLAT)
        equal += _find_alike(here, there, flips)
    equal.sort(key=lambda one: (one[0], -one[3], one[1]))
    return [_name(catalogue, int(test[q]), int(seen[t]), kind, similarity) for q, t, kind, similarity in equal]


def _name(catalogue: Catalogue, test: int, train: int, kind: str, similarity: float) -> Leak:
    files = kind == SAME_PIXELS and catalogue.root is not None and catalogue.box(test) == catalogue.box(train)
    if files and digest_file(catalogue.file(test)) == digest_file(catalogue.file(train)):
        kind = SAME_FILE
    test_class, train_class = (catalogue.class_names[catalogue.labels[position]] for position in (test, train))
    return Leak(catalogue.paths[test], catalogue.paths[train], kind, similarity, test_class, train_class)


def describe_leaks(leaks: Sequence[Leak], noun: str) -> str:
    """The problem that leaks are; empty if there are none."""
    if not leaks:
        return ""
    tests = len({one.test for one in leaks})
    verb = "is a copy" if tests == 1 else "are copies"
    listed = first_few([f"{one.test} of {one.train} ({one.kind})" for one in leaks])
    return (
        f"{count(tests, f'test {noun}')} {verb} of what is trained on: {listed}; remove one of each pair, or put "
        "both into one part"
    )


def _read_thumbnails(
    catalogue: Catalogue, positions: NDArray[np.int64], workers: int | None, progress: OnProgress | None
) -> NDArray[np.uint8]:
    """Thumbnails in grey (images, 16 · 16)."""
    from PIL import Image

    def read(position: int) -> NDArray[np.uint8]:
        image = load_image(catalogue.file(position), catalogue.box(position), DECODED)
        return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)).reshape(-1)

    thumbnails = np.empty((len(positions), SIDE * SIDE), np.uint8)
    for n, thumbnail in enumerate(map_in_order(read, positions.tolist(), workers)):
        thumbnails[n] = thumbnail
        if progress is not None:
            progress(n + 1, len(positions))
    return thumbnails


Found = list[tuple[int, int, str, float]]  # row of a test image, row of a training image, kind, similarity


def _find_equal(
    test: NDArray[np.generic], train: NDArray[np.generic], kind: str, only: NDArray[np.bool_] | None = None
) -> Found:
    """Rows that are equal, of all test rows or of some `only`."""
    rows: dict[bytes, list[int]] = {}
    for t, row in enumerate(train):
        known = rows.setdefault(row.tobytes(), [])
        if len(known) < MOST:
            known.append(t)
    asked = range(len(test)) if only is None else np.flatnonzero(only).tolist()
    return [(q, t, kind, 1.0) for q in asked for t in rows.get(test[q].tobytes(), ())]


def _find_alike(test: NDArray[np.uint8], train: NDArray[np.uint8], flips: bool) -> Found:
    threshold = choose_likeness(train)
    found: Found = []
    for start in range(0, len(test), ROWS_AT_ONCE):
        some = test[start : start + ROWS_AT_ONCE]
        best = np.full((len(some), MOST), -1.0, np.float32)
        rows = np.full((len(some), MOST), -1)
        mirrored = np.zeros((len(some), MOST), np.bool_)
        views = [_find_edges(some)] + ([_find_edges(_mirror(some))] if flips else [])
        for first, block in _blocks(train):
            S = views[0] @ block.T  # (some, block)
            flipped = views[1] @ block.T if flips else S
            mirror = flipped > S
            np.maximum(S, flipped, out=S)
            for q in np.flatnonzero((threshold <= S).any(axis=1)).tolist():
                values = np.concatenate([best[q], S[q]])
                order = np.argsort(-values, kind="stable")[:MOST]
                rows[q] = np.concatenate([rows[q], first + np.arange(len(block))])[order]
                mirrored[q] = np.concatenate([mirrored[q], mirror[q]])[order]
                best[q] = values[order]
        for q, k in np.argwhere(best >= threshold).tolist():
            same = not mirrored[q, k] and np.array_equal(some[q], train[rows[q, k]])
            kind = MIRRORED if mirrored[q, k] else SAME_PIXELS if same else NEAR_COPY
            found.append((start + q, int(rows[q, k]), kind, min(float(best[q, k]), 1.0)))
    return found


def choose_likeness(thumbnails: NDArray[np.uint8], seed: int = 0) -> float:
    """The similarity from which two of these thumbnails (n, 16 · 16) are of near-copies."""
    if len(thumbnails) < 2:
        return ALIKE
    sample = np.sort(np.random.default_rng(seed).permutation(len(thumbnails))[:SAMPLE])
    asked = _find_edges(thumbnails[sample])
    nearest = np.full(len(sample), -1.0, np.float32)
    for first, block in _blocks(thumbnails):
        S = asked @ block.T
        own = np.flatnonzero((sample >= first) & (sample < first + len(block)))
        S[own, sample[own] - first] = -1.0
        np.maximum(nearest, S.max(axis=1), out=nearest)
    usual = 1 - float(np.median(nearest))
    return float(np.clip(1 - usual / CLOSER, ALIKE, STRICTEST))


def _blocks(thumbnails: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for start in range(0, len(thumbnails), 4 * ROWS_AT_ONCE):
        yield start, _find_edges(thumbnails[start : start + 4 * ROWS_AT_ONCE])


def _find_edges(thumbnails: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Differences to the next pixel to the right and below (n, 2 · 15 · 15), of norm 1; zeros where all is flat."""
    grey = thumbnails.reshape(-1, SIDE, SIDE).astype(np.float32)
    here = grey[:, :-1, :-1]
    edges = np.stack([grey[:, :-1, 1:] - here, grey[:, 1:, :-1] - here], axis=1).reshape(len(grey), -1)
    edges /= np.maximum(np.linalg.norm(edges, axis=1, keepdims=True), 1e-6)
    edges[thumbnails.std(axis=1) < FLAT] = 0.0
    return np.asarray(edges)


def _mirror(thumbnails: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return thumbnails.reshape(-1, SIDE, SIDE)[:, :, ::-1].reshape(len(thumbnails), -1)
