"""Precomputed vectors through every verb: check, train, resume, evaluate, embed, index, search, export."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from metrix import Embedder, evaluate
from metrix.train import Config, Interrupted, train
from metrix.train.checkpoint import Progress
from metrix.train.config import read_config
from metrix.train.watching import Watcher
from tests.command_line import Metrix

CLASSES, EACH, LENGTH = 60, 8, 12
LOSS = ("--loss", "contrastive", "--reduction", "mean_nonzero", "--lr", "1e-2")
SETTINGS = (*LOSS, "--dim", "6", "--hidden", "16,16", "--epochs", "12", "--batch-size", "80", "--holdout", "0")


def draw_vectors() -> tuple[np.ndarray, list[str]]:
    """Classes differ in four directions; four others, twice as strong, are the same noise in all of them."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(LENGTH, LENGTH)))[0]
    signal = np.repeat(rng.normal(size=(CLASSES, 4)), EACH, axis=0) + 0.15 * rng.normal(size=(CLASSES * EACH, 4))
    noise = 2 * rng.normal(size=(CLASSES * EACH, 4))
    vectors = signal @ directions[:4] + noise @ directions[4:8]
    return vectors.astype(np.float32), [f"class {k}" for k in range(CLASSES) for _ in range(EACH)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vectors.parquet and vectors.npz of the same, and a run on them in `run`."""
    folder = tmp_path_factory.mktemp("vectors")
    vectors, labels = draw_vectors()
    names = [f"item {n}" for n in range(len(labels))]
    table = {"id": names, "vector": list(vectors), "label": labels, "price": list(range(len(labels)))}
    pq.write_table(pa.table(table), folder / "vectors.parquet")
    np.savez(folder / "vectors.npz", vectors=vectors, label=labels, id=names)
    np.save(folder / "queries.npy", vectors[:3])
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, metrix: Metrix) -> Path:
    outcome = metrix("train", folder / "vectors.parquet", *SETTINGS, "-o", folder / "run")
    assert outcome.code == 0, outcome.err
    assert "the network is mlp (16, 16): the data are vectors of 12 numbers" in outcome.err
    return folder / "run"


def test_training_finds_the_directions_that_tell_unseen_classes_apart(folder: Path, run: Path) -> None:
    vectors, labels = draw_vectors()
    unseen = json.loads((run / "results.json").read_text())["test"]
    assert unseen["classes"] == CLASSES // 2
    before = evaluate.recall_at_k(vectors, labels, ks=(1,))[1]
    assert before < 0.3
    assert unseen["recall"]["1"] > before + 0.3


def test_the_run_stores_what_was_used_and_what_was_asked_for(run: Path) -> None:
    used = read_config(run / "config.yaml").model
    assert (used.backbone, used.pool, used.hidden) == ("mlp", "avg", (16, 16))
    asked = json.loads((run / "environment.json").read_text())["asked"]
    assert asked == {"backbone": "resnet50", "pool": "avg+max", "precision": "auto", "weights": "pretrained"}


def test_the_network_standardises_as_the_training_vectors_ask(run: Path) -> None:
    vectors, _ = draw_vectors()
    stem = Embedder.load(run).backbone.stem
    assert not torch.equal(stem.scale, torch.ones(LENGTH))
    assert (stem.mean - torch.from_numpy(vectors.mean(0))).abs().max() < 1


@pytest.mark.parametrize("mix_at", ["0", "1", "2"])
def test_feature_mixup_trains_at_every_layer(mix_at: str, folder: Path, tmp_path: Path, metrix: Metrix) -> None:
    flags = (*SETTINGS, "--mix-at", mix_at, "--max-steps", "2")
    outcome = metrix("train", folder / "vectors.npz", *flags, "-o", tmp_path / "r", "--json")
    assert outcome.code == 0, outcome.err
    assert Embedder.load(tmp_path / "r").config.mix_at == int(mix_at)


def test_a_resumed_run_ends_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    values = {"data": str(folder / "vectors.npz"), "dim": 6, "hidden": (8,), "batch_size": 40, "holdout": 0.0}
    config = Config().with_values({**values, "epochs": 2})
    train(config, tmp_path / "whole")

    class Stop(Watcher):
        def step(self, progress: Progress, losses: list[float], images: int) -> None:
            if progress.step == 3:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(config, tmp_path / "part", watcher=Stop())
    train(resume=tmp_path / "part")
    one, other = Embedder.load(tmp_path / "whole").state_dict(), Embedder.load(tmp_path / "part").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_evaluate_embed_and_python_agree(folder: Path, run: Path, tmp_path: Path, metrix: Metrix) -> None:
    measured = metrix("evaluate", run, "--bootstrap", "0", "--json").json
    trained = json.loads((run / "results.json").read_text())["test"]["recall"]["1"]
    assert measured["retrieval"]["measures"]["recall@1"] == pytest.approx(trained, abs=1e-9)
    out = tmp_path / "e.parquet"
    assert metrix("embed", run, folder / "vectors.npz", "-o", out).code == 0
    table = pq.read_table(out).to_pydict()
    vectors, labels = draw_vectors()
    assert table["path"] == [f"item {n}" for n in range(len(labels))]
    assert table["label"] == labels
    np.testing.assert_array_equal(np.array(table["vector"], np.float32), Embedder.load(run).encode(vectors))


def test_an_index_of_vectors_is_built_searched_and_changed(folder: Path, run: Path, tmp_path: Path, metrix) -> None:
    index = tmp_path / "i"
    assert metrix("index", run, folder / "vectors.parquet", "-o", index).code == 0
    found = metrix("search", index, folder / "queries.npy", "-k", "1", "--json").json["queries"]
    assert [one["neighbours"][0]["id"] for one in found] == ["item 0", "item 1", "item 2"]
    assert found[2]["neighbours"][0]["price"] == 2
    by_id = metrix("search", index, "--id", "item 5", "-k", "3", "--where", "price<4", "--json").json["queries"][0]
    assert {one["price"] for one in by_id["neighbours"]} <= {0, 1, 2, 3}
    assert metrix("index", run, folder / "queries.npy", "-o", index, "--add").code == 0
    assert (
        metrix("search", index, "--id", "0", "-k", "1", "--json").json["queries"][0]["neighbours"][0]["id"] == "item 0"
    )


def test_mistakes_are_answered_in_one_line(folder: Path, run: Path, tmp_path: Path, refused) -> None:
    npz = folder / "vectors.npz"
    refused("train", npz, "--backbone", "resnet18", words="expected 'mlp' with the vectors")
    refused("train", npz, "--image-size", "64", words="image_size: expected nothing with vectors")
    refused("train", npz, "--pool", "gem", words="vectors, which have no positions to pool, got 'gem'")
    refused("train", npz, "--hidden", "8", "--mix-at", "2", words="mix_at: expected at most 1")
    refused("train", npz, "--hidden", "0", words="hidden")
    refused("train", "glyphs-mini", "--backbone", "mlp", words="got 'mlp', which takes vectors")
    refused("evaluate", run, "--data", "glyphs-mini", words="data: expected vectors")
    np.savez(tmp_path / "short.npz", vectors=np.ones((8, 5)), label=list("aabbccdd"))
    refused("embed", run, tmp_path / "short.npz", "-o", tmp_path / "x.npy", words="expected vectors of 12 numbers")
    refused("index", run, tmp_path / "short.npz", "-o", tmp_path / "x.index", words="expected vectors of 12 numbers")
    refused("export", run, "--hub", tmp_path / "hub", words="--hub: expected a run on images")


def test_export_gives_the_same_embeddings(run: Path, tmp_path: Path, metrix: Metrix) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert metrix("export", run, "--onnx", tmp_path / "m.onnx").code == 0
    vectors, _ = draw_vectors()
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: vectors})
    np.testing.assert_allclose(found, Embedder.load(run).encode(vectors), atol=1e-5)


def test_tables_speak_of_vectors_and_of_the_network_before_training(
    folder: Path, tmp_path: Path, metrix: Metrix
) -> None:
    outcome = metrix("train", folder / "vectors.npz", *SETTINGS, "--max-steps", "2", "-o", tmp_path / "r")
    untrained = json.loads((tmp_path / "r" / "results.json").read_text())["untrained_test"]["recall"]["1"]
    assert f"before training: Recall@1 {100 * untrained:.1f} on 30 unseen classes" in outcome.err
    assert "240 vectors of 30 classes" in outcome.err
    assert "unseen classes, untrained" in outcome.out
    assert "image" not in outcome.out + outcome.err


def test_no_command_speaks_of_images(folder: Path, run: Path, tmp_path: Path, metrix: Metrix) -> None:
    index, page = tmp_path / "i", tmp_path / "page.html"
    commands = {
        "data check": ("data", "check", folder / "vectors.npz"),
        "evaluate": ("evaluate", run, "--bootstrap", "0"),
        "compare": ("compare", run, run),
        "threshold": ("threshold", run, "--recall", "0.5", "-o", tmp_path / "t"),
        "report": ("report", run, "-o", page, "--bootstrap", "0"),
        "positivity": ("analyze", "positivity", run, "-o", tmp_path / "a"),
        "utilization": ("analyze", "utilization", run, "-o", tmp_path / "a", "--epochs", "1"),
        "geometry": ("analyze", "geometry", run, "-o", tmp_path / "a"),
        "index": ("index", run, folder / "vectors.npz", "-o", index),
        "search": ("search", index, folder / "queries.npy", "--html", tmp_path / "s.html"),
        "duplicates": ("search", index, "--duplicates", "--html", tmp_path / "d.html"),
        "suspects": ("search", index, "--suspects", "--html", tmp_path / "u.html"),
        "nothing to search with": ("search", index, tmp_path / "nothing.npy"),
        "too many dimensions": ("train", folder / "vectors.npz", "--head-init", "whiten", "-o", tmp_path / "w"),
        "too few per class": ("train", folder / "vectors.npz", "--per-class", "1", "-o", tmp_path / "p"),
    }
    refused = ("nothing to search with", "too many dimensions", "too few per class")
    for name, words in commands.items():
        outcome = metrix(*words)
        assert outcome.code == (2 if name in refused else 0), (name, outcome.err)
        assert "image" not in (outcome.out + outcome.err).lower(), (name, outcome)
    for written in (page, page.with_suffix(".md"), *(tmp_path / f"{name}.html" for name in "sdu")):
        text = written.read_text()
        said = re.sub(r"(?s)<(style|script|svg)\b.*?</\1>|<[^>]*>|\]\([^)]*\)|!\[", " ", text)
        found = re.search(r".{0,60}\bimages?\b.{0,60}", said, re.IGNORECASE)
        assert found is None, (written.name, found)


def test_a_report_on_vectors(run: Path, tmp_path: Path, metrix: Metrix) -> None:
    made = metrix("report", run, "-o", tmp_path / "page.html", "--json")
    assert made.code == 0, made.err
    page = (tmp_path / "page.md").read_text()
    assert "The data are vectors, which cannot be shown" in page
    untrained = json.loads((run / "results.json").read_text())["untrained_test"]["recall"]["1"]
    assert f"before training, on the same classes: Recall@1 {100 * untrained:.1f}" in page


def test_the_page_on_a_run_of_vectors_lists_neighbours_without_pictures(run: Path) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    from metrix.serve.api import build_explorer

    client = testclient.TestClient(build_explorer([run]), base_url="http://127.0.0.1")
    about = client.get("/explore").json()["collections"][0]
    assert (about["count"], about["uploads"]) == (240, False)
    found = client.get(f"/explore/{about['version']}/query", params={"row": 3, "k": 2}).json()
    assert len(found["neighbours"]) == 2
    assert found["query"]["id"].startswith("item ")
    assert client.get(f"/explore/{about['version']}/points", params={"map": "pca"}).status_code == 200
    assert client.get(f"/explore/{about['version']}/image/3").status_code == 404
