"""Embedding and indexing images in Parquet files and saved data sets: the same vectors as those of the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from metrix.data.images import load_image
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.errors import DataError
from metrix.retrieve.encoder import ImageEncoder
from metrix.retrieve.image_lists import list_images
from metrix.retrieve.indexing import index_images
from metrix.retrieve.item_images import count_missing, read_item_image
from metrix.retrieve.queries import embed_queries
from metrix.runs.trained_model import open_run

from ..photos import write_photos
from ..tables import build_table, declare, list_files, save_split, write_parquet


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def test_an_index_of_a_table_is_that_of_the_files(run: Path, photos: Path, tmp_path: Path) -> None:
    files, model = list_files(photos), open_run(run)
    table = write_parquet(tmp_path / "p" / "photos.parquet", build_table(files, extra={"year": list(range(18))}))
    of_files = index_images(model, [photos], tmp_path / "f.index").index
    of_table = index_images(model, [table], tmp_path / "t.index").index
    rows = [f"photos.parquet/image/{n}" for n in range(18)]
    names = [file.relative_to(photos).as_posix() for file in files]
    np.testing.assert_array_equal(of_table.get(rows).vectors, of_files.get(names).vectors)
    found = of_table.get(rows)
    assert found.columns["label"].to_pylist() == [file.parent.name for file in files]
    assert found.columns["year"].to_pylist() == list(range(18))
    queries = embed_queries(ImageEncoder(model), of_table, [table.parent / rows[4], files[4]])
    assert queries.own == (int(of_table.find([rows[4]])[0]), -1)
    np.testing.assert_array_equal(read_item_image(of_table, rows[4]), np.array(load_image(files[4])))
    assert count_missing(of_table, 100) == (18, 0)


def test_lists_of_tables(photos: Path, tmp_path: Path) -> None:
    files = list_files(photos)
    names = {"names": ["a", "b"], "_type": "ClassLabel"}
    extra = {"body": [n % 2 for n in range(18)], "id": list(range(18))}
    table = declare(build_table(files, extra=extra), {"body": names})
    saved = save_split(tmp_path / "saved", table)
    for given in (f"hf:{saved}", str(saved)):
        listed = list_images([given], columns=ColumnChoice(label="label"))
        assert listed.ids[0] == "data-00000-of-00001.arrow/image/0"
        assert listed.columns["label"][0].as_py() == "kind 0"
        assert listed.columns["body"].to_pylist()[:3] == ["a", "b", "a"]
        assert "id" not in listed.columns
    write_parquet(tmp_path / "f" / "bare.parquet", table.select(["image"]))
    listed = list_images([f"parquet:{tmp_path / 'f'}"])
    assert (len(listed), listed.columns) == (18, {})
    with pytest.raises(DataError, match="--label-column x: expected with images in Parquet files"):
        list_images([photos], columns=ColumnChoice(label="x"))


def test_train_check_evaluate_embed_and_index_take_the_same_columns(metrix, tmp_path: Path) -> None:
    files = list_files(write_photos(tmp_path / "photos", classes=6, per_class=4))
    table = build_table(files, label="make", extra={"body": [n % 2 for n in range(24)]})
    names = {"names": ["a", "b"], "_type": "ClassLabel"}
    path = write_parquet(tmp_path / "cars.parquet", declare(table, {"body": names}))
    columns = ("--label-column", "make")
    code, out, _ = metrix("data", "check", path, *columns, "--json")
    assert (code, json.loads(out)["layout"]) == (0, "parquet")
    code, out, err = metrix(
        *("train", path, *columns, "--backbone", "glyphs-cnn", "--dim", 8, "--max-steps", 1, "--epochs", 1),
        *("--batch-size", 4, "--per-class", 2, "--mixup", "none", "--output", tmp_path / "run"),
    )
    assert code == 0, err
    assert "--label-column make" in err
    assert metrix("evaluate", tmp_path / "run", "--json")[0] == 0
    assert metrix("evaluate", tmp_path / "run", "--data", path, *columns, "--json")[0] == 0
    assert metrix("embed", tmp_path / "run", path, *columns, "-o", tmp_path / "e.npy")[0] == 0
    assert "kind 5" in (tmp_path / "e.csv").read_text()
    assert metrix("index", tmp_path / "run", path, *columns, "-o", tmp_path / "c.index")[0] == 0
    (tmp_path / "cars.parquet").rename(tmp_path / "moved.parquet")
    code, _, err = metrix("evaluate", tmp_path / "run", "--part", "train")
    assert (code, "is no longer at" in err) == (2, True), err
