"""Parquet files with images as a dataset: the same as the folder that they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from metrix import data
from metrix.errors import DataError, MetrixWarning

from ...tables import CONTENT, build_table, declare, list_files, of_classes, write_parquet


@pytest.mark.parametrize("options", [{}, {"plain": True}, {"numbers": True}], ids=str)
def test_a_file_is_what_was_written_into_it(photos: Path, tmp_path: Path, options: dict[str, bool]) -> None:
    files = list_files(photos)
    unpacked = data.open(photos)
    packed = data.open(write_parquet(tmp_path / "photos.parquet", build_table(files, **options)))
    assert packed.catalogue.layout == "parquet"
    assert packed.catalogue.paths[4] == "photos.parquet/image/4"
    assert packed.train.class_names == unpacked.train.class_names
    for part in ("train", "test"):
        pixels = {str(photos / path): unpacked.part(part).image(n) for n, path in enumerate(unpacked.part(part).paths)}
        read = {
            str(files[int(path.rpartition("/")[2])]): packed.part(part).image(n)
            for n, path in enumerate(packed.part(part).paths)
        }
        assert pixels.keys() == read.keys()
        assert all(torch.equal(pixels[path], read[path]) for path in pixels)


def test_a_cache_of_pixels(photos: Path, tmp_path: Path, own_cache: Path) -> None:
    path = write_parquet(tmp_path / "photos.parquet", build_table(list_files(photos)))
    cached, plain = data.open(path, cache="disk"), data.open(path, short_side=256)
    assert torch.equal(cached.train.image(3), plain.train.image(3))


def test_splits_in_the_names_of_files_or_folders(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    seen = of_classes(files, lambda name: name < "class3")
    for n, place in enumerate(("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")):
        write_parquet(tmp_path / "a" / place, build_table(seen[n::2]))
    write_parquet(
        tmp_path / "a" / "data" / "test-00000.parquet", build_table(of_classes(files, lambda n: n > "class2"))
    )
    write_parquet(tmp_path / "b" / "train" / "0.parquet", build_table(seen))
    write_parquet(tmp_path / "b" / "test" / "0.parquet", build_table(of_classes(files, lambda n: n > "class2")))
    for folder in ("a", "b"):
        catalogue = data.read_catalogue(tmp_path / folder)
        assert (catalogue.layout, catalogue.part_names) == ("parquet", ("train", "test"))
        assert {catalogue.class_names[k] for k in catalogue.labels[catalogue.where("train")]} == {
            *("class0", "class1", "class2")
        }
        assert not catalogue.notes
    write_parquet(tmp_path / "b" / "more.parquet", build_table(files))
    with pytest.raises(DataError, match=r"expected every file to be of a split .* got more\.parquet"):
        data.read_catalogue(tmp_path / "b")


def test_classes_of_the_test_split_that_are_in_training_are_split_as_those_of_a_folder(
    photos: Path, tmp_path: Path
) -> None:
    files = list_files(photos)
    write_parquet(tmp_path / "c" / "train.parquet", build_table(files[::2]))
    write_parquet(tmp_path / "c" / "test.parquet", build_table(files[1::2]))
    found, folder = data.read_catalogue(tmp_path / "c", seed=3), data.read_catalogue(photos, seed=3)
    assert "6 of 6 classes of the split test are also in train" in found.notes[0]

    def classes(catalogue: data.Catalogue, part: str) -> set[str]:
        return {catalogue.class_names[k] for k in catalogue.labels[catalogue.where(part)]}

    assert classes(found, "train") == classes(folder, "train")
    assert classes(found, "test") == classes(folder, "test")


@pytest.mark.parametrize(
    ("splits", "labels", "expected", "words"),
    [
        ("train train test", "a b c", "train train test", []),
        ("train validation test", "a b c", "train val test", []),
        ("train validation test", "a a c", "train train test", ["part of the training part"]),
        ("train validation", "a b", "train test", ["no image is of the split test"]),
        ("train dev", "a a", "all all", ["no image is of the split test", "1 of 1 class of the split test is also in"]),
        ("train extra test", "a b c", "train - test", ["1 image of the splits extra are left out"]),
        ("train test unlabelled", "a a c", "all all -", ["left out", "are not used"]),
        ("train train", "a b", "all all", []),
        ("fold1 fold2", "a b", "all all", []),
        ("TRAIN Test", "a b", "train test", []),
        ("train query gallery", "a b b", "train query gallery", []),
    ],
)
def test_parts_of_splits(splits: str, labels: str, expected: str, words: list[str]) -> None:
    from metrix.data.layouts.tables import choose_parts

    parts, notes = choose_parts(splits.split(), labels.split())
    assert [part or "-" for part in parts] == expected.split()
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_columns_of_a_manifest(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    extra: dict[str, list[Any]] = {
        "split": ["train" if file.parent.name < "class3" else "test" for file in files],
        "is_query": [n % 3 == 0 for n in range(18)],
        "is_gallery": [n % 3 > 0 for n in range(18)],
        "category": [file.parent.name[-1:] for file in files],
        "sequence": [str(n // 2) for n in range(18)],
    }
    catalogue = data.read_catalogue(write_parquet(tmp_path / "p.parquet", build_table(files, extra=extra)))
    assert catalogue.part_names == ("train", "query", "gallery")
    assert catalogue.sequences is not None
    assert catalogue.sequences[5] == "2"
    assert catalogue.categories is not None
    extra["split"][0] = "trian"
    with pytest.raises(DataError, match="did you mean 'train'"):
        data.read_catalogue(write_parquet(tmp_path / "p.parquet", build_table(files, extra=extra)))


def test_several_columns_of_labels_or_images_are_chosen_between(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    number = [n % 2 for n in range(18)]
    table = build_table(files, numbers=True, label="fine", extra={"coarse": number, "note": ["x"] * 18})
    names = {"names": [f"class{k}" for k in range(6)], "_type": "ClassLabel"}
    table = declare(table, {"fine": names, "coarse": {"names": ["even", "odd"], "_type": "ClassLabel"}})
    path = write_parquet(tmp_path / "p.parquet", table)
    with pytest.raises(DataError, match="expected one column of labels, got fine, coarse; choose one with --label-col"):
        data.read_catalogue(path)
    assert data.read_catalogue(path, label_column="coarse").class_names == ("even", "odd")
    with pytest.raises(DataError, match=r"unknown --label-column 'corse'.*did you mean 'coarse'"):
        data.read_catalogue(path, label_column="corse")
    twice = table.append_column("mask", table["image"])
    path = write_parquet(tmp_path / "q.parquet", twice)
    found = data.read_catalogue(path, label_column="fine")
    assert "--image-column chooses another (mask)" in found.notes[0]
    assert data.read_catalogue(path, label_column="fine", image_column="mask").paths[0] == "q.parquet/mask/0"
    with pytest.raises(DataError, match="unknown --image-column 'note'"):
        data.read_catalogue(path, label_column="fine", image_column="note")
    with pytest.raises(DataError, match="expected one column of images, got a, b; choose one with --image-column"):
        data.read_catalogue(
            write_parquet(tmp_path / "r.parquet", twice.rename_columns(["a", *twice.column_names[1:-1], "b"]))
        )


def test_what_has_no_labels(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    bare = build_table(files).drop_columns(["label"])
    with pytest.raises(DataError, match=r"expected a column of labels \(label, .*name it with --label-column"):
        data.read_catalogue(write_parquet(tmp_path / "p.parquet", bare))
    secret = build_table(files, numbers=True)
    numbers = [-1 if n < 2 else None if n == 2 else k for n, k in enumerate(secret["label"].to_pylist())]
    secret = secret.set_column(1, "label", pa.array(numbers))
    found = data.read_catalogue(write_parquet(tmp_path / "q.parquet", secret))
    assert len(found) == 15
    assert found.notes == ("3 images without a label are left out (column label)",)
    secret = secret.set_column(1, "label", pa.array([-1] * 18))
    with pytest.raises(DataError, match="expected labels, got none in 18 rows"):
        data.read_catalogue(write_parquet(tmp_path / "q.parquet", secret))
    secret = secret.set_column(1, "label", pa.array([9] * 18))
    with pytest.raises(DataError, match="row 1: label: expected a number below 6"):
        data.read_catalogue(write_parquet(tmp_path / "q.parquet", secret))


def test_sets_of_labels(photos: Path, tmp_path: Path) -> None:
    table = build_table(list_files(photos)).drop_columns(["label"])
    sets = [["sea", "sand"] if n % 2 else ["sand"] for n in range(18)]
    found = data.read_catalogue(write_parquet(tmp_path / "p.parquet", table.append_column("labels", pa.array(sets))))
    assert found.class_names == ("sand", "sand|sea")
    assert found.separator == "|"


def test_images_without_bytes_are_the_files_at_their_paths(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    images = [{"bytes": None, "path": file.relative_to(photos).as_posix()} for file in files]
    table = pa.table({"image": pa.array(images, CONTENT), "label": [file.parent.name for file in files]})
    dataset = data.open(f"parquet:{write_parquet(photos / 'list.parquet', table)}")
    assert dataset.catalogue.paths[:2] == ("class0/0.png", "class0/1.png")
    outside = [{"bytes": None, "path": "../secret.png"}] * 18
    table = table.set_column(0, "image", pa.array(outside, CONTENT))
    with pytest.raises(DataError, match="lead outside"):
        data.open(f"parquet:{write_parquet(photos / 'list.parquet', table)}")


def test_damaged_images_are_counted_and_skipped(photos: Path, tmp_path: Path) -> None:
    (photos / "class0" / "1.png").write_bytes(b"no picture")
    path = write_parquet(tmp_path / "p.parquet", build_table(list_files(photos)))
    with pytest.warns(MetrixWarning, match=r"1 of 18 images cannot be read: p\.parquet/image/1 \(not an image"):
        dataset = data.open(path, max_bad=1)
    assert [one.path for one in dataset.broken] == ["p.parquet/image/1"]
    with pytest.raises(DataError, match="max_bad=0 allows 0"):
        data.open(path, max_bad=0)


def test_data_check_finds_the_same_picture_in_two_classes(photos: Path, tmp_path: Path) -> None:
    (photos / "class1" / "9.png").write_bytes((photos / "class0" / "0.png").read_bytes())
    report = data.check(write_parquet(tmp_path / "p.parquet", build_table(list_files(photos))))
    assert any("same content" in note for note in report.notes), report


def test_a_manifest_with_thumbnails_stays_a_manifest(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    paths = [file.relative_to(photos).as_posix() for file in files]
    table = build_table(files, plain=True, extra={"path": paths})
    catalogue = data.read_catalogue(write_parquet(photos / "list.parquet", table))
    assert (catalogue.layout, catalogue.paths[0]) == ("manifest", "class0/0.png")
    declared = build_table(files, extra={"path": paths})
    catalogue = data.read_catalogue(write_parquet(photos / "list.parquet", declared))
    assert (catalogue.layout, catalogue.paths[0]) == ("parquet", "list.parquet/image/0")
    assert "manifest:FILE uses those" in catalogue.notes[0]


def test_structures_that_are_no_images(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    sizes = [{"width": n, "height": 1} for n in range(len(files))]
    catalogue = data.read_catalogue(write_parquet(tmp_path / "p.parquet", build_table(files, extra={"size": sizes})))
    assert (len(catalogue.paths), catalogue.paths[1]) == (len(files), "p.parquet/image/1")
    nested = pa.table({"image": [{"photo": {"bytes": b"", "path": ""}}], "label": ["a"]})
    with pytest.raises(DataError, match=r"expected the columns label, path .*; or a column of images, as bytes or as"):
        data.read_catalogue(write_parquet(tmp_path / "q.parquet", nested))


def test_files_that_do_not_fit_together(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    write_parquet(tmp_path / "f" / "1.parquet", build_table(files))
    write_parquet(tmp_path / "f" / "2.parquet", build_table(files).rename_columns(["picture", "label"]))
    with pytest.raises(DataError, match=r"2\.parquet: expected the columns of 1\.parquet, got none named image"):
        data.read_catalogue(tmp_path / "f")
    (tmp_path / "f" / "2.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read as a table"):
        data.read_catalogue(tmp_path / "f")
    with pytest.raises(DataError, match="expected Parquet files with images, got none"):
        data.read_catalogue(f"parquet:{photos}")


def test_other_data_refuses_columns_and_tables_refuse_a_root(photos: Path, tmp_path: Path) -> None:
    for spec in (photos, "glyphs-mini"):
        with pytest.raises(DataError, match="--label-column make: expected with images in Parquet files"):
            data.read_catalogue(spec, label_column="make")
    path = write_parquet(tmp_path / "p.parquet", build_table(list_files(photos)))
    with pytest.raises(DataError, match="for manifests only"):
        data.read_catalogue(path, root=photos)


def test_a_table_of_no_rows(tmp_path: Path) -> None:
    table = declare(pa.table({"image": pa.array([], CONTENT), "label": pa.array([], pa.string())}), {})
    with pytest.raises(DataError, match="got none in 0 rows"):
        data.read_catalogue(write_parquet(tmp_path / "p.parquet", table))


def test_the_fingerprint_changes_with_the_images(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    path = write_parquet(tmp_path / "p.parquet", build_table(files))
    before = data.read_catalogue(path).fingerprint()
    assert data.read_catalogue(path).fingerprint() == before
    np.testing.assert_array_equal(data.read_catalogue(path).labels, np.repeat(np.arange(6), 3))
    write_parquet(path, build_table([*files[:-1], files[0]]))
    assert data.read_catalogue(path).fingerprint() != before
