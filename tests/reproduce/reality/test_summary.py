"""Ranks, gains and sentences over datasets, on numbers that are known."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import pytest

from metrix.files import parse_stored
from metrix.reproduce.reality.answer import conclude_check
from metrix.reproduce.reality.blocks import build_gain_table, build_main_table, compose_ranks, tabulate_runs
from metrix.reproduce.reality.outcome import DatasetOutcome
from metrix.reproduce.reality.page import compose_check_page, write_check
from metrix.reproduce.reality.summary import CheckResult
from tests.reproduce.reality.outcomes import METHODS, make_outcome, make_result

# contrastive, + feature, supcon
RECALLS = {"a": (70.0, 75.0, 70.5), "b": (60.0, 60.3, 55.0), "c": (80.0, 84.0, 81.0), "d": (50.0, 52.5, 49.8)}


def make(*names: str, **changes: object) -> CheckResult:
    return make_result(
        [make_outcome(name, dict(zip(METHODS, RECALLS[name], strict=True)), **changes) for name in names]
    )


def test_ranks_are_those_of_each_dataset() -> None:
    ranks = make("a", "b", "c", "d").ranks
    assert ranks is not None
    assert ranks.ranks.tolist() == [[3, 1, 2], [2, 1, 3], [3, 1, 2], [2, 1, 3]]
    assert ranks.means == {"contrastive+feature": 1.0, "contrastive": 2.5, "supcon": 2.5}
    assert ranks.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 4)), rel=1e-3)
    assert ranks.groups == [("contrastive+feature", "contrastive", "supcon")]
    assert ranks.intervals["contrastive+feature"] == (1, 1)


def test_gains_of_mixup_are_over_the_same_loss_and_counted_by_verdict() -> None:
    found = make("a", "b", "c", "d")
    (gain,) = found.mixup
    assert (gain.name, gain.against) == ("contrastive+feature", "contrastive")
    assert gain.mean == pytest.approx((5 + 0.3 + 4 + 2.5) / 4)
    assert gain.margin == pytest.approx(3.182 * 2.042 / 2, rel=1e-3)  # t(0.975, 3) · s / √4
    said = conclude_check(found)
    assert "helped in 3 of 4 comparisons: contrastive+feature on a (+5.0 points, +4.0 to +6.0)" in said.mixup
    assert "; did harm in 0; cannot be told in 1: contrastive+feature." in said.mixup
    assert "Losses without mixup, against contrastive: helped in 0 of 4 comparisons" in said.losses
    assert "supcon on b (-5.0 points, -6.0 to -4.0)" in said.losses
    assert "+2.0 points above the usual settings" in said.tuning


def test_two_datasets_have_no_ranks_over_datasets_and_say_so() -> None:
    found = make("a", "b")
    assert not found.generalises
    assert "Ranks over datasets tell nothing here: there are 2 datasets, and at least 3 are needed" in (
        conclude_check(found).ranks
    )
    (missing,) = compose_ranks(found)
    assert getattr(missing, "tone", "") == "missing"
    ranks = found.to_dict()["ranks"]
    assert ranks["over_datasets"] is None
    assert ranks["by_dataset"]["a"] == {"contrastive": 3.0, "contrastive+feature": 1.0, "supcon": 2.0}
    assert found.mixup[0].margin is None
    assert "another draw of datasets" not in " ".join(build_main_table(found).footnotes)


def test_the_same_images_under_other_names_are_one_dataset() -> None:
    found = make("a", "b", "c", fingerprint="glyphs")
    assert not found.generalises
    said = conclude_check(found)
    assert "3 datasets, 1 of them different images" in said.ranks
    assert "a, b, c are the same images with other settings; they count as one dataset." in said.cautions


def test_the_same_images_count_once_among_several_datasets() -> None:
    several = [*make("a", "b", "c").outcomes, *make("d", fingerprint="images of a").outcomes]
    found = make_result(several)
    ranks = found.ranks
    assert found.generalises
    assert ranks is not None
    assert ranks.ranks.tolist() == [[3, 1, 2], [2, 1, 3], [3, 1, 2], [2, 1, 3]]
    assert ranks.counted.tolist() == [[2.5, 1, 2.5], [2, 1, 3], [3, 1, 2]]
    assert ranks.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 3)), rel=1e-3)
    assert found.mixup[0].mean == pytest.approx(((5 + 2.5) / 2 + 0.3 + 4) / 3)
    assert "Over 3 datasets" in conclude_check(found).ranks
    assert make_result(several[:1] + several[-1:]).mixup[0].margin is None


def test_four_datasets_have_a_picture_an_interval_and_a_verdict() -> None:
    found = make("a", "b", "c", "d")
    text, picture = compose_ranks(found)
    assert "Friedman's test" in getattr(text, "text", "")
    assert getattr(picture, "name", "") == "critical-difference"
    assert "contrastive+feature 1.00" in picture.alt  # type: ignore[union-attr]
    said = conclude_check(found).ranks
    assert "Over 4 datasets" in said
    p = found.to_dict()["ranks"]["over_datasets"]["friedman"]["p_value"]
    assert ("cannot be told apart" in said) == (p >= 0.05)


def test_a_method_that_failed_on_a_dataset_is_not_ranked_and_is_named() -> None:
    whole = make("a", "b", "c").outcomes
    failed = dataclasses.replace(whole[0], methods=whole[0].methods[:2], failed={"supcon": "the loss is not finite"})
    found = make_result([failed, *whole[1:]])
    assert found.ranks is not None
    assert found.ranks.methods == ("contrastive", "contrastive+feature")
    assert any(
        "supcon has no result on a and is not ranked: the loss is not finite" in one
        for one in conclude_check(found).cautions
    )
    rows = {str(row[0]): row for row in build_main_table(found).rows}
    assert rows["supcon"][1:3] == [None, None]
    assert compose_check_page(found, conclude_check(found), Path("x")).to_html()
    nothing = make_result(
        [dataclasses.replace(whole[0], methods=(), contrasts=(), failed=dict.fromkeys(METHODS, "no"))]
    )
    assert nothing.ranks is None
    assert conclude_check(nothing).best == ""
    assert compose_check_page(nothing, conclude_check(nothing), Path("x")).to_html()


def test_what_could_mislead_is_said() -> None:
    one, other = make("a", "b").outcomes
    fewer = dataclasses.replace(
        one, looks=2, code="other", methods=tuple(dataclasses.replace(method, trials=3) for method in one.methods)
    )
    said = conclude_check(make_result([fewer, other])).cautions
    assert "a: its share of the budget ended after 3 trials of each method, 5 were planned." in said
    assert "The test classes of a were measured 2 times; intervals are wider." in said
    assert "Datasets were trained by different versions of metrix." in said
    assert conclude_check(make("a", "b")).cautions == ()


def test_all_runs_and_all_numbers_are_files(tmp_path: Path) -> None:
    found = make("a", "b")
    page, results, runs = write_check(found, tmp_path)
    lines = list(csv.DictReader(io.StringIO(runs.read_text("utf-8"))))
    assert len(lines) == 2 * 3 * 2
    first = lines[0]
    assert (first["dataset"], first["method"], first["mixup"], first["seed"]) == ("a", "contrastive", "", "0")
    assert float(first["recall@1"]) == 69.5
    assert json.loads(first["settings"]) == {"lr": 0.01}
    assert first["gap"] == "19.0"
    stored = json.loads(results.read_text("utf-8"))
    assert stored["conclusion"] == list(conclude_check(found).sentences)
    assert stored["datasets"][0]["methods"][0]["recall"] == 70.0
    html = page.read_text("utf-8")
    headings = ("Answer", "Recall@1", "Ranks over datasets", "What mixup gains", "Tuning", "Cost", "Fit", "All runs")
    assert all(heading in html for heading in headings)
    assert html.index("helped in") < html.index("<table")  # the answer comes first
    assert tabulate_runs(found)[0][:2] == ["dataset", "method"]


def test_an_outcome_is_the_same_after_it_was_kept(tmp_path: Path) -> None:
    (outcome,) = make("a").outcomes
    text = json.dumps(dataclasses.asdict(outcome))
    assert parse_stored(DatasetOutcome, text, tmp_path / "outcome.json") == outcome


def test_gains_say_what_their_intervals_are_corrected_for() -> None:
    found = make("a", "b", "c")
    table = build_gain_table(found, found.mixup, "gain", "mixup")
    assert "(5 on a, 5 on b, 5 on c)" in table.footnotes[0]
    assert "over datasets" in table.footnotes[1]
    (row,) = table.rows
    assert row[3] == "helped"
    assert row[5] == "cannot be told"
