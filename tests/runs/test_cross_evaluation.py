"""Searches across two runs, against a literal computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.errors import InvalidInput
from metrix.runs.cross_evaluation import evaluate_across_runs
from metrix.runs.trained_model import open_run
from tests.trained_runs import train_tiny


def test_recall_of_each_model_among_images_of_each(run: Path, other_run: Path) -> None:
    new, old = open_run(other_run), open_run(run)
    found = evaluate_across_runs(new, old, resamples=100)
    a, b = new.embed("test"), old.embed("test")
    for name, queries, gallery in (
        ("old → old", b, b),
        ("new → old", a, b),
        ("new → new", a, a),
    ):
        similar = queries.vectors @ gallery.vectors.T
        np.fill_diagonal(similar, -2)
        one = found.found.searches[name]
        assert one.recall == pytest.approx((a.labels[similar.argmax(1)] == a.labels).mean(), abs=2e-3)  # ties
        alike = (a.labels[:, None] == a.labels) & ~np.eye(len(a), dtype=bool)
        mean = np.mean([similar[row][alike[row]].mean() for row in range(len(a)) if alike[row].any()])
        assert one.same_class == pytest.approx(mean, abs=1e-4)
        assert one.interval is not None
        assert one.interval[0] < one.recall < one.interval[1]
    first, cross = (found.found.searches[name] for name in ("old → old", "new → old"))
    assert first.difference == 0
    assert cross.difference == pytest.approx(cross.recall - first.recall)
    assert (found.about["images"], found.about["classes"]) == (len(a), 60)
    assert found.found.chance < 0.05


def test_what_cannot_be_compared_is_an_error(run: Path, tmp_path: Path) -> None:
    short = train_tiny(tmp_path / "short", dim=16, max_steps=1)
    with pytest.raises(InvalidInput, match="through an adapter only: metrix upgrade"):
        evaluate_across_runs(open_run(run), open_run(short))
    split = train_tiny(tmp_path / "split", split_seed=3, max_steps=1)
    with pytest.raises(InvalidInput, match="as the runs split the data in other ways"):
        evaluate_across_runs(open_run(run), open_run(split))
    both = evaluate_across_runs(open_run(run), open_run(split), data="glyphs-mini", part="all", resamples=0)
    assert both.about["images"] == 1464


def test_the_command(metrix: Any, refused: Any, run: Path, other_run: Path) -> None:
    done = metrix("evaluate", other_run, "--against", run, "--bootstrap", 20)
    assert done.code == 0, done.err
    assert "new → old" in done.out
    assert "of 60 classes" in " ".join(done.out.split())
    found = metrix("evaluate", other_run, "--against", run, "--bootstrap", 0, "--json").json
    assert list(found["searches"]) == ["old → old", "new → old", "new → new"]
    refused("evaluate", other_run, "--against", run, "--rerank", words=("expected without --against",))
    refused("evaluate", other_run, "--against", run / "none", words=("none",))
    refused("evaluate", "--against", run, words=("expected a RUN",))
