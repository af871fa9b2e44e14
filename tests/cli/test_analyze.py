"""`metrix analyze`: the paper's measures on a run, against literal loops."""

from __future__ import annotations

import csv
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="module")
def parts(run: Path) -> dict[str, Any]:
    from metrix.runs.trained_model import open_run

    model = open_run(run)
    return {name: model.embed(name) for name in ("train", "test")}


def test_geometry_is_that_of_all_pairs(metrix: Any, run: Path, parts: dict[str, Any]) -> None:
    found = metrix("analyze", "geometry", run, "--json").json
    for name, part in parts.items():
        x = part.vectors.astype(np.float64)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        squared = ((x[:, None] - x) ** 2).sum(-1)
        upper = np.triu(np.ones(squared.shape, dtype=bool), k=1)
        positive = upper & (part.labels[:, None] == part.labels)
        assert found[name]["alignment"] == pytest.approx(squared[positive].mean(), abs=1e-9)
        assert found[name]["uniformity"]["value"] == pytest.approx(np.log(np.exp(-2 * squared[upper]).mean()), abs=1e-9)
        assert found[name]["uniformity"]["sampled"] is None
    assert json.loads((run / "analysis" / "geometry.json").read_text()) == found


def test_geometry_of_embeddings_from_anywhere(metrix: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 0.0], [-2.0, 0.0]]))
    (tmp_path / "y.txt").write_text("a\na")
    files = ("--embeddings", tmp_path / "x.npy", "--labels", tmp_path / "y.txt", "-o", tmp_path / "out")
    found = metrix("analyze", "geometry", *files, "--json").json["embeddings"]
    assert found["alignment"] == pytest.approx(4.0)
    assert found["uniformity"]["value"] == pytest.approx(-8.0)


def test_positivity_writes_curves_and_plots(metrix: Any, run: Path, parts: dict[str, Any], tmp_path: Path) -> None:
    from metrix import evaluate, losses

    out = tmp_path / "curves"
    outcome = metrix("analyze", "positivity", run, "--loss", "multi-similarity", "-o", out, "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert sorted(path.name for path in out.iterdir()) == [f"positivity.{x}" for x in ("csv", "json", "png", "svg")]
    expected = evaluate.positivity(
        parts["train"].vectors,
        parts["train"].labels,
        found["lams"],
        losses.MultiSimilarity(),
        batch_size=120,
        per_class=4,
        generator=torch.Generator().manual_seed(0),
    )
    np.testing.assert_array_equal(found["empirical"], expected.empirical)
    np.testing.assert_array_equal(found["theoretical"], expected.theoretical)
    with (out / "positivity.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["theoretical"]) for row in rows] == found["theoretical"]
    with Image.open(out / "positivity.png") as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert image.size[0] > 600
    blue, orange = ((np.abs(pixels - np.array(c)).max(1) < 8).sum() for c in ((0x2A, 0x7F, 0xC1), (0xD9, 0x72, 0x2B)))
    assert blue > 500  # both curves are drawn
    assert orange > 200
    assert ElementTree.parse(out / "positivity.svg").getroot().tag.endswith("svg")


def test_the_same_curves_give_the_same_files(metrix: Any, run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        metrix("analyze", "positivity", run, "-o", tmp_path / name)
    for kind in ("csv", "png", "svg"):
        first, second = ((tmp_path / name / f"positivity.{kind}").read_bytes() for name in ("a", "b"))
        assert first == second


@pytest.mark.parametrize("head_init", ["random", "whiten"])
def test_the_initial_model_is_the_one_that_training_began_with(metrix: Any, tmp_path: Path, head_init: str) -> None:
    from metrix import Embedder
    from metrix.runs.trained_model import open_run
    from tests.trained_runs import train_tiny

    still = train_tiny(tmp_path / "still", max_steps=1, lr=1e-30, weight_decay=0.0, seed=4, head_init=head_init)
    made = dict(open_run(still, initial=True).embedder.named_parameters())
    for name, parameter in Embedder.load(still).named_parameters():
        torch.testing.assert_close(made[name].cpu(), parameter)
    first = metrix("analyze", "positivity", still, "--initial", "--json", "-o", tmp_path / "out").json
    assert first["initial"] is True
    assert (still / "embeddings" / "train-initial.safetensors").is_file()
    assert not (still / "embeddings" / "train.safetensors").exists()


def test_theory_is_left_out_where_it_does_not_hold(metrix: Any, run: Path) -> None:
    found = metrix("analyze", "positivity", run, "--json").json
    assert found["loss"] == "Contrastive"
    assert set(found["theoretical"]) == {None}
    assert found["empirical"][-1] == 1.0
    with_margin = metrix("analyze", "positivity", run, "--json", "--margin", "0.9").json
    assert with_margin["zero"] != found["zero"]  # fewer negatives are beyond the margin


def test_utilization_falls_with_mixed_examples_of_any_kind(metrix: Any, run: Path, parts: dict[str, Any]) -> None:
    outcome = metrix("analyze", "utilization", run, "--mixup", "input,feature,embed", "--epochs", "2", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    q, x = (parts[name].vectors.astype(np.float64) for name in ("test", "train"))
    squared = ((q[:, None] - x) ** 2).sum(-1).min(1)
    assert found["clean"]["value"] == pytest.approx(squared.mean(), abs=1e-6)
    for name in ("input", "feature", "embed"):
        assert found["mixed"][name]["value"] < found["clean"]["value"]
        assert found["counts"][name] == 2 * len(x)
    assert len({value["value"] for value in found["mixed"].values()}) == 3  # three ways to mix
    assert json.loads((run / "analysis" / "utilization.json").read_text()) == found


def test_utilization_of_embeddings_from_anywhere(metrix: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.array([[1.0, 1.0]]))
    np.save(tmp_path / "x.npy", np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    (tmp_path / "y.txt").write_text("a\nb\na")
    found = metrix(
        *("analyze", "utilization", "--embeddings", tmp_path / "q.npy", "--train-embeddings", tmp_path / "x.npy"),
        *("--train-labels", tmp_path / "y.txt", "--epochs", "200", "-o", tmp_path, "--json"),
    ).json
    assert found["clean"]["value"] == pytest.approx(2 - math.sqrt(2))
    assert found["mixed"]["embed"]["value"] < 0.01


def test_queries_are_drawn_where_asked_with_a_standard_error(metrix: Any, run: Path) -> None:
    found = metrix("analyze", "utilization", run, "--mixup", "embed", "--epochs", "1", "--max-queries", "50", "--json")
    assert found.json["clean"]["sampled"] == 50
    assert found.json["clean"]["standard_error"] > 0


def test_mistakes(refused: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    np.save(tmp_path / "x.npy", np.eye(3))
    refused("analyze", "geometry", words=("RUN", "--embeddings"))
    refused("analyze", "geometry", tmp_path, words=("is no run",))
    refused("analyze", "geometry", run, "-o", tmp_path / "file" / "x", words=("cannot be created", "-o"))
    refused("analyze", "positivity", run, "--loss", "multi-simlarity", words=("did you mean 'multi-similarity'",))
    refused("analyze", "positivity", run, "--gamma", "3", words=("'contrastive' has no gamma", "margin"))
    refused(
        "analyze",
        "positivity",
        run,
        "--loss",
        "multi-similarity",
        "--gamma",
        "-3",
        words=("gamma", "expected a number > 0"),
    )
    refused("analyze", "utilization", run, "--mixup", "embed,inptu", words=("did you mean 'input'",))
    refused("analyze", "utilization", "--embeddings", tmp_path / "x.npy", words=("--train-embeddings",))
    assert not (run / "analysis" / ".geometry.json").exists()


def test_a_table_says_what_may_follow_and_json_does_not(metrix: Any, run: Path, tmp_path: Path) -> None:
    told = metrix("analyze", "geometry", run, "-o", tmp_path)
    assert "next: " in told.err
    assert f"metrix report {run} OTHER" in told.err
    assert "next: " not in metrix("analyze", "geometry", run, "-o", tmp_path, "--json").err
