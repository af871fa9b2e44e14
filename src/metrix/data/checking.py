"""`data.check`: a report on a dataset before training: its parts, broken images and other problems."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from metrix.data.catalogue import Catalogue
from metrix.data.copies import Copy, describe_copies, find_copies
from metrix.data.leaks import Leak, describe_leaks, find_leaks
from metrix.data.opening import MAX_BAD, read_catalogue
from metrix.data.survey import (
    Broken,
    decode_all,
    describe_emptied_classes,
    describe_missing,
    describe_too_many_broken,
    survey,
)
from metrix.data.training_parts import choose_validation, describe_few_test_classes, describe_untrainable
from metrix.errors import DataError
from metrix.messages import OnProgress, count

HOLDOUT = 0.1  # share of the training classes held out for model selection, unless the user says otherwise


@dataclasses.dataclass(frozen=True)
class PartSummary:
    """The size of a part: images (or vectors), classes, and images in the smallest, median and largest class."""

    images: int
    classes: int
    smallest_class: int
    median_class: float
    largest_class: int


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What `check` found out about a dataset.

    `problems` are errors to `data.open` or to training, or make what is measured wrong; `notes` are not. `copies` have
    the content of another image; `leaks` are test images that training has seen, if they were looked for. `sizes` are
    (width, height) of the smallest, the median and the largest image by area; `dim` is the length of vectors, where the
    data are vectors.
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
    dim: int | None = None
    copies: tuple[Copy, ...] = ()
    leaks: tuple[Leak, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a model can be trained on it and measured."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        listed = {name: [one._asdict() for one in getattr(self, name)] for name in ("broken", "copies", "leaks")}
        return {"ok": self.ok, **dataclasses.asdict(self), **listed}


def check(
    spec: str | os.PathLike[str],
    *,
    unseen: float = 0.5,
    seed: int = 0,
    holdout: float = HOLDOUT,
    layout: str | None = None,
    root: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
    max_bad: int | float = MAX_BAD,
    leaks: bool = False,
    flips: bool = False,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> CheckReport:
    """Report on a dataset: the parts and the problems that training would find.

    Args:
        spec: the data, as for `data.open`; so are the arguments that are not explained here.
        unseen: share of the classes kept for testing.
        seed: of the split.
        holdout: share of the training classes held out for model selection, as `metrix train` does.
        layout: the layout, if it is not recognised.
        root: folder of a manifest's paths.
        follow_links: allow symbolic links that lead outside the folder of the data.
        image_column: the column of images in Parquet files and data of Hugging Face.
        label_column: the column of labels there.
        max_bad: how many images may be broken.
        leaks: look for near-copies of training images in the test part: re-encoded, or of another size.
        flips: also for mirrored ones.
        workers: threads for decoding.
        progress: called with (images done, images in all).

    >>> report = check("glyphs-mini")
    >>> report.ok, report.parts["test"].classes
    (True, 60)
    """
    text = os.fspath(spec)
    try:
        catalogue = read_catalogue(
            spec,
            unseen=unseen,
            seed=seed,
            layout=layout,
            root=root,
            follow_links=follow_links,
            image_column=image_column,
            label_column=label_column,
            progress=progress,
        )
        found = survey(catalogue)
    except DataError as error:
        return CheckReport(text, problems=(str(error),))
    problems = [*catalogue.problems, describe_missing(catalogue, found)]
    broken: tuple[Broken, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    if catalogue.pixels is not None:
        height, width = catalogue.pixels.shape[1:]
        sizes = ((width, height),) * 3
    elif not found.missing and catalogue.vectors is None:
        decoded = decode_all(catalogue, found.stamp, workers=workers, progress=progress)
        broken = decoded.broken
        sizes = _smallest_median_largest(decoded.sizes)
        problems.append(describe_too_many_broken(catalogue, broken, max_bad))
        problems.append(describe_emptied_classes(catalogue, broken))
    fingerprint = catalogue.fingerprint()
    if not catalogue.problems:
        catalogue = choose_validation(catalogue, holdout, seed, broken)
        problems += describe_untrainable(catalogue, broken)
    notes = [*catalogue.notes, *_find_lonely(catalogue), describe_few_test_classes(catalogue, broken)]
    copies = [] if found.missing else find_copies(catalogue)
    notes += describe_copies(copies, catalogue.noun)
    leaked: list[Leak] = []
    if leaks and not found.missing:
        leaked = find_leaks(catalogue, broken, flips=flips, workers=workers, progress=progress)
        problems.append(describe_leaks(leaked, catalogue.noun))
    return CheckReport(
        spec=text,
        layout=catalogue.layout,
        root=None if catalogue.root is None else str(catalogue.root),
        fingerprint=fingerprint,
        parts={name: _summarise(catalogue, name, broken) for name in catalogue.part_names},
        sizes=sizes,
        broken=broken,
        problems=tuple(problem for problem in problems if problem),
        notes=tuple(note for note in notes if note),
        dim=None if catalogue.vectors is None else catalogue.vectors.shape[1],
        copies=tuple(copies),
        leaks=tuple(leaked),
    )


def _summarise(catalogue: Catalogue, part: str, broken: tuple[Broken, ...]) -> PartSummary:
    """The images labelled with exactly this part (a query is not counted as test), without the broken ones."""
    there = np.setdiff1d(np.flatnonzero(catalogue.parts == part), [b.position for b in broken])
    counts = np.unique(catalogue.labels[there], return_counts=True)[1]
    if not len(counts):
        return PartSummary(0, 0, 0, 0.0, 0)
    return PartSummary(len(there), len(counts), int(counts.min()), float(np.median(counts)), int(counts.max()))


def _smallest_median_largest(sizes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    ordered = sorted((size for size in sizes if size != (0, 0)), key=lambda size: (size[0] * size[1], size))
    return (ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else ()


def _find_lonely(catalogue: Catalogue) -> list[str]:
    """Notes on images without another of their class: of no use in training, or queries without an answer."""
    notes: list[str] = []
    lonely = np.bincount(catalogue.labels[catalogue.where("train")], minlength=1) == 1
    if lonely.any():
        noun = catalogue.noun
        notes.append(f"{count(int(lonely.sum()), 'training class')} with a single {noun}, which has no positive pair")
    gallery = np.bincount(catalogue.labels[catalogue.where("gallery")], minlength=len(catalogue.class_names))
    # An image that is itself in the gallery needs another one of its class there.
    answers = gallery[catalogue.labels] - (catalogue.parts == "test")
    hopeless = int((answers[catalogue.where("query")] < 1).sum())
    if hopeless:
        noun = catalogue.noun
        notes.append(f"{count(hopeless, f'query {noun}')} without any {noun} of the same class to find")
    return notes
