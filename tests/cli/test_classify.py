"""`metrix classify` and `metrix threshold --open-set`, as typed."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def test_vectors_of_another_length_are_one_error(refused: Any, indexed: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.ones((2, 3), dtype=np.float32))
    refused("classify", indexed / "photos.index", "--vector", tmp_path / "q.npy", words=("expected dimension", "got 3"))


def test_vectors_and_filters(metrix: Any, indexed: Path, tmp_path: Path) -> None:
    from metrix.search import Index

    index = indexed / "photos.index"
    np.save(tmp_path / "q.npy", Index.open(index).get(["kind 1/0.jpg"]).vectors)
    (found,) = metrix("classify", index, "--vector", tmp_path / "q.npy", "--where", "label!=kind 1", "--json").json[
        "predictions"
    ]
    assert found["best"] != "kind 1"
    assert {near["label"] for near in found["neighbours"]} == {"kind 0", "kind 2"}
    nobody = metrix("classify", index, "--vector", tmp_path / "q.npy", "--where", "label=kind 7", "--json")
    assert nobody.json["predictions"][0]["label"] is None
    assert "no item of the index meets --where label=kind 7" in nobody.err


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


def test_a_threshold_of_the_index_is_used_by_classify(
    metrix: Any, refused: Any, own_index: Path, indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = metrix("threshold", own_index, "--open-set", "--false-reject", "0.2", "--json")
    assert chosen.code == 0, chosen.err
    assert chosen.json["false_reject"] <= 0.2
    found = metrix("classify", own_index, indexed / "photos", "--json").json
    assert found["threshold"] == chosen.json["probability"] == found["measured"]["probability"]
    assert np.mean([one["unknown"] for one in found["predictions"]]) <= 0.2  # the very images that it was chosen on
    told = metrix("classify", own_index, "--id", "kind 0/1.jpg")
    assert "of known ones do not" in told.out
    refused("threshold", own_index, "--open-set", words=("one of --false-accept and --false-reject, got none",))
    refused("threshold", own_index, "--open-set", "--false-accept", "0.0001", words=("expected at least 1 in 18",))
    refused("threshold", own_index, "--open-set", "--false-accept", "0.1", "--shots", 1, words=("with a run",))
    refused("threshold", own_index, "--open-set", "--false-accept", "0.1", "--far", "0.1", words=("--far",))
    refused("threshold", own_index, "--false-accept", "0.1", words=("--false-accept: expected with --open-set",))
    monkeypatch.setattr("metrix.runs.open_set.measure_index", lambda *_, **__: pytest.fail("measured"))
    refused("threshold", own_index, "--open-set", "--false-accept", "1.5", words=("share between 0 and 1",))


def test_a_threshold_of_a_run_goes_into_its_indexes(metrix: Any, run: Path, indexed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    outcome = metrix("threshold", copy, "--open-set", "--false-accept", "0.1", "--bootstrap", 20)
    assert outcome.code == 0, outcome.err
    assert "unknown accepted" in outcome.out
    assert (copy / "analysis" / "open-set.png").is_file()
    assert metrix("index", copy, indexed / "photos", "-o", tmp_path / "i").code == 0
    found = metrix("classify", tmp_path / "i", indexed / "photos" / "kind 0" / "1.jpg", "--json").json
    assert found["measured"]["wanted"] == 0.1


def test_evaluate_open_set(metrix: Any, refused: Any, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    outcome = metrix("evaluate", copy, "--open-set", "--draws", 2, "--bootstrap", 5)
    assert outcome.code == 0, outcome.err
    for words in ("accuracy at 1 % false accept", "AUROC of unknown", "calibration error (ECE)", "5-way 1-shot"):
        assert words in outcome.out
    kept = json.loads((copy / "open_set_evaluation.json").read_text("utf-8"))
    found = metrix("evaluate", copy, "--open-set", "--draws", 2, "--bootstrap", 5, "--json").json
    assert found == kept
    assert [one["shots"] for one in found["results"]] == [1, 5, None]
    refused("evaluate", copy, "--open-set", "--shots", "one", words=("such as 1,5,all, got 'one'",))
    refused("evaluate", copy, "--open-set", "--rerank", words=("--rerank: expected without --open-set",))
    refused("evaluate", copy, "--shots", "1", words=("--shots: expected with --open-set",))
