"""What a report concludes from numbers: nothing that noise explains, and nothing from one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix import evaluate
from metrix.report.page import Text, Tiles
from metrix.report.reported_runs import MeasuredRun, ReportedRun
from metrix.report.sections.cost import build_cost_section
from metrix.report.sections.metrics import build_metrics_section, build_overview_section, compare_with_first
from metrix.report.sections.training import build_training_section
from metrix.runs.evaluation import Evaluation, Examples
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder


def reported(name: str, vectors: np.ndarray, labels: np.ndarray, **settings: Any) -> ReportedRun:
    """A run whose test embeddings are given, without a model."""
    config = Config().with_values(settings)
    test = Examples(vectors, labels, about={"fingerprint": "the same"})
    found = Evaluation({}, evaluate.retrieval(vectors, labels, (1,), resamples=200), None)
    run = ReportedRun(name, RunFolder(Path(name)), config, {}, [])
    run.measured = MeasuredRun(name, config, None, test, found)  # type: ignore[arg-type]
    return run


def draw(noise: float, seed: int = 0, classes: int = 12, each: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings around the corners of a simplex; the same noise, scaled, for the same seed."""
    labels = np.repeat(np.arange(classes), each)
    return np.eye(classes)[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), classes)), labels


def texts(section: Any) -> str:
    return "\n".join(block.text for block in section.blocks if isinstance(block, Text))


def test_the_overview_speaks_of_map_at_r_where_recall_does_not_differ() -> None:
    tight, labels = draw(0.05)
    apart = tight.copy()
    apart[np.arange(len(labels)) % 8 >= 4, :] *= -1  # each class in two opposite groups: Recall@1 stays, MAP@R halves
    runs = [reported("apart", apart, labels), reported("tight", tight, labels)]
    differences = compare_with_first(runs, 200)
    assert differences["tight"][1]["recall@1"].difference == 0
    overview = build_overview_section(runs, differences)
    said = texts(overview)
    assert "Recall@1 is the same" in said
    points = 100 * differences["tight"][1]["map@r"].difference
    assert points > 30
    assert f"MAP@R is {points:.2f} points higher" in said
    assert "more than the choice of classes explains" in said
    (tiles,) = (block for block in overview.blocks if isinstance(block, Tiles))
    assert "MAP@R 100.0 %" in tiles.tiles[1].detail


def test_one_seed_cannot_tell_and_several_state_their_spread() -> None:
    runs = [reported("a", *draw(0.35)), reported("b", *draw(0.35, seed=1), alpha=1.0)]
    said = texts(build_overview_section(runs, compare_with_first(runs, 50)))
    assert "One training run of each setting cannot tell a better setting from a luckier seed" in said
    more = [*runs, reported("c", *draw(0.45, seed=2), seed=1), reported("d", *draw(0.35, seed=3), alpha=1.0, seed=1)]
    recalls = [100 * run.measured.retrieval.means["recall@1"] for run in more if run.measured]
    spread = max(abs(recalls[0] - recalls[2]), abs(recalls[1] - recalls[3]))
    said = texts(build_overview_section(more, compare_with_first(more, 50)))
    assert "cannot tell" not in said
    assert f"up to {spread:.2f} points apart" in said


def test_only_what_differs_by_more_than_noise_is_marked_as_best() -> None:
    close = [reported("a", *draw(0.40)), reported("b", *draw(0.405))]
    table: Any = build_metrics_section(close, {}, 200).blocks[0]
    recalls = [row[4].value for row in table.rows]
    assert recalls[0] != recalls[1]  # one of them is the higher one, by noise
    assert not [place for place in table.best if place[1] == 4]
    clear = [*close, reported("c", *draw(1.5))]
    table = build_metrics_section(clear, {}, 200).blocks[0]
    assert {(0, 4), (1, 4)} <= table.best  # both are better than c, and cannot be told apart
    assert not [place for place in table.best if place[0] == 2]
    assert any("cannot tell from it" in note for note in table.footnotes)
    assert build_metrics_section(clear, {}, 0).blocks[0].best == set()  # type: ignore[union-attr]


def test_seconds_state_the_activations_of_a_frozen_trunk() -> None:
    x, y = draw(0.3)
    frozen = {"freeze_to": "all", "views": 2, "mixup": ("feature",)}
    timed, old, whole = reported("timed", x, y, **frozen), reported("old", x, y, **frozen), reported("whole", x, y)
    timed.results = {"seconds": 50.0, "activation_seconds": 40.0, "steps": 10}
    old.results = whole.results = {"seconds": 10.0, "steps": 10}
    section, costs = build_cost_section([timed, old, whole])
    table: Any = section.blocks[0]
    headings = [column.name for column in table.columns]
    assert headings[1:3] == ["seconds", "of these, activations"]
    assert [row[1:3] for row in table.rows] == [[50.0, 40.0], [10.0, None], [10.0, None]]
    batch = timed.config.train.batch_size
    assert costs["timed"]["images_per_second"] == pytest.approx(10 * batch / 10.0)
    assert any(note.startswith("old: the time of the activations was not recorded") for note in table.footnotes)
    alone: Any = build_cost_section([whole])[0].blocks[0]
    assert "of these, activations" not in [column.name for column in alone.columns]


def test_steps_that_were_left_out_are_told() -> None:
    x, y = draw(0.3)
    finished, running, sound = (reported(name, x, y) for name in ("finished", "running", "sound"))
    finished.results = {"skipped_steps": 3, "steps": 100}
    finished.metrics = [{"step": 100, "clean": 1.0, "loss": 1.0, "mixed": 0.0}]
    running.results = None
    running.metrics = [{"step": 50, "clean": 1.0, "skipped": 2}, {"step": 80, "clean": 1.0, "skipped": 5}]
    sound.results = {"skipped_steps": 0, "steps": 100}
    said = texts(build_training_section([finished, running, sound]))
    assert "finished: 3 of 100; running: 7 of 80." in said
    assert "metrix replay RUN" in said
    assert "not finite" not in texts(build_training_section([sound]))
