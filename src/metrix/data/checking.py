"""`data.check`: what is there, what is broken, what the split would be."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from metrix.data.catalogue import Catalogue
from metrix.data.opening import MAX_BAD, classes_emptied, read_catalogue
from metrix.data.survey import Broken, Progress, bad_limit, decode_all, missing_files, survey
from metrix.errors import DataError
from metrix.messages import count


@dataclasses.dataclass(frozen=True)
class PartSummary:
    """One part in numbers."""

    images: int
    classes: int
    smallest_class: int
    median_class: float
    largest_class: int


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """All that can be said about a dataset before training on it.

    `problems` keep it from being used, `notes` do not. `sizes` are (width, height) of the smallest, the
    median and the largest image by area.
    """

    spec: str
    layout: str | None = None
    root: str | None = None
    fingerprint: str | None = None
    parts: dict[str, PartSummary] = dataclasses.field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = ()
    broken: tuple[Broken, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether `data.open` would take it."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self), "broken": [b._asdict() for b in self.broken]}


def check(
    spec: str | os.PathLike[str],
    *,
    unseen: float = 0.5,
    seed: int = 0,
    layout: str | None = None,
    root: str | os.PathLike[str] | None = None,
    max_bad: int | float = MAX_BAD,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Read everything that `data.open` with the same arguments would, and report instead of raising.

    >>> check("photos").ok  # doctest: +SKIP
    True
    """
    text = os.fspath(spec)
    try:
        catalogue = read_catalogue(spec, unseen=unseen, seed=seed, layout=layout, root=root)
        found = survey(catalogue)
    except DataError as error:
        return CheckReport(text, problems=(str(error),))
    problems = list(catalogue.problems)
    broken: tuple[Broken, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    if catalogue.pixels is not None:
        height, width = catalogue.pixels.shape[1:]
        sizes = ((width, height),) * 3
    elif found.missing:
        problems.append(missing_files(catalogue, found))
    else:
        decoded = decode_all(catalogue, found.stamp, workers=workers, progress=progress)
        broken = decoded.broken
        sizes = _three_sizes(decoded.sizes)
        limit = bad_limit(max_bad, len(catalogue))
        if len(broken) > limit:
            problems.append(
                f"{len(broken):,} of {count(len(catalogue), 'image')} cannot be read; max_bad={max_bad} allows {limit}"
            )
        if emptied := classes_emptied(catalogue, broken):
            problems.append(emptied)
    return CheckReport(
        spec=text,
        layout=catalogue.layout,
        root=None if catalogue.root is None else str(catalogue.root),
        fingerprint=catalogue.fingerprint(),
        parts={name: _summary(catalogue, name, broken) for name in catalogue.part_names},
        sizes=sizes,
        broken=broken,
        problems=tuple(problems),
        notes=(*catalogue.notes, *_remarks(catalogue)),
    )


def _summary(catalogue: Catalogue, part: str, broken: tuple[Broken, ...]) -> PartSummary:
    """Numbers of the images that carry exactly this part, without the broken ones."""
    there = np.setdiff1d(np.flatnonzero(catalogue.parts == part), [b.position for b in broken])
    counts = np.unique(catalogue.labels[there], return_counts=True)[1]
    if not len(counts):
        return PartSummary(0, 0, 0, 0.0, 0)
    return PartSummary(len(there), len(counts), int(counts.min()), float(np.median(counts)), int(counts.max()))


def _three_sizes(sizes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    ordered = sorted((size for size in sizes if size != (0, 0)), key=lambda size: (size[0] * size[1], size))
    return (ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else ()


def _remarks(catalogue: Catalogue) -> list[str]:
    """What training or testing will not profit from."""
    remarks: list[str] = []
    lonely = np.bincount(catalogue.labels[catalogue.where("train")], minlength=1) == 1
    if lonely.any():
        remarks.append(f"{count(int(lonely.sum()), 'training class')} with a single image, so without a positive pair")
    gallery = np.bincount(catalogue.labels[catalogue.where("gallery")], minlength=len(catalogue.class_names))
    # An image that is itself in the gallery needs another one of its class there.
    answers = gallery[catalogue.labels] - (catalogue.parts == "test")
    hopeless = int((answers[catalogue.where("query")] < 1).sum())
    if hopeless:
        remarks.append(f"{count(hopeless, 'query image')} without any image of the same class to find")
    return remarks
