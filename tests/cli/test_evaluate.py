"""`metrix evaluate`: the numbers are those of literal loops over the embeddings of the run's model."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image


def embedded_literally(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The test part through the saved model, one batch, without anything of the code under test."""
    from metrix import Embedder, data

    model = Embedder.load(run).eval()
    part = data.open("glyphs-mini").test.with_transform(data.GlyphTransform.still())
    images, labels = part.batch(range(len(part)))
    with torch.no_grad():
        return model(images).double().numpy(), labels.numpy()


def recall_literally(x: np.ndarray, y: np.ndarray, k: int) -> float:
    hits = []
    for q in range(len(x)):
        order = [n for n in np.argsort(-(x @ x[q]), kind="stable") if n != q]
        hits.append(any(y[n] == y[q] for n in order[:k]))
    return float(np.mean(hits))


def test_the_numbers_are_those_of_a_literal_loop_and_of_the_training(metrix: Any, run: Path) -> None:
    x, y = embedded_literally(run)
    outcome = metrix("evaluate", run, "--json", "--ks", "1,3", "--no-clustering")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    measures = found["retrieval"]["measures"]
    assert measures["recall@1"] == pytest.approx(recall_literally(x, y, 1), abs=1e-12)
    assert measures["recall@3"] == pytest.approx(recall_literally(x, y, 3), abs=1e-12)
    assert measures["recall@1"] == json.loads((run / "results.json").read_text())["test"]["recall"]["1"]
    assert found["retrieval"]["queries"] == found["images"] == len(x)
    assert found["clustering"] is None
    assert outcome.err == ""


def test_results_are_written_into_the_run_as_they_are_printed(metrix: Any, run: Path) -> None:
    outcome = metrix("evaluate", run, "--json", "--bootstrap", "50")
    written = json.loads((run / "evaluation.json").read_text())
    assert written == outcome.json
    assert set(written) == {
        *("format", "run", "data", "layout", "part", "model", "fingerprint", "images", "classes", "dim"),
        *("retrieval", "clustering", "per_class"),
    }
    low, high = written["retrieval"]["intervals"]["recall@1"]
    assert low < written["retrieval"]["measures"]["recall@1"] < high
    assert 0 < written["clustering"]["ami"] < written["clustering"]["nmi"] < 1
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_the_table_has_every_measure(metrix: Any, run: Path) -> None:
    out = metrix("evaluate", run, "--bootstrap", "20").out
    names = ("Recall@1", "Recall@8", "MAP@R", "R-precision", "mAP", "Precision@4", "NMI", "AMI")
    for name in (*names, "95 % interval", "732 queries"):
        assert name in out, out


def test_per_class_means_average_to_the_whole(metrix: Any, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "classes.csv"
    found = metrix("evaluate", run, "--json", "--bootstrap", "0", "--per-class", file, "--no-clustering").json
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 60
    queries = np.array([int(row["queries"]) for row in rows])
    assert queries.sum() == found["retrieval"]["queries"]
    for name, mean in found["retrieval"]["measures"].items():
        assert queries @ [float(row[name]) for row in rows] / queries.sum() == pytest.approx(mean, abs=1e-12)
    assert all(row["label"].startswith("U+1E") for row in rows)
    assert [float(row["recall@1"]) for row in rows] == sorted(float(row["recall@1"]) for row in rows)


def test_classes_and_confusions_are_those_of_a_literal_loop(metrix: Any, run: Path, tmp_path: Path) -> None:
    from collections import Counter

    from metrix import data

    x, y = embedded_literally(run)
    names = data.open("glyphs-mini").test.class_names
    nearest = [next(n for n in np.argsort(-(x @ x[q]), kind="stable") if n != q) for q in range(len(x))]
    wrong = Counter((names[y[q]], names[y[n]]) for q, n in enumerate(nearest) if y[n] != y[q])
    file = tmp_path / "classes.csv"
    outcome = metrix("evaluate", run, "--json", "--bootstrap", "0", "--per-class", file, "--no-clustering")
    found = outcome.json["per_class"]
    assert found["classes"] == 60
    assert found["wrong_queries"] == sum(wrong.values())
    both = Counter[frozenset[str]]()
    for (a, b), number in wrong.items():
        both[frozenset((a, b))] += number
    pairs = found["confused"]
    assert [p["queries"] + p["reverse"] for p in pairs] == [number for _, number in both.most_common(10)]
    assert all(wrong[p["label"], p["other"]] == p["queries"] for p in pairs)
    assert all(wrong[p["other"], p["label"]] == p["reverse"] <= p["queries"] for p in pairs)
    with file.open(encoding="utf-8") as lines:
        rows = {row["label"]: row for row in csv.DictReader(lines)}
    for name, row in rows.items():
        others = {b: number for (a, b), number in wrong.items() if a == name}
        assert int(row["confused_queries"]) == max(others.values(), default=0)
        assert others.get(row["confused_with"], 0) == int(row["confused_queries"])
        assert int(row["images"]) == int(row["queries"]) == sum(names[c] == name for c in y)
    ranked = sorted(rows.values(), key=lambda row: (float(row["recall@1"]), float(row["map@r"])))
    assert [row["recall@1"] for row in found["worst"]] == [float(row["recall@1"]) for row in ranked[:10]]
    assert [row["map@r"] for row in found["best"]] == [float(row["map@r"]) for row in ranked[:-11:-1]]
    assert not {row["label"] for row in found["worst"]} & {row["label"] for row in found["best"]}


def test_the_terminal_lists_worst_and_best_classes_in_80_columns(metrix: Any, run: Path) -> None:
    found = metrix("evaluate", run, "--json", "--bootstrap", "0", "--no-clustering").json["per_class"]
    out = metrix("evaluate", run, "--bootstrap", "0", "--no-clustering").out
    assert "The worst and the best of 60 classes" in out
    for row in (*found["worst"][:5], *found["best"][:5]):
        assert row["label"] in out
    assert "Classes that are confused most" in out
    assert f"found first by {found['wrong_queries']} of 732 queries" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_embeddings_are_computed_once_and_again_for_another_model(metrix: Any, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("embeddings"))
    arguments = ("evaluate", copy, "--bootstrap", "0", "--no-clustering")
    assert "732/732" in metrix(*arguments).err
    assert [path.name for path in (copy / "embeddings").iterdir()] == ["test.safetensors"]
    assert "732/732" not in metrix(*arguments).err

    from safetensors.torch import load_file, save_file

    from metrix import Embedder

    model = Embedder.load(copy)
    with torch.no_grad():
        next(model.parameters()).mul_(-1.0)
    model.save(copy / "model")
    before = load_file(copy / "embeddings" / "test.safetensors")["embeddings"]
    assert "732/732" in metrix(*arguments).err
    assert not torch.equal(load_file(copy / "embeddings" / "test.safetensors")["embeddings"], before)

    save_file({"embeddings": before}, copy / "embeddings" / "test.safetensors")  # of nobody knows what
    assert "732/732" in metrix(*arguments).err
    (copy / "embeddings" / "test.safetensors").write_bytes(b"damaged")
    assert "732/732" in metrix(*arguments).err


@pytest.mark.filterwarnings("default::metrix.MetrixWarning")
def test_where_embeddings_cannot_be_kept_the_measures_are_the_same(metrix: Any, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("embeddings"))
    (copy / "embeddings").write_text("a file where the folder should be")
    arguments = ("--json", "--bootstrap", "0", "--no-clustering")
    outcome = metrix("evaluate", copy, *arguments)
    assert "not kept" in outcome.err
    found = outcome.json
    assert found["retrieval"] == metrix("evaluate", run, *arguments).json["retrieval"]


def test_other_data_and_parts_leave_the_evaluation_of_the_test_part_alone(metrix: Any, run: Path) -> None:
    metrix("evaluate", run, "--bootstrap", "0", "--no-clustering")
    before = (run / "evaluation.json").read_text()
    train = metrix("evaluate", run, "--part", "train", "--json", "--bootstrap", "0", "--no-clustering").json
    assert train["classes"] == 30  # those that it was trained on, not all of the training part
    whole = metrix(
        "evaluate", run, "--data", "glyphs-mini", "--part", "all", "--json", "--bootstrap", "0", "--no-clustering"
    ).json
    assert whole["classes"] == 120
    assert (run / "evaluation.json").read_text() == before
    assert len(list(run.glob("evaluation-*.json"))) == 2


def test_queries_and_gallery_of_a_manifest_are_kept_apart(metrix: Any, run: Path, tmp_path: Path) -> None:
    from metrix import data
    from metrix.runs.trained_model import open_run

    part = data.open("glyphs-mini").test
    lines = ["path,label,split,is_query,is_gallery"]
    for n in range(40):
        Image.fromarray(part.image(n)[0].numpy()).save(tmp_path / f"{n}.bmp")
        lines.append(f"{n}.bmp,{part.class_names[part.labels[n]]},test,{int(n % 3 == 0)},{int(n % 3 > 0)}")
    manifest = tmp_path / "images.csv"
    manifest.write_text("\n".join(lines))
    arguments = ("evaluate", run, "--data", manifest, "--json", "--bootstrap", "0", "--ks", "1", "--no-clustering")
    found = metrix(*arguments).json
    model = open_run(run)
    q, g = (model.embed(name, str(manifest)) for name in ("query", "gallery"))
    nearest = g.labels[np.argmax(q.vectors.astype(np.float64) @ g.vectors.T.astype(np.float64), axis=1)]
    assert (len(q), len(g)) == (14, 26)
    assert found["retrieval"]["gallery"] == 26
    assert found["retrieval"]["measures"]["recall@1"] == pytest.approx(np.mean(nearest == q.labels))

    Image.fromarray(255 - part.image(0)[0].numpy()).save(tmp_path / "0.bmp")  # same name, same size of the file
    again = open_run(run).embed("query", str(manifest))
    assert not np.allclose(again.vectors[0], q.vectors[0])
    np.testing.assert_allclose(again.vectors[1:], q.vectors[1:], atol=1e-6)


def test_approximate_search_tells_what_it_loses(metrix: Any, run: Path) -> None:
    exact = metrix("evaluate", run, "--json", "--bootstrap", "0", "--no-clustering").json["retrieval"]
    found = metrix("evaluate", run, "--json", "--bootstrap", "0", "--no-clustering", "--approximate").json["retrieval"]
    assert found["search"] == "approximate"
    assert found["loss_sample"] == 732  # all queries: the loss is exactly the difference
    for name, lost in found["search_loss"].items():
        assert exact["measures"][name] - found["measures"][name] == pytest.approx(lost, abs=1e-12)


@pytest.fixture
def vectors(tmp_path: Path) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(40, 5)), [f"class {n % 7}" for n in range(39)] + ["alone"]


def written(tmp_path: Path, x: np.ndarray, y: list[str]) -> dict[str, Path]:
    files = {name: tmp_path / name for name in ("x.npy", "x.csv", "headed.csv", "x.parquet", "wide.parquet")}
    np.save(files["x.npy"], x)
    np.savetxt(files["x.csv"], x, delimiter=",", fmt="%.17g")
    lines = [",".join([f"{n}", *map(repr, row), y[n]]) for n, row in enumerate(x.tolist())]
    files["headed.csv"].write_text("\n".join(["id,a,b,c,d,e,label", *lines]) + "\n")
    pq.write_table(pa.table({"label": y, "vector": list(x)}), files["x.parquet"])
    pq.write_table(pa.table({"label": y, **{f"x{k}": x[:, k] for k in range(5)}}), files["wide.parquet"])
    return files


def label_files(tmp_path: Path, y: list[str]) -> list[Path]:
    paths = [tmp_path / name for name in ("table.csv", "column.csv", "bare.csv", "y.npy", "y.txt", "y.parquet")]
    table, column, bare, array, text, parquet = paths
    table.write_text("id,label\n" + "".join(f"{n},{label}\n" for n, label in enumerate(y)))
    column.write_text("species\n" + "".join(f"{label}\n" for label in y))
    bare.write_text("".join(f"{label}\n" for label in y))
    np.save(array, np.array(y))
    text.write_text("\n".join(y))
    pq.write_table(pa.table({"label": y}), parquet)
    return paths


def test_embeddings_and_labels_from_any_file_give_the_same(
    metrix: Any, tmp_path: Path, vectors: tuple[np.ndarray, list[str]]
) -> None:
    x, y = vectors
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    nearest = [next(n for n in np.argsort(-(unit @ unit[q]), kind="stable") if n != q) for q in range(39)]
    expected = np.mean([y[n] == y[q] for q, n in enumerate(nearest)])  # the last, alone, is no query but is searched
    files, labels = written(tmp_path, x, y), label_files(tmp_path, y)
    calls = [(file, labels[0]) for file in files.values()] + [(files["x.npy"], file) for file in labels]
    for file, label in calls:
        outcome = metrix("evaluate", "--embeddings", file, "--labels", label, "--json", "--bootstrap", "0")
        assert outcome.code == 0, (file, label, outcome.err)
        found = outcome.json["retrieval"]
        assert found["left_out"] == 1
        assert found["measures"]["recall@1"] == pytest.approx(expected, abs=1e-12), (file, label)
    both = metrix("evaluate", "--embeddings", files["x.parquet"], "--json", "--bootstrap", "0").json
    assert both["retrieval"] == found


def test_a_gallery_of_its_own(metrix: Any, tmp_path: Path, vectors: tuple[np.ndarray, list[str]]) -> None:
    x, y = vectors
    for name, rows in (("q", slice(0, 10)), ("g", slice(10, 39))):
        np.save(tmp_path / f"{name}.npy", x[rows])
        (tmp_path / f"{name}.txt").write_text("\n".join(y[rows]))
    found = metrix(
        *("evaluate", "--embeddings", tmp_path / "q.npy", "--labels", tmp_path / "q.txt", "--json", "--bootstrap", "0"),
        *("--gallery-embeddings", tmp_path / "g.npy", "--gallery-labels", tmp_path / "g.txt", "--ks", "1"),
    ).json["retrieval"]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    nearest = 10 + np.argmax(unit[:10] @ unit[10:39].T, axis=1)
    assert found["measures"]["recall@1"] == pytest.approx(np.mean([y[n] == y[q] for q, n in enumerate(nearest)]))
    assert found["gallery"] == 29


class TestMistakes:
    """Each is told in a sentence, with exit code 2."""

    def test_of_runs(self, refused: Any, run: Path, tmp_path: Path) -> None:
        refused("evaluate", words=("RUN", "--embeddings"))
        refused("evaluate", tmp_path / "none", words=("is no run", "metrix train"))
        unfinished = tmp_path / "unfinished"
        unfinished.mkdir()
        shutil.copy(run / "config.yaml", unfinished)
        refused("evaluate", unfinished, words=("not finished", "--resume"))
        refused("evaluate", run, "--embeddings", "x.npy", words=("both",))
        refused("evaluate", run, "--part", "tset", words=("did you mean 'test'",))
        refused("evaluate", run, "--data", "glyphs-mimi", words=("did you mean 'glyphs-mini'",))
        refused("evaluate", run, "--ks", "1,many", words=("--ks", "1,2,4,8"))
        refused("evaluate", run, "--per-class", tmp_path / "no" / "x.csv", words=("cannot be written",))

    def test_of_embeddings(self, refused: Any, tmp_path: Path, vectors: tuple[np.ndarray, list[str]]) -> None:
        x, y = vectors
        good, labels = tmp_path / "x.npy", tmp_path / "y.csv"
        np.save(good, x)
        labels.write_text("label\n" + "\n".join(y))

        def bad(name: str, values: Any) -> Path:
            np.save(tmp_path / name, values, allow_pickle=True)
            return tmp_path / name

        nan = x.copy()
        nan[7, 2] = np.nan
        cases = {
            bad("nan.npy", nan): ("NaN", "row 7"),
            bad("flat.npy", x[0]): ("(5,)", "(n, d)"),
            bad("pickled.npy", np.array([{"a": 1}], dtype=object)): ("cannot be read", "run code"),
            bad("zero.npy", np.zeros((40, 5))): ("norm zero",),
            tmp_path / "none.npy": ("does not exist",),
            tmp_path / "x.pkl": ("'.pkl'", "'.npy'"),
        }
        for file, words in cases.items():
            refused("evaluate", "--embeddings", file, "--labels", labels, words=words)
        (tmp_path / "words.csv").write_text("a,b\n1,2\n1,two\n")
        refused("evaluate", "--embeddings", tmp_path / "words.csv", "--labels", labels, words=("line 3", "'two'"))
        refused("evaluate", "--embeddings", good, words=("--labels",))
        refused("evaluate", "--embeddings", good, "--labels", labels, "--data", "glyphs", words=("--data",))
        refused("evaluate", "--embeddings", good, "--labels", labels, "--gallery-labels", labels, words=("both",))

    def test_of_labels(self, refused: Any, tmp_path: Path, vectors: tuple[np.ndarray, list[str]]) -> None:
        x, y = vectors
        np.save(tmp_path / "x.npy", x)
        short, columns, distinct = (tmp_path / name for name in ("short.csv", "columns.csv", "ids.csv"))
        short.write_text("label\n" + "\n".join(y[:30]))
        columns.write_text("id,species\n" + "\n".join(f"{n},{label}" for n, label in enumerate(y)))
        distinct.write_text("label\n" + "\n".join(str(n) for n in range(40)))
        for file, words in {
            short: ("expected 40 labels", "got 30"),
            columns: ("no column 'label'", "'species'"),
            distinct: ("classes, not ids",),
            tmp_path / "none.txt": ("does not exist",),
        }.items():
            refused("evaluate", "--embeddings", tmp_path / "x.npy", "--labels", file, words=words)


def test_processes_embed_in_shares(run: Path, tmp_path: Path, metrix: Any) -> None:
    """Two processes at once: the same numbers as one, said by the first; the embeddings are kept once."""
    alone, shared = (Path(shutil.copytree(run, tmp_path / name)) for name in ("alone", "shared"))
    for copied in (alone, shared):
        shutil.rmtree(copied / "embeddings", ignore_errors=True)
    command = [sys.executable, "-m", "metrix", "evaluate", str(shared), "--json", "--bootstrap", "0"]
    ranks = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in (1, 0)]
    second, first = (subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for env in ranks)
    said = [process.communicate(timeout=240)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert said[1] == ""
    expected = metrix("evaluate", alone, "--json", "--bootstrap", 0).json
    assert {**json.loads(said[0]), "run": ""} == {**expected, "run": ""}
    assert [p.name for p in (shared / "embeddings").iterdir()] == ["test.safetensors"]


def write_vectors(folder: Path, classes: int) -> tuple[str, Path, str, Path]:
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((40, 4)).astype(np.float32))
    (folder / "y.txt").write_text("\n".join(f"class {n % classes}" for n in range(40)))
    return "--embeddings", folder / "x.npy", "--labels", folder / "y.txt"


def test_a_single_class_is_not_measured(metrix: Any, tmp_path: Path) -> None:
    outcome = metrix("evaluate", *write_vectors(tmp_path, 1))
    assert outcome.code != 0
    assert "no answer could be wrong, and every measure would be 100 %" in outcome.err
    assert "100.00" not in outcome.out


@pytest.mark.parametrize(("classes", "few"), [(2, True), (4, True), (5, False)])
def test_figures_of_few_classes_come_with_a_caution(metrix: Any, tmp_path: Path, classes: int, few: bool) -> None:
    given = write_vectors(tmp_path, classes)
    shown = metrix("evaluate", *given)
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.split())
    assert (f"of {classes} classes only" in said) == few
    assert f"40 queries of {classes} classes in a gallery of 40 of {classes} classes" in said
    assert metrix("evaluate", *given, "--json").json["retrieval"]["few_classes"] == few


def test_what_the_intervals_resample_is_a_choice_and_named(metrix: Any, tmp_path: Path) -> None:
    given = write_vectors(tmp_path, 8)
    assert "95 % interval over classes" in metrix("evaluate", *given).out
    assert "95 % interval over queries" in metrix("evaluate", *given, "--bootstrap-over", "queries").out
    refused = metrix("evaluate", *given, "--bootstrap-over", "images")
    assert "unknown bootstrap unit 'images'" in refused.err
