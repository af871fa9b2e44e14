"""A budget of time: the largest scale that fits, with durations that are given instead of measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrix.errors import InvalidInput
from metrix.experiments.cells import Cell
from metrix.reproduce import budget
from metrix.reproduce.budget import GLYPHS_SCALES, PHOTO_SCALES, plan_budget
from metrix.reproduce.datasets import ReproductionData
from metrix.reproduce.grid import Spread
from metrix.reproduce.items import choose_items
from metrix.reproduce.tables import GAIN, TableLine, conclude_from_seeds
from tests.command_line import metrix

ITEMS = choose_items(["tsne"])  # two runs for each seed


@pytest.fixture(autouse=True)
def _a_step_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Estimate:
        source = "by the test"

        def __init__(self, *_: object) -> None:
            pass

        def seconds(self, one: Cell) -> float:
            return float(one.config.train.max_steps or 10_000)

    monkeypatch.setattr(budget, "DurationEstimate", Estimate)


def plan(folder: Path, seconds: float, jobs: int = 1, **flags: object) -> budget.Plan:
    return plan_budget(f"{seconds}s", ITEMS, ["glyphs-mini"], flags, folder, jobs)


@pytest.mark.parametrize(
    ("seconds", "words", "seeds"),
    [
        (1.2 * 2 * 3 * 1500 + 1, "300 training characters, 1500 steps", 3),
        (1.2 * 2 * 3 * 1500 - 1, "100 training characters, 1000 steps", 4),
        (1.2 * 2 * 3 * 100 + 1, "30 training characters, 100 steps (as --quick)", 3),
        (10**9, "300 training characters, 1500 steps", 10),
    ],
)
def test_the_largest_scale_that_fits_with_three_seeds(seconds, words, seeds, tmp_path):
    found = plan(tmp_path, seconds)
    assert (found.scale.words, found.seeds, found.runs) == (words, seeds, 2 * seeds)
    assert found.seconds <= seconds
    assert found.describe() == f"{words}, {seeds} seeds, {2 * seeds} runs"


def test_the_choice_is_kept(tmp_path, monkeypatch):
    first = plan(tmp_path, 10_000, jobs=2)
    monkeypatch.setattr(budget, "_fit", lambda *_: pytest.fail("planned again"))
    assert plan(tmp_path, 10_000, jobs=2) == first
    with pytest.raises(pytest.fail.Exception, match="planned again"):
        plan(tmp_path, 10_000, jobs=2, lr=0.1)


def test_what_does_not_fit(tmp_path):
    with pytest.raises(InvalidInput, match=r"expected at least 12m for tsne with 3 seeds .*choose fewer tables"):
        plan(tmp_path, 60)
    with pytest.raises(InvalidInput, match="expected datasets of photos or glyphs, got both"):
        budget._choose_scales([ReproductionData("cars", "x"), ReproductionData("glyphs", "glyphs")])
    assert budget._choose_scales([ReproductionData("cars", "x")]) is PHOTO_SCALES
    for text in ("8", "h", "0h", "8 weeks", "-1h"):
        with pytest.raises(InvalidInput, match="expected a time such as 8h"):
            budget.parse_duration(text)


@pytest.mark.parametrize("scales", [GLYPHS_SCALES, PHOTO_SCALES])
def test_scales_are_settings(scales):
    from metrix.train.config import Config

    for scale in scales:
        assert Config().with_values(dict(scale.changes))


def test_conclusions():
    def line(name: str, *gains: float) -> TableLine:
        return TableLine((name,), {GAIN: Spread(gains)} if gains else {}, {}, over="Cont")

    more = TableLine(("A",), {GAIN: Spread((1.0, 1.1, 1.2))}, {}, over="MS")  # a row of the same name
    (said,) = conclude_from_seeds(
        [line("clean"), line("A", 2.0, 2.1, 2.2), line("B", -1.0, 1.0, 0.1), line("C", -3.0, -3.1, -3.0), more]
    )
    assert (
        "gains above zero: Cont A (+2.1, +1.9 to +2.3), MS A (+1.1, +0.9 to +1.3); below zero: Cont C (-3.0, " in said
    )
    assert "±" not in said  # which is a standard deviation wherever it stands
    assert "1 of 4 cannot be told from zero" in said
    for gains, words in (((2.0,), "of 1 seed,"), ((2.0, 2.01), "of 2 seeds,")):
        (said,) = conclude_from_seeds([line("A", *gains)])
        assert words in said
        assert "nothing can be concluded" in said
    assert list(conclude_from_seeds([line("clean")])) == []


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "LEAST_SEEDS", 1)
    tiny = ("--batch-size", 12, "--per-class", 3, "--train-classes", 8, "--max-steps", 2)
    command = ("reproduce", "utilization", "--data", "glyphs-mini", *tiny, "--budget", "5s", "-o", tmp_path)
    ended = metrix(*command)
    assert ended.code == 0, ended.err
    words = "budget 5s: 300 training characters, 1500 steps; changed: train_classes 8, max_steps 2, batch_size 12"
    assert words in " ".join(ended.err.split())
    assert "1 seed, 2 runs; about 4.8 s with --jobs 1, estimated by the test" in " ".join(ended.err.split())
    assert json.loads((tmp_path / "budget.json").read_text())["seeds"] == 1
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "Scale, chosen to fit a time budget" in page
    assert "--budget=5s" in page
    for wrong, message in ((("--seeds", 2), "--budget with --seeds"), (("--quick",), "--budget with --quick")):
        ended = metrix(*command, *wrong)
        assert ended.code == 2
        assert message in ended.err
