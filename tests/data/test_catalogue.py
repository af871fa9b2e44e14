from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metrix.data.catalogue import Catalogue, ImageRow
from metrix.errors import ChoiceError, DataError

ROOT = Path("photos")


def of(*rows: ImageRow, **options: object) -> Catalogue:
    return Catalogue.from_rows("folder", ROOT, rows, **options)  # type: ignore[arg-type]


def many(classes: int) -> Catalogue:
    return of(*(ImageRow(f"{k}/{n}.png", f"class {k}") for k in range(classes) for n in range(2)))


def classes_in(catalogue: Catalogue, part: str) -> set[str]:
    return {catalogue.class_names[k] for k in catalogue.labels[catalogue.where(part)].tolist()}


@pytest.mark.parametrize(("unseen", "tested"), [(0.5, 5), (0.2, 2), (0.01, 1), (0.99, 9), (0.0, 0), (1.0, 10)])
def test_split_divides_the_classes_and_no_class_is_on_both_sides(unseen: float, tested: int) -> None:
    split = many(10).split(unseen, seed=3)
    train, test = classes_in(split, "train"), classes_in(split, "test")
    assert len(test) == tested
    assert train.isdisjoint(test)
    assert train | test == set(split.class_names)
    assert len(split.where("train")) + len(split.where("test")) == len(split)


def test_split_follows_the_seed_only() -> None:
    assert np.array_equal(many(20).split(0.5, 1).parts, many(20).split(0.5, 1).parts)
    assert not np.array_equal(many(20).split(0.5, 1).parts, many(20).split(0.5, 2).parts)


def test_a_new_class_moves_at_most_one_other() -> None:
    before, after = classes_in(many(20).split(), "test"), classes_in(many(21).split(), "test")
    assert len(before - after) <= 1


def test_hold_out_takes_training_classes_and_leaves_the_test_alone() -> None:
    split = many(20).split()
    held = split.hold_out(0.3, seed=1)
    assert classes_in(held, "test") == classes_in(split, "test")
    assert len(classes_in(held, "val")) == 3
    assert classes_in(held, "val") | classes_in(held, "train") == classes_in(split, "train")
    assert classes_in(held, "val").isdisjoint(classes_in(held, "train"))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2])
def test_hold_out_refuses_shares_that_leave_nothing(fraction: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        many(4).split().hold_out(fraction)


def test_dividing_one_class_is_an_error() -> None:
    with pytest.raises(DataError, match="expected at least 2 classes to choose them from, got 1"):
        many(1).split(0.5)


def test_test_images_are_queries_and_gallery_at_once() -> None:
    rows = [
        ImageRow("a", "x", "train"),
        ImageRow("b", "y", "test"),
        ImageRow("c", "y", "query"),
        ImageRow("d", "y", "gallery"),
    ]
    catalogue = of(*rows)
    assert catalogue.where("test").tolist() == [1, 2, 3]
    assert catalogue.where("query").tolist() == [1, 2]
    assert catalogue.where("gallery").tolist() == [1, 3]
    with pytest.raises(ChoiceError, match="did you mean 'train'"):
        catalogue.where("trian")


@pytest.mark.parametrize("path", ["../secret.png", "a/../../b.png", "/etc/passwd", "a\0b.png"])
def test_paths_that_leave_the_root_are_refused(path: str) -> None:
    with pytest.raises(DataError, match="outside"):
        of(ImageRow("fine.png", "x"), ImageRow(path, "x"))


def test_names_with_dots_are_fine() -> None:
    assert len(of(ImageRow("a..b/..c.png", "x"))) == 1


def test_a_class_in_two_parts_is_a_problem_that_names_it() -> None:
    catalogue = of(ImageRow("a", "cat", "train"), ImageRow("b", "cat", "query"), ImageRow("c", "dog", "gallery"))
    with pytest.raises(DataError, match=r"1 class is in more than one part: cat \(test and train\)"):
        catalogue.require_sound()


def test_a_class_without_images_is_a_problem_that_names_it() -> None:
    with pytest.raises(DataError, match=r"1 class has no images: ghost"):
        of(ImageRow("a", "cat"), class_names=["cat", "ghost"]).require_sound()


def test_contradictions_are_problems_and_repetitions_are_notes() -> None:
    catalogue = of(ImageRow("a", "cat"), ImageRow("a", "cat"), ImageRow("b", "dog"))
    catalogue.require_sound()
    assert len(catalogue) == 2
    assert catalogue.notes == ("1 repeated row ignored",)
    with pytest.raises(DataError, match="a is listed as 'cat' and as 'dog'"):
        of(ImageRow("a", "cat"), ImageRow("a", "dog")).require_sound()
    with pytest.raises(DataError, match="a is listed in train and in test"):
        of(ImageRow("a", "cat", "train"), ImageRow("a", "cat", "test")).require_sound()


def test_two_boxes_of_one_file_are_two_images() -> None:
    assert len(of(ImageRow("a", "cat", box=(0, 0, 2, 2)), ImageRow("a", "dog", box=(2, 0, 4, 2)))) == 2


def test_all_problems_are_told_at_once() -> None:
    bad = of(
        ImageRow("a", "cat", "train"),
        ImageRow("b", "cat", "test"),
        ImageRow("a", "dog", "train"),
        class_names=["cat", "dog"],
    )
    assert len(bad.problems) == 3


def test_fingerprint_sees_sizes_labels_parts_and_boxes_but_not_the_place(tmp_path: Path) -> None:
    def at(folder: str, content: bytes = b"1234", **change: object) -> str:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        (root / "a.png").write_bytes(content)
        row = ImageRow("a.png", "cat", "train")._replace(**change)
        return Catalogue.from_rows("folder", root, [row]).fingerprint()

    assert at("one") == at("two")
    others = [
        at("one", b"12345"),
        at("one", class_name="dog"),
        at("one", part="test"),
        at("one", box=(0, 0, 1, 1)),
    ]
    assert len({at("one"), *others}) == 5


def test_labels_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="read-only"):
        many(2).labels[0] = 5
