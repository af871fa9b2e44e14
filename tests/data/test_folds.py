"""Folds of the training classes are disjoint, complete, the same for all, and leave the test classes alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from metrix.data import Catalogue, read_catalogue
from metrix.data.folds import take_fold
from metrix.errors import DataError, InvalidInput
from metrix.train.batches import open_data, select_training_part
from metrix.train.config import Config


def classes_of(catalogue: Catalogue, part: str) -> set[int]:
    return set(catalogue.labels[catalogue.where(part)].tolist())


@pytest.mark.parametrize("of", [2, 3, 5])
def test_folds_are_disjoint_and_together_the_training_classes(of: int) -> None:
    whole = read_catalogue("glyphs-mini")
    folds = [take_fold(whole, f"{n}/{of}") for n in range(1, of + 1)]
    held = [classes_of(fold, "test") for fold in folds]
    assert sum(map(len, held)) == len(set().union(*held))
    assert set().union(*held) == classes_of(whole, "train")
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for fold, apart in zip(folds, held, strict=True):
        assert classes_of(fold, "train") == classes_of(whole, "train") - apart
        assert not len(fold.where("val"))


def test_the_test_classes_are_in_no_part_of_a_fold() -> None:
    whole = read_catalogue("glyphs-mini")
    fold = take_fold(whole, "1/4")
    assert classes_of(whole, "test")
    assert not classes_of(whole, "test") & (classes_of(fold, "train") | classes_of(fold, "test"))
    assert not set(whole.where("test").tolist()) & set(np.flatnonzero(fold.parts != "unused").tolist())


def test_train_classes_are_drawn_from_outside_of_the_fold() -> None:
    config = Config().with_values({"data": "glyphs-mini", "train_classes": 9, "fold": "2/3"})
    dataset = open_data(config)
    trained = set(select_training_part(config, dataset).class_names)
    assert len(trained) == 9
    assert not trained & set(dataset.test.class_names)
    assert set(dataset.test.class_names) == set(open_data(config.with_values({"train_classes": 5})).test.class_names)


def keep_training_classes(count: int) -> Catalogue:
    whole = read_catalogue("glyphs-mini")
    left_out = sorted(classes_of(whole, "train"))[count:]
    return dataclasses.replace(whole, parts=np.where(np.isin(whole.labels, left_out), "val", whole.parts))


def test_too_many_folds_and_malformed_ones() -> None:
    nine = keep_training_classes(9)
    with pytest.raises(DataError, match="expected 2 to 4 folds of 9 training classes, each with at least 2, got 5"):
        take_fold(nine, "1/5")
    with pytest.raises(DataError, match="at least 4 training classes to divide, got 3"):
        take_fold(keep_training_classes(3), "1/2")
    with pytest.raises(DataError, match="2 to"):
        take_fold(read_catalogue("glyphs-mini"), "1/1")
    with pytest.raises(InvalidInput, match="expected I/N with I from 1 to N, such as 1/3, got '4/3'"):
        Config().with_values({"fold": "4/3"})
