"""`metrix classify` and `metrix threshold --open-set`, as typed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from tests.photos import draw_photo


def test_one_query_many_and_ids_agree(metrix: Any, indexed: Path, tmp_path: Path) -> None:
    index, photos = indexed / "photos.index", indexed / "photos"
    one = metrix("classify", index, photos / "kind 2" / "3.jpg", "--json")
    assert one.code == 0, one.err
    (found,) = one.json["predictions"]
    assert found["best"] in ("kind 0", "kind 1", "kind 2")
    assert found["unknown"] == (found["label"] is None) == (found["known"] < one.json["threshold"])
    assert found["classes"][0]["probability"] == found["probability"] <= found["known"] <= 1
    (by_id,) = metrix("classify", index, "--id", "kind 2/3.jpg", "--json").json["predictions"]
    assert by_id["best"] == found["best"]
    assert abs(by_id["probability"] - found["probability"]) < 1e-4
    table = tmp_path / "answers.csv"
    many = metrix("classify", index, photos, "--csv", table)
    assert many.code == 0, many.err
    assert "18 queries" in many.out
    lines = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert len(lines) == 18
    mine = next(line for line in lines if line["query"].endswith("kind 2/3.jpg"))
    assert abs(float(mine["probability"]) - found["probability"]) < 1e-4


def test_a_table_for_people_says_how_sure_and_below_which_threshold(metrix: Any, indexed: Path) -> None:
    outcome = metrix("classify", indexed / "photos.index", "--id", "kind 0/1.jpg", "--threshold", 1)
    assert outcome.code == 0, outcome.err
    assert "kind 0/1.jpg: unknown" in outcome.out
    assert "none of the index" in outcome.out
    assert "unknown below a probability of 100.0 % to be of 3 classes" in outcome.out
    assert "--open-set --false-accept" in outcome.out


def test_a_page_shows_what_voted(metrix: Any, indexed: Path, tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    draw_photo(1, 77).save(tmp_path / "query.png")
    outcome = metrix("classify", indexed / "photos.index", tmp_path / "query.png", "--html", page, "-k", 4)
    assert outcome.code == 0, outcome.err
    text = page.read_text("utf-8")
    assert text.count("data:image/") == 5  # the query and the four that voted
    assert "of one of the 3 classes of the index" in text


def test_vectors_and_filters(metrix: Any, indexed: Path, tmp_path: Path) -> None:
    from metrix.search import Index

    index = indexed / "photos.index"
    np.save(tmp_path / "q.npy", Index.open(index).get(["kind 1/0.jpg"]).vectors)
    (found,) = metrix("classify", index, "--vector", tmp_path / "q.npy", "--where", "label!=kind 1", "--json").json[
        "predictions"
    ]
    assert found["best"] != "kind 1"
    assert {near["label"] for near in found["neighbours"]} == {"kind 0", "kind 2"}


def test_mistakes(metrix: Any, refused: Any, indexed: Path, tmp_path: Path) -> None:
    from metrix.search import Index

    index = indexed / "photos.index"
    refused("classify", index, words=("expected one of QUERY, --id, --vector, got none",))
    refused("classify", index, "a.jpg", "--id", "b", words=("got QUERY and --id",))
    refused("classify", tmp_path, "a.jpg", words=("expected an index",))
    refused("classify", index, tmp_path / "no.jpg", words=("does not exist",))
    refused("classify", index, "--id", "kind 9/1.jpg", words=("id: expected one of 18", "kind 9/1.jpg"))
    refused("classify", index, "--id", "kind 0/1.jpg", "--where", "price<3", words=("price",))
    refused("classify", index, "--id", "kind 0/1.jpg", "--html", tmp_path / "no" / "a.html", words=("a.html",))
    Index.build(np.eye(4)).save(tmp_path / "plain.index")
    refused("classify", tmp_path / "plain.index", "--id", "1", words=("expected an index with labels",))
