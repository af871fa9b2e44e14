from __future__ import annotations

from pathlib import Path

import pytest

from metrix import data
from metrix.errors import DataError

from ..conftest import Paint


def test_class_folders_are_divided_by_class(photos: Path) -> None:
    dataset = data.open(photos, unseen=0.5, seed=1)
    assert dataset.catalogue.layout == "folder"
    train, test = set(dataset.train.class_names), set(dataset.test.class_names)
    assert (len(train), len(test)) == (3, 3)
    assert train | test == {f"class{k}" for k in range(6)}
    assert len(dataset.train) == len(dataset.test) == 9


def test_pixels_and_labels_belong_together(photos: Path) -> None:
    for part in (data.open(photos).train, data.open(photos).test):
        for n in range(len(part)):
            image, label = part[n]
            k = int(part.class_names[label].removeprefix("class"))
            assert part.paths[n].startswith(f"class{k}/")
            assert image[0].unique().tolist() == [40 * k]


def test_images_in_deeper_folders_belong_to_the_class_above(photos: Path, paint: Paint) -> None:
    paint(photos / "class0" / "more" / "x.JPG")
    catalogue = data.read_catalogue(photos)
    assert "class0/more/x.JPG" in catalogue.paths
    assert len(catalogue.class_names) == 6


def test_other_files_are_noted_and_hidden_ones_ignored(photos: Path) -> None:
    (photos / "class0" / "notes.txt").write_text("x")
    (photos / "readme.md").write_text("x")
    (photos / ".DS_Store").write_text("x")
    (photos / ".git").mkdir()
    catalogue = data.read_catalogue(photos)
    assert len(catalogue) == 18
    assert catalogue.notes == ("2 files that are not images in a class folder: class0/notes.txt, readme.md",)


def test_train_and_test_folders(tmp_path: Path, paint: Paint) -> None:
    for path in ("train/a/1.png", "train/b/1.png", "val/e/1.png", "test/c/1.png", "test/d/1.png"):
        paint(tmp_path / path)
    dataset = data.open(tmp_path)
    assert dataset.train.class_names == ("a", "b")
    assert dataset.val.class_names == ("e",)
    assert dataset.test.class_names == ("c", "d")


def test_train_query_and_gallery_folders(tmp_path: Path, paint: Paint) -> None:
    for path in ("train/a/1.png", "query/c/1.png", "gallery/c/2.png", "gallery/d/3.png"):
        paint(tmp_path / path)
    dataset = data.open(tmp_path)
    assert dataset.query.paths == ("query/c/1.png",)
    assert dataset.gallery.labels.tolist() == [0, 1]


@pytest.mark.parametrize("folders", [("train", "val"), ("train",), ("train", "query"), ("train", "test", "query")])
def test_parts_that_are_not_whole_are_not_taken_for_classes(
    tmp_path: Path, paint: Paint, folders: tuple[str, ...]
) -> None:
    for folder in folders:
        paint(tmp_path / folder / f"class of {folder}" / "1.png")
    with pytest.raises(DataError, match="expected the folders 'train' and 'test', or 'train', 'query' and"):
        data.open(tmp_path)


def test_a_class_called_train_is_a_class_among_others(photos: Path, paint: Paint) -> None:
    paint(photos / "train" / "engine.png")
    assert "train" in data.read_catalogue(photos).class_names


def test_a_class_in_both_parts(tmp_path: Path, paint: Paint) -> None:
    for path in ("train/a/1.png", "train/b/1.png", "test/b/2.png"):
        paint(tmp_path / path)
    with pytest.raises(DataError, match=r"in more than one part: b \(test and train\)"):
        data.open(tmp_path)


def test_an_empty_class_folder(photos: Path) -> None:
    (photos / "nothing here").mkdir()
    dataset = data.open(photos)
    assert "nothing here" not in dataset.catalogue.class_names
    assert "1 folder has no images and is no class: nothing here" in dataset.catalogue.notes


def test_pictures_without_class_folders(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"has no folders.*<class>/<image>"):
        data.open(tmp_path)


def test_folders_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="1 folder without any images"):
        data.open(tmp_path)


def test_links_may_stay_inside_but_not_lead_outside(photos: Path, tmp_path: Path, paint: Paint) -> None:
    (photos / "class0" / "again.png").symlink_to(photos / "class0" / "0.png")
    assert "class0/again.png" in data.open(photos).catalogue.paths
    outside = paint(tmp_path / "private" / "x.png")
    (photos / "class0" / "leak.png").symlink_to(outside)
    with pytest.raises(DataError, match=r"through a symbolic link: class0/leak\.png"):
        data.open(photos)
    (photos / "class0" / "leak.png").unlink()
    (photos / "leak").symlink_to(outside.parent, target_is_directory=True)
    with pytest.raises(DataError, match=r"through a symbolic link: leak/x\.png"):
        data.open(photos)


def test_the_root_itself_may_be_a_link(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos, target_is_directory=True)
    assert len(data.open(tmp_path / "link").catalogue) == 18


def test_links_are_followed_if_the_user_says_so(photos: Path, tmp_path: Path, paint: Paint) -> None:
    outside = paint(tmp_path / "elsewhere" / "x.png")
    (photos / "class0" / "leak.png").symlink_to(outside)
    (photos / "class1" / "more").symlink_to(outside.parent, target_is_directory=True)
    (photos / "class1" / "round").symlink_to(photos / "class1", target_is_directory=True)  # it would never end
    (outside.parent / "back").symlink_to(photos / "class1", target_is_directory=True)
    dataset = data.open(photos, follow_links=True)
    assert {"class0/leak.png", "class1/more/x.png"} <= set(dataset.catalogue.paths)
    assert len(dataset.catalogue) == 20
    report = data.check(photos, follow_links=True)
    assert report.ok
    with pytest.raises(DataError, match="--follow-links"):
        data.open(photos)
