"""Folds of the training classes: a share of them takes the place of the test classes, which are left alone.

Settings can thus be chosen by classes that a model has not seen, without looking at the test classes.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from metrix.data.catalogue import Catalogue
from metrix.errors import DataError, check_share

UNUSED = "unused"  # the part of what a fold leaves alone
LEAST_CLASSES = 2  # in a fold, and outside of it


def take_fold(catalogue: Catalogue, fold: str, seed: int = 0) -> Catalogue:
    """The catalogue with share I of N of the training classes as its test part, and no validation part.

    The folds are disjoint and together are all training classes. Which class is in which fold follows from a hash of
    the seed and its name.

    Args:
        catalogue: with a training part
        fold: `I/N`
        seed: of the choice

    Raises:
        DataError: there are too few classes for so many folds

    >>> from metrix.data import read_catalogue
    >>> take_fold(read_catalogue("glyphs-mini"), "1/4").part_names
    ('train', 'test')
    """
    number, of = check_share("fold", fold)
    classes = np.unique(catalogue.labels[catalogue.where("train")])
    if of < 2 or len(classes) // of < LEAST_CLASSES:
        most = len(classes) // LEAST_CLASSES
        raise DataError(
            f"fold: expected 2 to {most} folds of {len(classes)} training classes, each with at least {LEAST_CLASSES}, "
            f"got {of}"
            if most >= 2
            else f"fold: expected at least {2 * LEAST_CLASSES} training classes to divide, got {len(classes)}"
        )

    def rank(label: int) -> bytes:
        return hashlib.sha256(f"fold:{seed}:{catalogue.class_names[label]}".encode()).digest()

    held_out = sorted(classes.tolist(), key=rank)[number - 1 :: of]
    parts = np.where(np.isin(catalogue.labels, held_out), "test", "train")
    return dataclasses.replace(catalogue, parts=np.where(catalogue.parts == "train", parts, UNUSED))
