from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from metrix import data
from metrix.errors import DataError

from ..conftest import Paint

FULL: dict[str, list[Any]] = {
    "label": [7, 7, 3, 3, 3],
    "path": ["a.png", "b.png", "c.png", "d.png", "e.png"],
    "split": ["train", "train", "validation", "validation", "validation"],
    "is_query": [None, None, True, False, True],
    "is_gallery": [None, None, False, True, True],
    "category": ["cat", "cat", "dog", "dog", "dog"],
    "sequence": [None, "", "shoot 1", "2", None],
    "x_1": [2, None, None, None, None],
    "x_2": [8, None, None, None, None],
    "y_1": [1, None, None, None, None],
    "y_2": [5, None, None, None, None],
}


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, paint: Paint) -> None:
    for name in FULL["path"]:
        paint(tmp_path / name)


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return path
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def without(*names: str, **changed: list[Any]) -> dict[str, list[Any]]:
    return {name: values for name, values in {**FULL, **changed}.items() if name not in names}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_all_columns(tmp_path: Path, suffix: str) -> None:
    dataset = data.open(write(tmp_path / f"list{suffix}", FULL))
    assert dataset.catalogue.layout == "manifest"
    assert dataset.train.paths == ("a.png", "b.png")
    assert dataset.train.class_names == ("7",)
    assert dataset.query.paths == ("c.png", "e.png")
    assert dataset.gallery.paths == ("d.png", "e.png")
    assert dataset.catalogue.categories == ("cat", "cat", "dog", "dog", "dog")
    assert dataset.catalogue.sequences == ("", "", "shoot 1", "2", "")
    assert dataset.query.sequences is not None
    assert dataset.query.sequences.tolist() == ["shoot 1", ""]
    # The crop box is x_1 <= x < x_2, y_1 <= y < y_2; the second image has none.
    assert dataset.train[0][0].shape == (3, 4, 6)
    assert dataset.train[1][0].shape == (3, 10, 12)


def test_the_crop_takes_the_right_place(tmp_path: Path) -> None:
    from PIL import Image

    picture = Image.new("RGB", (12, 10), "white")
    picture.paste((255, 0, 0), (2, 1, 8, 5))
    picture.save(tmp_path / "a.png")
    image = data.open(write(tmp_path / "list.csv", FULL)).train[0][0]
    assert image.flatten(1).unique(dim=1).tolist() == [[255], [0], [0]]


def test_label_and_path_alone_are_divided_by_class(tmp_path: Path) -> None:
    few = {"label": FULL["label"], "path": FULL["path"]}
    dataset = data.open(write(tmp_path / "list.csv", few))
    assert {len(dataset.train), len(dataset.test)} == {2, 3}


def test_validation_without_flags_is_query_and_gallery(tmp_path: Path) -> None:
    dataset = data.open(write(tmp_path / "list.csv", without("is_query", "is_gallery")))
    assert dataset.query.paths == dataset.gallery.paths == ("c.png", "d.png", "e.png")
    assert not dataset.separate_gallery


def test_images_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    manifest = write(tmp_path / "lists" / "list.csv", FULL)
    with pytest.raises(DataError, match="5 of 5 images are not in"):
        data.open(manifest)
    assert len(data.open(manifest, root=tmp_path).catalogue) == 5


def test_absolute_paths_are_taken_below_the_root_only(tmp_path: Path) -> None:
    below = [str(tmp_path / name) for name in FULL["path"]]
    assert data.open(write(tmp_path / "list.csv", without(path=below))).train.paths == ("a.png", "b.png")
    below[1] = "/etc/hostname"
    with pytest.raises(DataError, match="outside"):
        data.open(write(tmp_path / "list.csv", without(path=below)))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (without("label", lable=FULL["label"]), r"expected the columns label, path .*; rename 'lable'\?"),
        (without("path"), "expected the columns label, path .*, got label, split"),
        (
            without("is_query", is_querry=FULL["is_query"]),
            "unknown column 'is_querry'; did you mean 'is_query'",
        ),
        (without("x_2"), "but not x_2; a crop box needs all four"),
        (
            without(split=["train", "train", "valid", "valid", "valid"]),
            "row 3: unknown split 'valid'; did you mean",
        ),
        (
            without(is_query=["", "", "perhaps", "", ""]),
            "row 3: is_query: expected true, false, 1, 0 or nothing, got 'perhaps'",
        ),
        (without(is_query=[0] * 5, is_gallery=[0] * 5), "row 3: neither is_query nor is_gallery"),
        (without(x_2=[1, "", "", "", ""]), r"row 1: crop box: expected x_1 < x_2 and y_1 < y_2, got \(2, 1, 1, 5\)"),
        (without(x_2=["wide", "", "", "", ""]), "row 1: crop box: expected four finite numbers, got"),
        (without(label=["", 7, 3, 3, 3]), "row 1: expected a label and a path"),
        (without(label=[3, 7, 3, 3, 3]), r"more than one part: 3 \(test and train\)"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.open(write(tmp_path / "list.csv", columns))


def test_an_image_listed_under_two_labels(tmp_path: Path) -> None:
    rows = {"label": ["cat", "dog"], "path": ["a.png", "a.png"]}
    with pytest.raises(DataError, match=r"a\.png is listed as 'cat' and as 'dog'"):
        data.open(write(tmp_path / "list.csv", rows))


def test_columns_of_ones_own_are_left_alone(tmp_path: Path) -> None:
    assert len(data.open(write(tmp_path / "list.csv", without(photographer=list("abcde")))).catalogue) == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", b"", "is empty; expected a table"),
        ("list.csv", b"label,path\ncat\n", "row 1: expected 2 values, got 1"),
        ("list.csv", b"label,path\n\xff\xfe,b\n", "not a table of text in UTF-8"),
        ("list.csv", b"label,path\n", "lists no images"),
        ("list.parquet", b"hello", "cannot be read as a Parquet table"),
        (
            "list.xlsx",
            b"hello",
            r"is not a manifest; expected a folder, a \.csv, \.tsv, \.parquet file, an uncompressed tar file",
        ),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.open(tmp_path / name)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"\xef\xbb\xbflabel,path\ncat,a.png\ndog,b.png\n")
    assert len(data.open(tmp_path / "list.csv").catalogue) == 2


@pytest.mark.parametrize(("name", "delimiter"), [("list.csv", ";"), ("list.tsv", "\t"), ("list.csv", "\t")])
def test_other_delimiters(tmp_path: Path, name: str, delimiter: str) -> None:
    with (tmp_path / name).open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow([*FULL, "a note, with a comma"])
        writer.writerows([*row, "x, y"] for row in zip(*FULL.values(), strict=True))
    dataset = data.open(tmp_path / name)
    assert dataset.train.paths == ("a.png", "b.png")
    assert dataset.query.paths == ("c.png", "e.png")


def test_an_error_names_the_columns_of_a_table_with_semicolons(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("Lable;file\n1;a.png\n")
    with pytest.raises(DataError, match="got Lable, file; rename 'Lable'"):
        data.open(tmp_path / "list.csv")


def test_absolute_paths_may_reach_the_root_through_a_link(tmp_path: Path) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path, target_is_directory=True)
    paths = [str(link / name) for name in FULL["path"]]
    assert data.open(write(tmp_path / "list.csv", without(path=paths))).train.paths == ("a.png", "b.png")


def test_the_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="root: expected a folder, got"):
        data.open(write(tmp_path / "list.csv", FULL), root=tmp_path / "none")
