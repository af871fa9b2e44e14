"""Training and evaluation with several labels of an image, and with categories of classes, through the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from metrix import data
from metrix.data.class_relations import build_relation
from metrix.errors import DataError
from metrix.runs.trained_model import open_run
from metrix.train import train
from metrix.train.config import Config
from tests.evaluate import literal
from tests.photos import draw_photo

SETTINGS: dict[str, Any] = {
    "backbone": "glyphs-cnn",
    "image_size": 16,
    "dim": 8,
    "pool": "avg",
    "mixup": ("embed",),
    "max_steps": 3,
    "batch_size": 12,
    "per_class": 3,
    "epochs": 2,
    "holdout": 0.0,
}
SETS = ["sea|sand", "sea", "snow|ice", "snow", "city", "city|snow"]


def write_table(folder: Path, column: str, values: list[str], **more: list[str]) -> Path:
    """A manifest of six kinds of pictures, four of each; the last three kinds are the test part."""
    rows = []
    for kind in range(6):
        for number in range(4):
            name = f"{kind}-{number}.png"
            draw_photo(kind, number, side=24).save(folder / name)
            split = "train" if kind < 3 else "test"
            own = {key: given[kind] for key, given in more.items()}
            rows.append({column: values[kind], "path": name, "split": split, **own})
    path = folder / "list.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def settings(table: Path, **values: Any) -> Config:
    return Config().with_values({**SETTINGS, "data": str(table), **values})


@pytest.mark.parametrize("loss", ["multi-similarity", "proxy-anchor", "proxy-nca++"])
@pytest.mark.parametrize("kind", ["sets", "categories"])
def test_train_and_evaluate(kind, loss, tmp_path, metrix):
    if kind == "sets":
        table, values = write_table(tmp_path, "labels", SETS), {"label_relation": "any"}
    else:
        names = ["finch", "sparrow", "sedan", "oak", "beech", "bus"]
        table = write_table(tmp_path, "label", names, category=["bird", "bird", "car", "tree", "tree", "car"])
        values = {"category_weight": 0.3}
    run = train(settings(table, loss=loss, **values), tmp_path / "run")
    assert run.config.data.category_weight == values.get("category_weight", 0.0)
    test = run.results["test"]
    found = metrix("evaluate", run.path, "--json", "--bootstrap", "0").json
    for k, value in test["ndcg"].items():
        assert found["retrieval"]["measures"][f"ndcg@{k}"] == pytest.approx(value, abs=1e-6)
        assert found["retrieval"]["measures"][f"recall@{k}"] == pytest.approx(test["recall"][k], abs=1e-6)
    assert "NDCG@K" in found["labels"]

    embedded = open_run(run.path).embed("test")
    names = np.unique(embedded.labels).tolist()
    numbers = np.searchsorted(names, embedded.labels)
    if kind == "sets":
        Y = [[float(bool(set(a.split("|")) & set(b.split("|")))) for b in names] for a in names]
    else:
        Y = [[1.0 if a == b else 0.3 if {a, b} == {"oak", "beech"} else 0.0 for b in names] for a in names]
    expected = literal.measures(embedded.vectors, numbers, (1, 2, 4, 8), Y=Y)
    for key in ("recall@1", "ndcg@8", "map@r"):
        assert found["retrieval"]["measures"][key] == pytest.approx(np.mean(expected[key]), abs=1e-6)


def test_what_is_counted_is_said(tmp_path, metrix, refused):
    table = write_table(tmp_path, "labels", SETS)
    flags = [f"--{key.replace('_', '-')}={v if not isinstance(v, tuple) else v[0]}" for key, v in SETTINGS.items()]
    done = metrix("train", str(table), "-o", str(tmp_path / "run"), *flags)
    assert "images have 4 labels in all" in done.err
    assert "with a label in common" in done.err
    assert "NDCG@8" in done.out
    refused("evaluate", tmp_path / "run", "--rerank", words=("labels have degrees",))


def test_sets_of_a_table(tmp_path):
    catalogue = data.open(write_table(tmp_path, "labels", SETS)).catalogue
    assert catalogue.class_names[:3] == ("sand|sea", "sea", "ice|snow")
    relation = build_relation(catalogue, catalogue.class_names[:3])
    assert relation is not None
    assert relation.indicators.tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]]


def test_sets_of_a_parquet_list(tmp_path):
    write_table(tmp_path, "labels", SETS)
    path = tmp_path / "list.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"labels": [["b", "a"], ["c"]], "path": ["0-0.png", "1-0.png"]}), path)
    assert data.read_catalogue(path).class_names == ("a|b", "c")


def test_a_set_of_labels_may_be_in_both_parts(tmp_path):
    catalogue = data.open(write_table(tmp_path, "labels", ["a", "b", "c", "a", "b", "d"])).catalogue
    assert "2 classes are in more than one part: a (test and train), b (test and train)" in catalogue.notes


def test_refusals(tmp_path):
    write_table(tmp_path, "labels", SETS)
    path = tmp_path / "wrong.csv"
    for text, message in (
        ("labels,label,path\na|b,a,0-0.png\n", "got both"),
        ("labels,path\n | ,0-0.png\n", "expected at least one label"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            data.read_catalogue(path)
    folder = tmp_path / "categories"
    folder.mkdir()
    names = list("abcdef")
    table = write_table(folder, "label", names)
    with pytest.raises(DataError, match="has no categories"):
        train(settings(table, category_weight=0.5), tmp_path / "run")
    table = write_table(folder, "label", names, category=["x", "", "x", "y", "y", "y"])
    with pytest.raises(DataError, match="got none for b"):
        train(settings(table, category_weight=0.5), tmp_path / "run")
    table = write_table(folder, "label", ["a", "a", "c", "d", "e", "f"], category=list("xyzxyz"))
    with pytest.raises(DataError, match=r"several for a \(x, y\)"):
        train(settings(table, category_weight=0.5), tmp_path / "run")
    table = write_table(folder, "labels", SETS)
    with pytest.raises(DataError, match="a category can be one of the labels"):
        train(settings(table, category_weight=0.5), tmp_path / "run")
    with pytest.raises(ValueError, match="Triplet takes one class"):
        train(settings(table, loss="triplet", mixup=()), tmp_path / "run")
