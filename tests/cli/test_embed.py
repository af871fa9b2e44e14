"""`metrix embed`: any data, any number of processes, and what was embedded before a kill is kept."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from metrix.runs.trained_model import open_run
from tests.photos import draw_photo, write_photos


@pytest.fixture(scope="module")
def test_vectors(run: Path) -> np.ndarray:
    from metrix.runs.trained_model import open_run

    return open_run(run).embed("test").vectors


def started(run: Path, output: Path, environment: dict[str, str] | None = None, *arguments: str) -> Any:
    command = [sys.executable, "-m", "metrix", "embed", str(run), "-o", str(output), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_parquet_has_id_path_label_and_vector(metrix: Any, run: Path, test_vectors: np.ndarray, tmp_path: Path) -> None:
    from metrix import data

    outcome = metrix("embed", run, "-o", tmp_path / "x.parquet")
    assert outcome.code == 0, outcome.err
    table = pq.read_table(tmp_path / "x.parquet")
    part = data.open("glyphs-mini").test
    assert table.column_names == ["id", "path", "label", "part", "vector"]
    assert table["id"].to_pylist() == part.indices.tolist()
    assert tuple(table["path"].to_pylist()) == part.paths
    assert table["label"].to_pylist() == [part.class_names[k] for k in part.labels.tolist()]
    assert set(table["part"].to_pylist()) == {"test"}
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), test_vectors)
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_numpy_has_a_table_beside_it_that_evaluate_reads(
    metrix: Any, run: Path, test_vectors: np.ndarray, tmp_path: Path
) -> None:
    metrix("embed", run, "-o", tmp_path / "x.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy", allow_pickle=False), test_vectors)
    with (tmp_path / "x.csv").open(encoding="utf-8") as lines:
        assert len(list(csv.DictReader(lines))) == len(test_vectors)
    common = ("--json", "--bootstrap", "0", "--no-clustering")
    files = ("--embeddings", tmp_path / "x.npy", "--labels", tmp_path / "x.csv")
    assert metrix("evaluate", *files, *common).json["retrieval"] == metrix("evaluate", run, *common).json["retrieval"]


def test_a_folder_of_images_of_other_classes_is_embedded_whole(metrix: Any, run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for n, name in enumerate(["bolt", "nut", "bolt"]):
        folder = tmp_path / "parts" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(folder / f"{n}.png")
    outcome = metrix("embed", run, tmp_path / "parts", "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    with (tmp_path / "out" / "embeddings.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert {(row["path"], row["label"]) for row in rows} == {
        *(("bolt/0.png", "bolt"), ("bolt/2.png", "bolt"), ("nut/1.png", "nut"))
    }
    x = np.load(tmp_path / "out" / "embeddings.npy")
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5)
    assert np.abs(x[0] - x[1]).max() > 1e-3


def test_a_killed_export_goes_on_where_it_was(
    run: Path, test_vectors: np.ndarray, tmp_path: Path, monkeypatch: Any
) -> None:
    import metrix.retrieve.embedding_output as writing
    from metrix.runs import embedding_blocks
    from metrix.runs.trained_model import open_run

    output = tmp_path / "x.parquet"
    process = started(run, output, None, "-q", "--part", "all")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".x.parquet.*/0*.npy")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists(), "it was finished before it could be killed"
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".x.parquet.*/0*.npy")}
    assert kept

    written = []
    plain = embedding_blocks.EmbeddingBlocks.write

    def write(self: Any, number: int, *content: Any) -> None:
        written.append(number)
        plain(self, number, *content)

    monkeypatch.setattr(embedding_blocks.EmbeddingBlocks, "write", write)
    assert writing.write_embeddings(open_run(run), output, part_name="all", engine="auto")
    blocks = -(-1464 // embedding_blocks.BLOCK)
    assert len(written) == blocks - len(kept)
    table = pq.read_table(output)
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    test = np.array(table["part"].to_pylist()) == "test"
    np.testing.assert_allclose(vectors[test], test_vectors, atol=1e-6)
    assert list(tmp_path.iterdir()) == [output]


def test_two_processes_share_the_work(run: Path, test_vectors: np.ndarray, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    both = [started(run, output, {"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
    told = []
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        told.append(err)
    assert any("written" in err for err in told)
    np.testing.assert_array_equal(np.load(output), test_vectors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.json", "x.npy"]


def test_the_last_process_writes_whichever_it_is(
    metrix: Any, run: Path, test_vectors: np.ndarray, tmp_path: Path, monkeypatch: Any
) -> None:
    output = tmp_path / "x.npy"
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in (2, 0):
        monkeypatch.setenv("RANK", str(rank))
        assert f"rank {rank} of 3" in metrix("embed", run, "-o", output).err
        assert not output.exists()
    monkeypatch.setenv("RANK", "1")
    assert "written" in metrix("embed", run, "-o", output).err
    np.testing.assert_array_equal(np.load(output), test_vectors)
    monkeypatch.setenv("RANK", "0")  # started again: there is nothing left to do
    assert metrix("embed", run, "-o", output).code == 0


def test_what_is_there_is_not_replaced_unasked(
    metrix: Any, refused: Any, run: Path, other_run: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.npy"
    metrix("embed", run, "-o", output)
    first = output.read_bytes()
    assert metrix("embed", run, "-o", output).code == 0
    refused("embed", other_run, "-o", output, words=("already exists", "--overwrite"))
    assert output.read_bytes() == first
    assert metrix("embed", other_run, "-o", output, "--overwrite").code == 0
    assert output.read_bytes() != first


def test_torch_is_exact_and_another_engine_says_how_exact_it_is(
    metrix: Any, run: Path, test_vectors: np.ndarray, tmp_path: Path
) -> None:
    outcome = metrix("embed", run, "-o", tmp_path / "exact.npy", "--engine", "torch")
    assert "engine: torch (exact)" in outcome.err
    np.testing.assert_array_equal(np.load(tmp_path / "exact.npy"), test_vectors)
    outcome = metrix("embed", run, "-o", tmp_path / "fast.npy", "--engine", "onnx")
    assert "engine: onnx" in outcome.err
    assert "differ by at most" in outcome.err
    np.testing.assert_allclose(np.load(tmp_path / "fast.npy"), test_vectors, atol=1e-5)
    exact, fast = (json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in ("exact", "fast"))
    assert exact["key"] != fast["key"]
    assert exact["engine"] == {"name": "torch", "measured": []}
    torch, onnx = fast["engine"]["measured"]
    assert (torch["engine"], onnx["engine"], onnx["images"]) == ("torch", "onnx", 16)
    assert 0 < onnx["largest_difference"] < 1e-5
    # what `evaluate` keeps is exact, whatever was embedded before
    np.testing.assert_array_equal(open_run(run).embed("test").vectors, test_vectors)


def test_embeddings_of_another_engine_are_not_taken_for_exact(
    metrix: Any, refused: Any, run: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.parquet"
    assert metrix("embed", run, "-o", output, "--engine", "onnx").code == 0
    first = output.read_bytes()
    assert metrix("embed", run, "-o", output, "--engine", "auto").code == 0  # they will do
    assert output.read_bytes() == first
    refused("embed", run, "-o", output, "--engine", "torch", words=("already exists", "--overwrite"))
    assert metrix("embed", run, "-o", output, "--engine", "torch", "--overwrite").code == 0
    assert output.read_bytes() != first


def test_processes_agree_on_the_engine_that_the_first_chose(
    metrix: Any, run: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    from metrix.model import engines
    from metrix.retrieve import engine_choice

    def choose(embedder: Any, *_: Any) -> Any:
        calls.append(1)
        return engines.build_engine("onnx", embedder), []

    calls: list[int] = []
    monkeypatch.setattr(engine_choice, "choose_engine", choose)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        outcome = metrix("embed", run, "-o", tmp_path / "x.npy")
        assert outcome.code == 0, outcome.err
    assert len(calls) == 1
    assert json.loads((tmp_path / "x.json").read_text("utf-8"))["engine"]["name"] == "onnx"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.json", "x.npy"]


def test_mistakes(refused: Any, run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    refused("embed", tmp_path, words=("is no run",))
    refused("embed", run, "-o", tmp_path / "x.csv", words=("x.csv", "FILE.parquet"))
    refused("embed", run, "--part", "val", words=("'test', 'train', 'all'",))
    refused("embed", run, tmp_path / "none", "-o", tmp_path / "x.npy", words=("does not exist", "a folder, an image"))
    (tmp_path / "file").write_text("")
    refused("embed", run, "-o", tmp_path / "file" / "x.npy", words=("cannot be written",))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("embed", run, "-o", tmp_path / "x.npy", words=("RANK < WORLD_SIZE", "got 2 and 2"))


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_images_need_no_labels_and_no_folders(metrix: Any, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 2, 3)
    loose = tmp_path / "loose"
    loose.mkdir()
    for number in range(3):
        draw_photo(4, number).save(loose / f"{number}.png")
    (tmp_path / "list.txt").write_text("loose/2.png\nphotos/kind 1/0.jpg\n")
    given: dict[str, tuple[list[Path], list[tuple[str, str]]]] = {
        "folder": ([loose], [("0.png", ""), ("1.png", ""), ("2.png", "")]),
        "image": ([loose / "1.png"], [("1.png", "")]),
        "list": ([tmp_path / "list.txt"], [("loose/2.png", ""), ("photos/kind 1/0.jpg", "")]),
        "several": ([loose / "0.png", photos / "kind 0" / "2.jpg"], [("loose/0.png", ""), ("photos/kind 0/2.jpg", "")]),
    }
    for name, (places, expected) in given.items():
        outcome = metrix("embed", run, *places, "-o", tmp_path / f"{name}.npy")
        assert outcome.code == 0, outcome.err
        assert [(row["path"], row["label"]) for row in rows_of(tmp_path / f"{name}.csv")] == expected
    about = json.loads((tmp_path / "folder.json").read_text("utf-8"))
    assert about["root"] == str(loose)
    # the same image has the same embedding, wherever it is named
    np.testing.assert_allclose(np.load(tmp_path / "image.npy")[0], np.load(tmp_path / "folder.npy")[1], atol=1e-6)
    assert metrix("embed", run, loose, "-o", tmp_path / "x.parquet").code == 0
    assert pq.read_table(tmp_path / "x.parquet")["label"].to_pylist() == [None] * 3


def test_vectors_are_those_of_the_same_images_with_labels(metrix: Any, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 2, 3)
    (photos / "list.txt").write_text("".join(f"kind {c}/{n}.jpg\n" for c in range(2) for n in range(3)))
    assert metrix("embed", run, photos / "list.txt", "-o", tmp_path / "x.npy", "--engine", "torch").code == 0
    labelled = open_run(run).embed("all", str(photos)).vectors
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), labelled)


def test_broken_images_are_counted_and_limited(metrix: Any, refused: Any, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 1, 4)
    for number in (1, 2):
        (photos / "kind 0" / f"{number}.jpg").write_bytes(b"no image")
    refused("embed", run, photos, "-o", tmp_path / "x.npy", words=("2 of 4 images cannot be read", "--max-bad 2"))
    outcome = metrix("embed", run, photos, "-o", tmp_path / "x.npy", "--max-bad", 2)
    assert outcome.code == 0, outcome.err
    assert "2 skipped: kind 0/1.jpg" in outcome.err
    assert json.loads((tmp_path / "x.json").read_text("utf-8"))["skipped"] == 2
    assert len(np.load(tmp_path / "x.npy")) == 2


def test_a_part_is_of_one_dataset(metrix: Any, refused: Any, run: Path, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 4, 2)
    assert metrix("embed", run, photos, "--part", "test", "-o", tmp_path / "x.npy").code == 0
    assert {row["part"] for row in rows_of(tmp_path / "x.csv")} == {"test"}
    refused("embed", run, photos, photos, "--part", "test", words=("expected one dataset", "--part all"))
