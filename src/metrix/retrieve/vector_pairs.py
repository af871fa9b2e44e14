"""The same images embedded by an old and a new model: items of an index whose images are at hand, or other images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.messages import count
from metrix.retrieve.adapter_measures import FEWEST
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import list_images, split_id
from metrix.retrieve.item_images import embed_items, has_image
from metrix.search import LABEL, Index
from metrix.train.batches import Report, ignore_report

LARGEST = 10  # images of a class that are taken where there are very many classes


@dataclass(frozen=True, eq=False)
class VectorPairs:
    """Vectors of the same images by two models."""

    new: NDArray[np.float32]  # (n, d')
    old: NDArray[np.float32]  # (n, d)
    labels: tuple[Any, ...] | None  # None where no two images are known to be of one class
    whence: str  # in words

    def __len__(self) -> int:
        return len(self.new)


def pair_items(
    index: Index, encoder: ImageEncoder, most: int, seed: int = 0, report: Report = ignore_report
) -> VectorPairs:
    """Embed items of an index again whose images are at hand: whole classes, drawn at random, of at most so many items.

    Items that went through an adapter themselves are among them, if there are any.

    Raises:
        InvalidInput: there are fewer than 25 such items.
    """
    if index.description.root is None and index.description.data is None:
        raise InvalidInput(
            f"{index.folder}: expected an index of images, got one of {index.description.examples}; fit an adapter in "
            "Python on pairs of vectors: metrix.search.adapters.fit_adapter, Index.keep_adapter"
        )
    ids, labels = _read_ids(index)
    chosen: list[int] = []
    missing = 0
    for rows in _by_class(labels, len(ids), most, np.random.default_rng(seed)):
        there = [row for row in rows if has_image(index, ids[row])]
        missing += len(rows) - len(there)
        if chosen and len(chosen) + len(there) > most:
            break
        chosen += there
    chosen = sorted(chosen[:most])
    vectors, places = embed_items(index, encoder, [ids[row] for row in chosen], report=report)
    kept = [chosen[place] for place in places.tolist()]
    missing += len(chosen) - len(kept)
    if len(kept) < FEWEST:
        others = "give other images with --images, which both models embed"
        raise InvalidInput(
            f"{index.folder}: expected at least {FEWEST} items whose images are in "
            f"{index.description.root or index.description.data}, got {len(kept)}"
            + (
                f" ({count(missing, 'image')} missing or broken); say where they are with --root, or"
                if missing
                else ";"
            )
            + f" {others}"
        )
    old = index.take(index.find([ids[row] for row in kept])).vectors
    whence = f"{count(len(kept), 'item')} of the index"
    return VectorPairs(vectors, old, _useful([labels[row] for row in kept] if labels else None), whence)


def pair_images(
    images: Sequence[str | os.PathLike[str]],
    new: ImageEncoder,
    old: ImageEncoder,
    most: int,
    *,
    root: Path | None = None,
    seed: int = 0,
    report: Report = ignore_report,
) -> VectorPairs:
    """Embed images by both models: whole classes, drawn at random, of at most so many images."""
    listed = list_images(images, root, check=False)
    if listed.root is None:
        raise InvalidInput(f"--images: expected image files, got the embedded data {listed.data}")
    labels = listed.columns[LABEL].to_pylist() if LABEL in listed.columns else None
    chosen: list[int] = []
    for rows in _by_class(labels, len(listed), most, np.random.default_rng(seed)):
        if chosen and len(chosen) + len(rows) > most:
            break
        chosen += rows
    chosen = sorted(chosen[:most])
    names = [split_id(listed.ids[row]) for row in chosen]
    files, boxes = [listed.root / path for path, _ in names], [box for _, box in names]
    by_old, rows_old, _ = old.embed_files(files, boxes, report)
    by_new, rows_new, _ = new.embed_files(files, boxes, report)
    both = np.intersect1d(rows_old, rows_new)
    if len(both) < FEWEST:
        raise InvalidInput(f"--images: expected at least {FEWEST} images that can be read, got {len(both)}")
    kept = None if labels is None else [labels[chosen[row]] for row in both.tolist()]
    whence = f"{count(len(both), 'image')} of {', '.join(str(one) for one in images)}"
    return VectorPairs(
        by_new[np.searchsorted(rows_new, both)], by_old[np.searchsorted(rows_old, both)], _useful(kept), whence
    )


def _read_ids(index: Index) -> tuple[list[Any], list[Any]]:
    """Id and label of every item; no labels where there are none."""
    ids: list[Any] = []
    labels: list[Any] = []
    for _, items in index.store.scan():
        ids += items.ids.to_pylist()
        labels += items.columns[LABEL].to_pylist() if LABEL in items.columns.column_names else []
    return ids, labels


def _by_class(labels: Sequence[Any] | None, total: int, most: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Rows of one class after the other, in random order; rows without a label only where none has one.

    Of large classes, only some, so that several classes are among the first `most`.
    """
    if not labels or all(label is None for label in labels):
        yield from ([row] for row in rng.permutation(total).tolist())
        return
    rows: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        if label is not None:
            rows.setdefault(label, []).append(row)
    names, largest = list(rows), max(LARGEST, most // len(rows))
    for n in rng.permutation(len(names)).tolist():
        mine = rows[names[n]]
        yield mine if len(mine) <= largest else rng.choice(mine, largest, replace=False).tolist()


def _useful(labels: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Labels, if two images have the same and two have others."""
    if labels is None or any(label is None for label in labels) or not 1 < len(set(labels)) < len(labels):
        return None
    return tuple(labels)
