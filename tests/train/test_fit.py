"""How well training classes are fitted, and the gap to unseen ones, beside a slow count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from metrix.runs.trained_model import open_run
from metrix.train import Config, train
from metrix.train.batches import open_data, select_training_part
from metrix.train.fit import IMAGES, describe_training_fit, draw_matched


def measure(vectors: NDArray[np.float64], labels: NDArray[np.int64]) -> list[float]:
    """MAP@R and Recall@1, query by query."""
    S = vectors @ vectors.T
    precisions, first = [], []
    for i, label in enumerate(labels):
        others = [j for j in np.argsort(-S[i]) if j != i]
        R = sum(labels[j] == label for j in others)
        hits = [labels[j] == label for j in others[:R]]
        precisions.append(sum(sum(hits[: r + 1]) / (r + 1) for r in range(R) if hits[r]) / R)
        first.append(hits[0])
    return [float(np.mean(precisions)), float(np.mean(first))]


def sizes(labels: NDArray[np.int64], rows: NDArray[np.int64]) -> list[int]:
    return sorted(np.unique(labels[rows], return_counts=True)[1].tolist())


CASES = {
    "more unseen classes": (np.repeat(np.arange(3), [9, 2, 5]), np.repeat(np.arange(40), 4)),
    "more training classes": (np.repeat(np.arange(50), 3), np.repeat(np.arange(4), [2, 2, 8, 3])),
    "singletons": (np.array([0, 1, 1, 2, 3, 3, 4]), np.array([5, 5, 6, 6, 7, 8])),
    "large": (np.repeat(np.arange(5), 3000), np.repeat(np.arange(7), 900)),
    "many small": (np.repeat(np.arange(4000), 2), np.repeat(np.arange(3000), 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_both_sides_have_equally_many_classes_of_equal_sizes(name: str) -> None:
    own, held = CASES[name]
    draws = list(draw_matched(own, held, np.random.default_rng(0)))
    assert draws
    for rows, others in draws:
        assert len(set(rows.tolist())) == len(rows)
        assert len(set(others.tolist())) == len(others)
        assert sizes(own, rows) == sizes(held, others)
        assert min(sizes(own, rows)) > 1
        assert len(rows) <= IMAGES
    classes = {tuple(np.unique(own[rows])) for rows, _ in draws}
    assert len(classes) == 1  # only unseen classes are drawn again


@pytest.mark.parametrize(("own", "held"), [([0, 0, 1], [2, 2, 3, 3]), ([0, 0, 1, 1], [2, 3]), ([0, 0, 1, 1], [])])
def test_nothing_is_measured_without_two_classes_of_two(own: list[int], held: list[int]) -> None:
    assert not list(draw_matched(np.array(own), np.array(held, np.int64), np.random.default_rng(0)))


def test_a_run_measures_its_fit(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"holdout": 0.0}), tmp_path / "run")
    assert run.results is not None
    found = run.results["fit"]
    model = open_run(run.path)
    parts = [model.embed("train"), model.embed("test")]
    vectors = [np.asarray(part.vectors, np.float64) for part in parts]
    dataset = open_data(run.config)
    labels = [select_training_part(run.config, dataset).labels.numpy(), dataset.test.labels.numpy()]
    expected = [
        [measure(v[rows], y[rows]) for v, y, rows in zip(vectors, labels, draw, strict=True)]
        for draw in draw_matched(labels[0], labels[1], np.random.default_rng(0))
    ]
    training, unseen = np.mean(expected, axis=0)
    assert [found["training_map@r"], found["training_recall@1"]] == pytest.approx(training, abs=2e-3)
    assert [found["unseen_map@r"], found["unseen_recall@1"]] == pytest.approx(unseen, abs=2e-3)
    assert found["gap"] == pytest.approx(found["training_map@r"] - found["unseen_map@r"])
    assert (found["classes"], found["draws"]) == (8, 5)
    assert f"MAP@R {100 * found['training_map@r']:.1f} % among their examples" in describe_training_fit(run.results)


def test_held_out_classes_stand_in_where_there_are_no_test_classes(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"unseen": 0.0, "holdout": 0.1}), tmp_path / "run")
    assert run.results is not None
    assert run.results["test"] is None
    assert run.results["fit"]["classes"] == 8


def test_a_run_without_unseen_classes_says_nothing_of_fit(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"unseen": 0.0, "holdout": 0.0, "max_steps": 2}), tmp_path / "run")
    assert run.results is not None
    assert run.results["fit"] is None
    assert describe_training_fit(run.results) == ""
