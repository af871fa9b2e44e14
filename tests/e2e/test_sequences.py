"""A column `sequence` through training, evaluation, comparison, report and explorer: one number everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrix import evaluate
from metrix.runs.trained_model import open_run
from tests.command_line import Metrix

CLASSES, EACH = 24, 8


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors in pairs of near-copies, each pair a sequence: without its pair, a query often finds another class."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    centres = rng.normal(size=(CLASSES, 6))[labels] + 1.5 * np.repeat(rng.normal(size=(len(labels) // 2, 6)), 2, axis=0)
    vectors = (centres + 0.01 * rng.normal(size=centres.shape)).astype(np.float32)
    sequences = [None if n % 16 == 15 else f"track {n // 2}" for n in range(len(labels))]
    path = tmp_path_factory.mktemp("tracks") / "vectors.parquet"
    columns = {"vector": list(vectors), "label": [f"class {k}" for k in labels], "sequence": sequences}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(scope="module")
def run(table: Path, metrix: Metrix) -> Path:
    settings = ("--loss", "contrastive", "--dim", "6", "--hidden", "8", "--epochs", "2", "--batch-size", "40")
    outcome = metrix("train", table, *settings, "--holdout", "0", "-o", table.parent / "run")
    assert outcome.code == 0, outcome.err
    return table.parent / "run"


def recall_literally(x: np.ndarray, labels: Any, tracks: Any) -> float:
    hits = []
    for q in range(len(x)):
        there = [g for g in range(len(x)) if g != q and not (tracks[q] and tracks[g] == tracks[q])]
        if any(labels[g] == labels[q] for g in there):
            hits.append(labels[there[int(np.argmax(x[there] @ x[q]))]] == labels[q])
    return float(np.mean(hits))


def test_every_verb_has_the_same_number(metrix: Metrix, run: Path, table: Path) -> None:
    found = open_run(run).embed("test")
    assert found.sequences is not None
    expected = recall_literally(found.vectors.astype(np.float64), found.labels, found.sequences)
    plain = evaluate.recall_at_k(found.vectors, found.labels, (1,))[1]
    assert expected < plain - 0.2  # near-copies flatter

    measured = metrix("evaluate", run, "--json", "--no-clustering").json
    assert measured["retrieval"]["measures"]["recall@1"] == pytest.approx(expected, abs=1e-12)
    assert measured["retrieval"]["sequences"] == len(set(found.sequences.tolist()) - {""})
    assert json.loads((run / "results.json").read_text())["test"]["recall"]["1"] == pytest.approx(expected, abs=1e-12)
    assert json.loads((run / "evaluation.json").read_text()) == measured
    ignoring = metrix("evaluate", run, "--json", "--no-clustering", "--ignore-sequences").json
    assert ignoring["retrieval"]["measures"]["recall@1"] == pytest.approx(plain, abs=1e-12)
    assert json.loads((run / "evaluation.json").read_text()) == measured

    shown = metrix("evaluate", run, "--no-clustering")
    assert "what is of a query's own does not count" in " ".join(shown.out.split())


def test_the_explorer_counts_the_same_mistakes(run: Path) -> None:
    from metrix.explore.collection import Mistakes
    from metrix.explore.run_collections import read_collections

    found = open_run(run).embed("test")
    (shown,) = read_collections([run], 1 << 20, lambda *_: None)
    right = Mistakes(shown).right
    expected = recall_literally(found.vectors.astype(np.float64), found.labels, found.sequences)
    assert (right[right >= 0] == 1).mean() == pytest.approx(expected, abs=1e-12)


def test_embeddings_from_files(metrix: Metrix, run: Path, table: Path, tmp_path: Path) -> None:
    from metrix.errors import DataError
    from metrix.runs.evaluation import read_examples

    columns = pq.read_table(table).to_pydict()
    x = np.array(columns["vector"])
    tracks = [track or "" for track in columns["sequence"]]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = recall_literally(unit, columns["label"], tracks)
    of_table = metrix("evaluate", "--embeddings", table, "--json", "--no-clustering", "--bootstrap", 0)
    assert of_table.json["retrieval"]["measures"]["recall@1"] == pytest.approx(expected, abs=1e-12)
    np.save(tmp_path / "x.npy", x)
    lines = [f"{label},{track}" for label, track in zip(columns["label"], tracks, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["label,sequence", *lines]))
    given = ("--embeddings", tmp_path / "x.npy", "--labels", tmp_path / "labels.csv")
    of_list = metrix("evaluate", *given, "--json", "--no-clustering", "--bootstrap", 0)
    assert of_list.json["retrieval"]["measures"] == of_table.json["retrieval"]["measures"]
    gallery = ("--gallery-embeddings", tmp_path / "x.npy", "--gallery-labels", tmp_path / "labels.csv")
    both = metrix("evaluate", *given, *gallery, "--json", "--no-clustering", "--bootstrap", 0).json["retrieval"]
    own = evaluate.recall_at_k(
        x, columns["label"], (1,), x, columns["label"], sequences=tracks, gallery_sequences=tracks
    )
    assert both["measures"]["recall@1"] == pytest.approx(own[1])
    np.save(tmp_path / "x.npy", x[:-1])
    with pytest.raises(DataError):
        read_examples(tmp_path / "x.npy", tmp_path / "labels.csv")
