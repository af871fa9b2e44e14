"""Images in Parquet and Arrow tables: in place or unpacked, in threads and processes, damaged, changed, empty."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from metrix.data import ImageError, image_tables, load_image
from metrix.data.shards import find_member, image_status, open_table
from metrix.errors import DataError, MetrixWarning

from ..tables import CONTENT, build_table, list_files, save_split, write_parquet


@pytest.fixture(params=["groups", "unpacked", "arrow"])
def table(request: pytest.FixtureRequest, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "unpacked":
        monkeypatch.setattr(image_tables, "LARGE_GROUP", 100)
    content = build_table(list_files(photos))
    if request.param == "arrow":
        return save_split(tmp_path / "saved", content) / "data-00000-of-00001.arrow"
    return write_parquet(tmp_path / "photos.parquet", content)


def test_a_row_is_read_as_the_file_that_it_was(photos: Path, table: Path) -> None:
    for row, file in reversed(list(enumerate(list_files(photos)))):
        path = table / "image" / str(row)
        np.testing.assert_array_equal(np.array(load_image(path)), np.array(load_image(file)))
        assert image_status(path) == (file.stat().st_size, table.stat().st_mtime_ns)


def test_rows_and_columns_that_are_not_there(table: Path) -> None:
    for name in ("image/18", "image/-1", "image/x", "image/²", "label/0", "nothing/0", "0", ""):
        with pytest.raises(FileNotFoundError, match="has no"):
            open_table(table).read(name)
    with pytest.raises(ImageError, match="no such file"):
        load_image(table / "image" / "18")


def test_threads_and_forked_processes_read_the_same(photos: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_tables, "KEPT_GROUPS", 3000)  # some groups are dropped and read again
    contents = [file.read_bytes() for file in list_files(photos)]
    rows = [int(n) for n in np.random.default_rng(0).integers(0, 18, 120)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda row: open_table(table).read(f"image/{row}"), rows))
    assert found == [contents[row] for row in rows]
    process = multiprocessing.get_context("fork").Process(target=_read_all, args=(table, contents))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def _read_all(table: Path, contents: list[bytes]) -> None:
    assert [open_table(table).read(f"image/{row}") for row in range(len(contents))] == contents


def test_kept_row_groups_are_bounded(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_tables, "KEPT_GROUPS", 5000)
    monkeypatch.setattr(image_tables, "_groups", image_tables._RowGroups())
    path = write_parquet(tmp_path / "photos.parquet", build_table(list_files(photos)), rows=2)
    for row in range(18):
        open_table(path).read(f"image/{row}")
        assert sum(one.nbytes for one in image_tables._groups._kept.values()) <= 5000
    assert 1 < len(image_tables._groups._kept) < 9


def test_an_empty_row_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    rows = [None, {"bytes": None, "path": "1.png"}, {"bytes": b"", "path": None}, {"bytes": b"no image", "path": None}]
    content = pa.table({"image": pa.array(rows, CONTENT)})
    for path in (write_parquet(tmp_path / "a.parquet", content), save_split(tmp_path / "s", content)):
        file = path if path.is_file() else path / "data-00000-of-00001.arrow"
        assert [image_status(file / "image" / str(n)).size for n in range(4)] == [0, 0, 0, 8]
        for row in range(3):
            with pytest.raises(ImageError, match="it has no bytes"):
                load_image(file / "image" / str(row))
        with pytest.raises(ImageError, match="not an image in a known format"):
            load_image(file / "image" / "3")


def test_a_changed_table_is_read_anew(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    path = write_parquet(tmp_path / "photos.parquet", build_table(files))
    before = open_table(path).read("image/0")
    write_parquet(path, build_table(files[::-1]))
    os.utime(path, ns=(1, 1))
    assert open_table(path).read("image/0") == files[-1].read_bytes() != before


def test_an_index_is_kept_and_one_that_is_damaged_is_made_anew(
    photos: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_tables, "LARGE_GROUP", 100)
    path = write_parquet(tmp_path / "photos.parquet", build_table(list_files(photos)))
    expected = open_table(path).read("image/7")
    (images,) = (own_cache / "tables").glob("*.images")
    images.write_bytes(images.read_bytes()[:-5])
    status = image_status(path)
    assert image_tables.ImageTable(str(path), status).read("image/7") == expected
    monkeypatch.setattr(image_tables, "scan_images", None)  # is not read again
    assert image_tables.ImageTable(str(path), status).read("image/7") == expected


def test_a_cache_folder_that_cannot_be_written(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "photos.parquet", build_table(list_files(photos)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METRIX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(MetrixWarning, match="indexes of images in Parquet files are not kept"):
        assert open_table(path).read("image/3") == list_files(photos)[3].read_bytes()
    monkeypatch.setattr(image_tables, "LARGE_GROUP", 100)
    with pytest.raises(DataError, match="or room to unpack the images in the cache folder"):
        image_tables.ImageTable(str(path), image_status(path)).read("image/3")


def test_damaged_tables(photos: Path, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "photos.parquet", build_table(list_files(photos)))
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(DataError, match="is damaged"):
        open_table(path).read("image/0")
    path.write_bytes(content[:4] + bytes(400) + content[404:])
    with pytest.raises(DataError, match="damaged"):
        open_table(path).read("image/0")
    arrow = tmp_path / "photos.arrow"
    arrow.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is damaged"):
        open_table(arrow).read("image/0")


def test_a_folder_with_the_suffix_of_a_table(photos: Path, tmp_path: Path) -> None:
    photos.rename(tmp_path / "photos.parquet")
    assert find_member(tmp_path / "photos.parquet" / "class0" / "0.png") is None
    assert load_image(tmp_path / "photos.parquet" / "class0" / "0.png").size == (20, 16)
