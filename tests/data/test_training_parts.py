"""The validation part that training uses, and data that cannot be trained on or measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrix import data
from metrix.data.catalogue import Catalogue, ImageRow
from metrix.data.training_parts import (
    can_select,
    choose_validation,
    count_answerable,
    describe_few_test_classes,
    describe_untrainable,
)
from metrix.errors import DataError
from metrix.train import Config
from metrix.train.batches import open_data, select_training_part
from tests.photos import write_photos


def with_classes(classes: int, per_class: int) -> Catalogue:
    rows = [ImageRow(f"{k}/{n}.png", f"class {k}", "train") for k in range(classes) for n in range(per_class)]
    tested = [ImageRow(f"test/{n}.png", "tested", "test") for n in range(2)]
    return Catalogue.from_rows("folder", Path("photos"), rows + tested)


def held_out(catalogue: Catalogue) -> int:
    return len(set(catalogue.labels[catalogue.where("val")].tolist()))


@pytest.mark.parametrize(
    ("classes", "per_class", "held"),
    [
        (12, 20, 3),  # a tenth would be one class, on which every epoch has Recall@1 = 1
        (12, 14, 4),  # 3 classes would be 42 images
        (12, 5, 0),  # a third of the classes is 20 images: too few to tell epochs apart
        (6, 100, 0),
        (100, 10, 10),  # a tenth is enough
    ],
)
def test_few_classes(classes: int, per_class: int, held: int) -> None:
    found = choose_validation(with_classes(classes, per_class), 0.1)
    assert held_out(found) == held
    assert bool(found.notes) == (held != round(0.1 * classes))  # said unless it is what was asked for
    assert "no epoch is selected" in "".join(found.notes) or held > 0


def test_enough_classes_are_the_ones_that_hold_out_takes() -> None:
    whole = with_classes(100, 10)
    assert (choose_validation(whole, 0.1, seed=3).parts == whole.hold_out(0.1, seed=3).parts).all()


def test_a_validation_part_of_the_data_is_taken_as_it_is() -> None:
    rows = [ImageRow(f"{k}/{n}.png", f"class {k}", "val" if k else "train") for k in range(3) for n in range(2)]
    catalogue = Catalogue.from_rows("folder", Path("photos"), rows)
    assert choose_validation(catalogue, 0.1) is catalogue


def test_a_single_validation_class_selects_nothing() -> None:
    catalogue = choose_validation(parts(a="train train", b="train train", c="val val val", d="test", e="test"), 0.1)
    assert not can_select(catalogue)
    assert "a single class, of which no answer can be wrong, so no epoch is selected" in "".join(catalogue.notes)


def parts(**given: str) -> Catalogue:
    """A catalogue of images by class: `a="train train"` are two training images of class a."""
    rows = [ImageRow(f"{name}/{n}", name, part) for name, text in given.items() for n, part in enumerate(text.split())]
    return Catalogue.from_rows("manifest", Path("photos"), rows)


@pytest.mark.parametrize(
    ("catalogue", "message"),
    [
        (parts(a="train train", b="train train", c="gallery"), "got no query images"),
        (parts(a="train train", b="train train", c="query query"), "got no gallery images"),
        (parts(a="query gallery", b="query gallery"), "at least 2 classes to train on, got 0"),
        (parts(a="train train", b="test test"), "at least 2 classes to train on, got 1"),
        (parts(a="train train", b="train", c="test test"), "at least 2 classes to measure the model on, got 1"),
        (parts(a="train", b="train", c="test", d="test"), "another one of their class to find, got none"),
    ],
)
def test_data_that_cannot_be_trained_on_or_measured(catalogue: Catalogue, message: str) -> None:
    assert message in "".join(describe_untrainable(catalogue))


def test_data_that_can() -> None:
    assert describe_untrainable(parts(a="train train", b="train", c="query gallery", d="gallery")) == []


@pytest.mark.parametrize(("tested", "few"), [(1, False), (2, True), (4, True), (5, False)])
def test_few_test_classes_are_pointed_out(tested: int, few: bool) -> None:
    catalogue = parts(a="train train", b="train", **{f"t{n}": "test test" for n in range(tested)})
    assert bool(describe_few_test_classes(catalogue)) == few
    assert bool(describe_untrainable(catalogue)) == (tested == 1)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_check_and_training_agree(classes: int, tmp_path: Path) -> None:
    spec = str(write_photos(tmp_path, classes=classes, per_class=2))
    report = data.check(spec)
    config = Config().with_values({"data": spec})
    if report.ok:
        assert report.parts["train"].classes == select_training_part(config, open_data(config)).num_classes
    else:
        with pytest.raises(DataError) as refusal:
            select_training_part(config, open_data(config))
        assert report.problems[-1] in str(refusal.value)
    assert report.ok == (classes == 4)


def test_check_shows_the_parts_of_training() -> None:
    report, dataset = data.check("glyphs-mini"), open_data(Config().with_values({"data": "glyphs-mini"}))
    assert {name: part.images for name, part in report.parts.items()} == {
        name: len(dataset.part(name)) for name in ("train", "val", "test")
    }


def test_validation_rows_of_a_manifest_are_validation(tmp_path: Path) -> None:
    write_photos(tmp_path, classes=4, per_class=2)
    splits = ("train", "train", "validation", "test")
    lines = [f"{k},kind {k}/{n}.jpg,{split}" for k, split in enumerate(splits) for n in range(2)]
    (tmp_path / "list.csv").write_text("\n".join(["label,path,split", *lines]))
    dataset = open_data(Config().with_values({"data": str(tmp_path / "list.csv")}))
    assert dataset.val.class_names == ("2",)
    assert dataset.test.class_names == ("3",)


def test_a_manifest_without_test_rows_is_measured_on_its_validation_rows(tmp_path: Path) -> None:
    write_photos(tmp_path, classes=3, per_class=2)
    splits = ("train", "train", "validation")
    lines = [f"{k},kind {k}/{n}.jpg,{split}" for k, split in enumerate(splits) for n in range(2)]
    (tmp_path / "list.csv").write_text("\n".join(["label,path,split", *lines]))
    dataset = data.open(tmp_path / "list.csv")
    assert dataset.catalogue.part_names == ("train", "test")
    assert "validation rows are the test part" in dataset.catalogue.notes[0]


def test_very_many_classes_of_one_image_take_no_time() -> None:
    import time

    rows = [ImageRow(f"{n}.png", f"c{n:06d}", "train") for n in range(60_000)]
    catalogue = Catalogue.from_rows("manifest", Path("photos"), rows)
    start = time.monotonic()
    found = choose_validation(catalogue, 0.1)
    assert time.monotonic() - start < 30  # one trial after another would be twenty thousand of half a second
    assert "no epoch is selected" in found.notes[-1]


@pytest.mark.parametrize("per_class", [2, 3, 7, 20])
def test_the_fewest_classes_that_suffice_are_held_out(per_class: int) -> None:
    rows = [ImageRow(f"{c}/{n}.png", f"c{c}", "train") for c in range(100) for n in range(per_class if c % 3 else 1)]
    catalogue = Catalogue.from_rows("manifest", Path("photos"), rows)
    counts = [count_answerable(catalogue.hold_out(n / 100), "val") for n in range(1, 34)]
    assert counts == sorted(counts)
    found = choose_validation(catalogue, 0.02)
    enough = [n for n, answerable in enumerate(counts, 1) if answerable >= 50 and n >= 3]
    held = len(set(found.labels[found.parts == "val"].tolist()))
    assert held == (enough[0] if enough else 0)
