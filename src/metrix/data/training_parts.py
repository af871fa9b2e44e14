"""The parts of a dataset as training uses them, and what keeps data from being trained on and measured.

`data.check` and training both take their parts and their verdict from here.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metrix.data.catalogue import Catalogue
from metrix.data.survey import Broken
from metrix.errors import DataError

LEAST_CLASSES = 3  # of validation: with a single class, every neighbour is of the right one
LEAST_QUERIES = 50  # validation images with another of their class: a difference of one is then 2 points
FEW_CLASSES = 5  # of testing: below it, figures are shown with a caution
LARGEST_SHARE = 3  # no more than one training class in three is held out to reach these


def choose_validation(catalogue: Catalogue, holdout: float, seed: int = 0, broken: Sequence[Broken] = ()) -> Catalogue:
    """The catalogue with the validation part that models are selected on; a note says if it is not what was asked for.

    A validation part of the data itself is taken as it is. Otherwise a share `holdout` of the training classes is held
    out: at least 3 classes with at least 50 queries, which may need a larger share, but never more than a third of
    the classes. Where that is not enough to tell epochs apart, nothing is held out and the last epoch is the model.

    Args:
        catalogue: with a training part
        holdout: share of the training classes; 0 holds out none
        seed: of the choice
        broken: images that are not used
    """
    if "val" in catalogue.part_names:
        if can_select(catalogue, broken):
            return catalogue
        why = (
            "the validation part has a single class, of which no answer can be wrong"
            if count_answerable(catalogue, "val", broken)
            else f"no validation {catalogue.noun} has another one of its class"
        )
        return _with_note(catalogue, f"{why}, so no epoch is selected: the model is that of the last")
    total = _count_classes(catalogue, "train")
    if holdout == 0 or total < 2:
        return catalogue
    asked = _count_classes(catalogue.hold_out(holdout, seed), "val")
    numbers = range(max(asked, LEAST_CLASSES), max(asked, total // LARGEST_SHARE) + 1)
    # More classes include those of fewer, so that the smallest number is found by halving.
    place = bisect_left(
        numbers,
        LEAST_QUERIES,
        key=lambda number: count_answerable(catalogue.hold_out(number / total, seed), "val", broken),
    )
    if place < len(numbers):
        number = numbers[place]
        found = catalogue.hold_out(number / total, seed)
        if number == asked:
            return found
        return _with_note(
            found,
            f"{number} of {total} training classes are held out to select the epoch: fewer (holdout={holdout:g}) "
            "could not tell epochs apart; holdout=0 trains on all of them",
        )
    return _with_note(
        catalogue,
        f"no epoch is selected, the model is that of the last: {total} training classes are too few to hold out "
        f"{LEAST_CLASSES} with {LEAST_QUERIES} {catalogue.noun}s, which it takes to tell epochs apart",
    )


def describe_untrainable(catalogue: Catalogue, broken: Sequence[Broken] = ()) -> list[str]:
    """Why a model cannot be trained on the training part or measured on the test part; empty if both can be done."""
    problems = []
    classes = _count_good_classes(catalogue, "train", broken)
    if classes < 2:
        problems.append(
            f"expected at least 2 classes to train on, got {classes}; add classes, or lower unseen or holdout"
        )
    if not has_test_part(catalogue):
        return problems  # a model for use, on which nothing is measured
    if not len(_good(catalogue, "query", broken)) or not len(_good(catalogue, "gallery", broken)):
        missing = "query" if not len(_good(catalogue, "query", broken)) else "gallery"
        problems.append(
            f"expected {catalogue.noun}s to measure the model on, got no {missing} {catalogue.noun}s; add some to the "
            "test part, or leave the split to metrix (a manifest without the column split, a folder of class folders)"
        )
    elif not count_answerable(catalogue, "query", broken):
        problems.append(
            f"expected test {catalogue.noun}s with another one of their class to find, got none, so that nothing can "
            f"be measured; add {catalogue.noun}s to the test classes"
        )
    elif _count_good_classes(catalogue, "gallery", broken) < 2:
        problems.append(
            "expected at least 2 classes to measure the model on, got 1, of which no answer can be wrong: every "
            "measure would be 100 %; raise unseen, or add classes to the test part"
        )
    return problems


def describe_few_test_classes(catalogue: Catalogue, broken: Sequence[Broken] = ()) -> str:
    """A note on figures that will be measured on few classes, or not at all; empty where there are enough classes."""
    if not has_test_part(catalogue):
        return (
            "no classes are kept for testing: nothing can be measured on this model; measure one that was trained with "
            "the same settings and keeps some (metrix train --like RUN --all trains such a pair)"
        )
    classes = _count_good_classes(catalogue, "gallery", broken)
    if not 1 < classes < FEW_CLASSES:
        return ""
    return (
        f"the test part has {classes} classes only: figures measured on so few mean little, because another choice of "
        "classes could give very different ones"
    )


def has_test_part(catalogue: Catalogue) -> bool:
    """Whether any image is meant for testing."""
    return len(catalogue.where("test")) > 0


def can_select(catalogue: Catalogue, broken: Sequence[Broken] = ()) -> bool:
    """Whether the validation part can tell epochs apart: it has images with another of their class, and two classes."""
    return count_answerable(catalogue, "val", broken) > 0 and _count_good_classes(catalogue, "val", broken) > 1


def require_trainable(catalogue: Catalogue, name: str, broken: Sequence[Broken] = ()) -> None:
    """Raise a DataError that lists all that keeps the data from being trained on and measured."""
    problems = describe_untrainable(catalogue, broken)
    if problems:
        raise DataError(f"{name}: {'; '.join(problems)}")


def count_answerable(catalogue: Catalogue, part: str, broken: Sequence[Broken] = ()) -> int:
    """How many images of a part have another image of their class to find: in the part, or in the gallery of queries.

    >>> from metrix.data import read_catalogue
    >>> count_answerable(read_catalogue("glyphs-mini"), "test")
    732
    """
    at = _good(catalogue, part, broken)
    searched = _good(catalogue, "gallery", broken) if part == "query" else at
    available = np.bincount(catalogue.labels[searched], minlength=len(catalogue.class_names))
    # an image that is itself searched needs another one of its class
    return int((available[catalogue.labels[at]] > np.isin(at, searched)).sum())


def _good(catalogue: Catalogue, part: str, broken: Sequence[Broken]) -> NDArray[np.int64]:
    return np.setdiff1d(catalogue.where(part), [b.position for b in broken])


def _count_good_classes(catalogue: Catalogue, part: str, broken: Sequence[Broken]) -> int:
    return len(np.unique(catalogue.labels[_good(catalogue, part, broken)]))


def _count_classes(catalogue: Catalogue, part: str) -> int:
    return len(np.unique(catalogue.labels[catalogue.where(part)]))


def _with_note(catalogue: Catalogue, note: str) -> Catalogue:
    return dataclasses.replace(catalogue, notes=(*catalogue.notes, note))
