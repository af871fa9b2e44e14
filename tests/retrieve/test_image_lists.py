"""What a user may name as images: folders, files, manifests, lists; and what is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrix.errors import DataError, InvalidInput
from metrix.retrieve.image_lists import list_images
from tests.photos import draw_photo, write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("lists") / "photos")


def test_class_folders_give_labels(photos: Path) -> None:
    listed = list_images([photos])
    assert listed.ids[:2] == ("kind 0/0.jpg", "kind 0/1.jpg")
    assert len(listed) == 18
    assert listed.columns["label"].to_pylist() == [f"kind {c}" for c in range(3) for _ in range(6)]
    assert listed.root == photos.resolve()


def test_images_beside_the_folders_have_no_labels(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "p", 2, 2)
    draw_photo(5, 0).save(folder / "loose.png")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "notes.txt").write_text("")
    (folder / ".cache").mkdir()
    draw_photo(5, 0).save(folder / ".cache" / "x.png")
    listed = list_images([folder])
    assert listed.columns == {}
    assert set(listed.ids) == {"loose.png", *(f"kind {c}/{n}.jpg" for c in range(2) for n in range(2))}


def test_folders_of_parts_are_no_classes(tmp_path: Path) -> None:
    write_photos(tmp_path / "d" / "train", 2, 2)
    write_photos(tmp_path / "d" / "test", 1, 2)
    listed = list_images([tmp_path / "d"])
    assert sorted(set(listed.columns["label"].to_pylist())) == ["kind 0", "kind 1"]
    assert "train/kind 1/0.jpg" in listed.ids


def test_several_places_share_a_root(photos: Path) -> None:
    listed = list_images([photos / "kind 0" / "1.jpg", photos / "kind 2"])
    assert listed.root == photos.resolve()
    assert listed.ids[0] == "kind 0/1.jpg"
    assert len(listed) == 7
    again = list_images([photos / "kind 0" / "1.jpg"], root=photos.parent)
    assert again.ids == ("photos/kind 0/1.jpg",)


def test_broken_and_missing_images_are_left_out_and_told(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "p", 1, 3)
    (folder / "kind 0" / "1.jpg").write_bytes(b"not an image")
    (folder / "kind 0" / "2.jpg").write_bytes((folder / "kind 0" / "2.jpg").read_bytes()[:200])
    (tmp_path / "list.txt").write_text("p/kind 0/0.jpg\n\n# a comment\np/kind 0/1.jpg\np/kind 0/9.jpg\n")
    listed = list_images([folder])
    assert listed.ids == ("kind 0/0.jpg",)
    assert sorted(one.path for one in listed.skipped) == ["kind 0/1.jpg", "kind 0/2.jpg"]
    listed = list_images([tmp_path / "list.txt"])
    assert listed.ids == ("p/kind 0/0.jpg",)
    assert {one.path: one.reason[:7] for one in listed.skipped} == {
        "p/kind 0/9.jpg": "there i",
        "p/kind 0/1.jpg": "not an ",
    }
    (folder / "kind 0" / "0.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="none that can be read"):
        list_images([folder])


@pytest.mark.skipif(os.name != "posix", reason="names are text there")
def test_a_name_that_is_not_text_is_skipped(tmp_path: Path) -> None:
    draw_photo(0, 0).save(tmp_path / "good\x1b[31m.png")
    draw_photo(0, 0).save(os.fsencode(tmp_path) + b"/bad\xff.png")
    listed = list_images([tmp_path])
    assert listed.ids == ("good\x1b[31m.png",)
    assert [one.reason for one in listed.skipped] == ["its name is not text in UTF-8"]


def test_a_manifest_gives_columns_and_crops(photos: Path) -> None:
    (photos / "m.csv").write_text(
        "path,label,price,note,x_1,y_1,x_2,y_2\n"
        "kind 0/0.jpg,one,1.5,,,,,\n"
        "kind 0/0.jpg,two,2,a,0,0,20,20\n"
        "kind 1/0.jpg,,,b,,,,\n"
    )
    listed = list_images([photos / "m.csv"])
    assert listed.ids == ("kind 0/0.jpg", "kind 0/0.jpg#0,0,20,20", "kind 1/0.jpg")
    assert listed.columns["label"].to_pylist() == ["one", "two", None]
    assert listed.columns["price"].to_pylist() == [1.5, 2.0, None]
    assert listed.part.image(1).shape == (3, 20, 20)
    assert listed.part.image(0).shape == (3, 48, 48)
    pq.write_table(pa.table({"path": ["kind 0/0.jpg"], "stock": [3]}), photos / "m.parquet")
    listed = list_images([photos / "m.parquet"])
    assert listed.columns["stock"].to_pylist() == [3]
    assert "label" not in listed.columns


def test_a_sign_of_a_crop_in_a_name_is_no_crop(tmp_path: Path) -> None:
    draw_photo(0, 0).save(tmp_path / "a#1.png")
    listed = list_images([tmp_path])
    assert listed.ids == ("a#1.png",)
    assert listed.part.image(0).shape == (3, 48, 48)


def test_embedded_data() -> None:
    listed = list_images(["glyphs-mini"])
    assert listed.data == "glyphs-mini"
    assert listed.root is None
    assert len(listed) == len(set(listed.ids)) == 1464


def test_what_cannot_be_listed_is_refused(photos: Path, tmp_path: Path) -> None:
    (photos.parent / "outside.txt").write_text(f"{tmp_path}/x.png\n")
    draw_photo(0, 0).save(tmp_path / "x.png")
    (tmp_path / "photos").mkdir()
    os.symlink(tmp_path / "x.png", tmp_path / "photos" / "link.png")
    (tmp_path / "bad.csv").write_text("file,label\na,b\n")
    (tmp_path / "id.csv").write_text("path,id\na,b\n")
    (tmp_path / "box.csv").write_text("path,x_1,y_1,x_2,y_2\nx.png,5,5,1,9\n")
    (tmp_path / "ragged.csv").write_text("path,a\nx.png,1,2,3\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.doc").write_text("")
    for given, root, error, words in (
        ([tmp_path / "none"], None, DataError, "does not exist"),
        ([tmp_path / "empty"], None, DataError, "got none"),
        ([tmp_path / "m.doc"], None, InvalidInput, "another kind"),
        ([photos.parent / "outside.txt"], photos, InvalidInput, "expected paths below"),
        ([photos], tmp_path, InvalidInput, "expected paths below"),
        ([tmp_path / "photos"], None, DataError, "link"),
        ([tmp_path / "bad.csv"], None, DataError, "column 'path'"),
        ([tmp_path / "id.csv"], None, DataError, "got id"),
        ([tmp_path / "box.csv"], None, DataError, "crop box"),
        ([tmp_path / "ragged.csv"], None, DataError, "expected 2 values, got 4"),
        ([photos], tmp_path / "none", InvalidInput, "root: expected a folder"),
    ):
        with pytest.raises(error, match=words):
            list_images(given, root)


def test_tables_with_other_delimiters_and_labels_that_look_like_numbers(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 2)
    (photos / "m.csv").write_text("path;label\nkind 0/0.jpg;007\nkind 0/1.jpg;7\n")
    (photos / "m.tsv").write_text("label\tpath\n007\tkind 0/0.jpg\n7\tkind 0/1.jpg\n")
    for name in ("m.csv", "m.tsv"):
        assert list_images([photos / name]).columns["label"].to_pylist() == ["007", "7"]


def test_paths_of_a_list_elsewhere_are_relative_to_the_root(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 2)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "m.csv").write_text("path\nkind 0/0.jpg\nkind 0/1.jpg\n")
    (tmp_path / "lists" / "l.txt").write_text("kind 0/0.jpg\nkind 0/1.jpg\n")
    for name in ("m.csv", "l.txt"):
        assert list_images([tmp_path / "lists" / name], photos).ids == ("kind 0/0.jpg", "kind 0/1.jpg")


def test_links_are_followed_if_the_user_says_so(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 1)
    draw_photo(3, 0).save(tmp_path / "x.png")
    (photos / "link.png").symlink_to(tmp_path / "x.png")
    (photos / "round").symlink_to(photos, target_is_directory=True)
    with pytest.raises(DataError, match="--follow-links"):
        list_images([photos])
    assert list_images([photos], follow_links=True).ids == ("kind 0/0.jpg", "link.png")


def test_a_limit_of_broken_images(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 4)
    (photos / "kind 0" / "1.jpg").write_bytes(b"no image")
    (photos / "list.txt").write_text("kind 0/0.jpg\nkind 0/1.jpg\nkind 0/9.jpg\n")
    assert len(list_images([photos / "kind 0"], max_bad=1)) == 3
    with pytest.raises(DataError, match=r"2 of 3 images cannot be read: .*9\.jpg.*max_bad=1 allows 1.*--max-bad 2"):
        list_images([photos / "list.txt"], max_bad=1)


def test_heic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "IMG_1.HEIC").write_bytes(b"no image")
    with monkeypatch.context() as patch:
        patch.setattr("metrix.data.images.reads_heic", lambda: False)
        for given in (tmp_path, tmp_path / "IMG_1.HEIC"):
            with pytest.raises(InvalidInput, match=r"metrix\[heic\]"):
                list_images([given])
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    draw_photo(0, 0).save(tmp_path / "IMG_1.HEIC", format="HEIF")
    assert list_images([tmp_path]).ids == ("IMG_1.HEIC",)
    assert list_images([tmp_path / "IMG_1.HEIC"]).part.image(0).shape == (3, 48, 48)


def test_the_file_of_an_item_behind_a_link(tmp_path: Path) -> None:
    from types import SimpleNamespace
    from typing import Any

    from metrix.retrieve.item_images import image_file

    photos = write_photos(tmp_path / "photos", 1, 1)
    draw_photo(3, 0).save(tmp_path / "x.png")
    (photos / "link.png").symlink_to(tmp_path / "x.png")

    def index(follow_links: bool) -> Any:
        return SimpleNamespace(description=SimpleNamespace(root=str(photos), data=None, follow_links=follow_links))

    assert image_file(index(True), "link.png") == (tmp_path / "x.png").resolve()
    for opened, name in ((index(False), "link.png"), (index(True), "../x.png"), (index(True), "/etc/hostname")):
        with pytest.raises(InvalidInput, match="expected a path below"):
            image_file(opened, name)


def test_a_manifest_of_windows_and_of_a_spreadsheet(photos: Path) -> None:
    """Backslashes, semicolons and capitals; training reads it in the same way."""
    from metrix.data.layouts import manifest

    (photos / "m.csv").write_text("Path;Label;Note\nkind 0\\0.jpg; a ;x\nkind 1\\1.jpg;b;\n")
    listed = list_images([photos / "m.csv"])
    assert listed.ids == ("kind 0/0.jpg", "kind 1/1.jpg")
    assert listed.columns["label"].to_pylist() == ["a", "b"]
    assert listed.columns["Note"].to_pylist() == ["x", None]
    trained = manifest.read(photos / "m.csv")
    assert trained.paths == ("kind 0/0.jpg", "kind 1/1.jpg")
    assert [trained.class_names[k] for k in trained.labels] == ["a", "b"]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "x"])
def test_a_crop_box_that_is_no_number_is_refused(photos: Path, value: str) -> None:
    (photos / "m.csv").write_text(f"path,x_1,y_1,x_2,y_2\nkind 0/0.jpg,0,0,{value},20\n")
    with pytest.raises(DataError, match="crop box"):
        list_images([photos / "m.csv"])


def test_spaces_mean_the_same_for_training_and_for_an_index(photos: Path) -> None:
    from metrix.data.layouts import manifest

    (photos / "m.csv").write_text(" path , label ,price\nkind 0/0.jpg , cat , 1\n kind 1/1.jpg,dog,2\n")
    listed, trained = list_images([photos / "m.csv"]), manifest.read(photos / "m.csv")
    assert listed.ids == trained.paths
    assert listed.columns["label"].to_pylist() == [trained.class_names[k] for k in trained.labels] == ["cat", "dog"]
    assert listed.columns["price"].to_pylist() == [1, 2]
