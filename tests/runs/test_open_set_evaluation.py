"""`evaluate_open_set`: draws, and what they are measured on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metrix.errors import InvalidInput, LabelError
from metrix.evaluate.open_set import OpenSetAnswers, resample_open_set
from metrix.runs import open_set_evaluation as module
from metrix.runs.evaluation import Examples
from metrix.runs.open_set import draw_shots
from metrix.runs.open_set_evaluation import evaluate_open_set


def examples(classes: int = 24, each: int = 12, spread: float = 0.2, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 16))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.repeat([f"class {n:02d}" for n in range(classes)], each)
    vectors = np.repeat(centres, each, axis=0) + spread * rng.normal(size=(classes * each, 16))
    return Examples((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels)


def test_more_images_enrolled_are_better_and_everything_has_both_intervals() -> None:
    found = evaluate_open_set(examples(), draws=4, resamples=20)
    one, five, every = found.results
    assert [result.shots for result in found.results] == [1, 5, None]
    assert one.measures["accuracy"].mean < five.measures["accuracy"].mean
    assert one.measures["auroc"].mean < every.measures["auroc"].mean
    for result in found.results:
        assert result.classes == 12
        for measure in result.measures.values():
            assert measure.over_draws is not None
            assert measure.over_classes is not None
            assert measure.over_classes[0] <= measure.over_classes[1]
            assert 0 <= measure.mean <= 1
    assert set(found.episodes) == {"5-way 1-shot, 5 queries of each", "5-way 5-shot, 5 queries of each"}
    plain = found.to_dict()
    assert plain["results"][0]["chance"] == 1 / 12
    assert (plain["classes"], plain["images"], plain["draws"]) == (24, 288, 4)


def test_noise_is_as_good_as_chance() -> None:
    rng = np.random.default_rng(0)
    noise = Examples(rng.normal(size=(600, 8)).astype(np.float32), np.repeat(np.arange(40), 15).astype(str))
    (found,) = evaluate_open_set(noise, [5], draws=5, resamples=0).results
    assert found.measures["accuracy"].mean == pytest.approx(1 / 20, abs=0.03)
    assert found.measures["auroc"].mean == pytest.approx(0.5, abs=0.06)
    assert found.measures["ece"].mean < 0.1
    assert found.measures["accuracy"].over_classes is None


def test_the_interval_of_the_calibration_error_is_not_above_it() -> None:
    """Each resample adds noise to a mean of absolute values, so that percentiles of resamples lie above it."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(60), 16)
    enrolled, probability = classes < 40, rng.random(960) / 2
    right = enrolled & (rng.random(960) < 2 * probability)  # calibrated, where half of the queries are unknown
    answers = OpenSetAnswers(classes, enrolled, right, probability, probability)
    drawn = [one["ece"] for one in resample_open_set([answers], 0.01, 100, np.random.default_rng(0))]
    found = module._summarise(5, [answers], 0.01, 100, 0).measures["ece"]
    assert found.over_classes is not None
    assert found.mean < np.mean(drawn)
    assert found.over_classes[0] < found.mean - 0.5 * np.std(drawn)
    assert found.over_classes[0] <= found.mean <= found.over_classes[1]


@pytest.mark.parametrize("shots", [1, 5, None])
def test_queries_are_neither_enrolled_nor_left_out(shots: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given, seen = examples(), []
    monkeypatch.setattr(module, "_summarise", lambda shots, answers, *rest: seen.extend(answers))
    evaluate_open_set(given, [shots], draws=2)
    for answers in seen:
        known, unknown = (set(answers.classes[part]) for part in (answers.enrolled, ~answers.enrolled))
        assert (len(known), len(unknown)) == (12, 6)
        assert not known & unknown
        assert not answers.right[~answers.enrolled].any()
        assert answers.enrolled.sum() == 12 * (12 - (shots or 0))
        assert (~answers.enrolled).sum() == 6 * 12


def test_an_image_never_finds_itself() -> None:
    """With all images enrolled, classes without any likeness are not found."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(160, 64)).astype(np.float32)  # nearly orthogonal
    alone = Examples(vectors, np.repeat(np.arange(80), 2).astype(str))
    (found,) = evaluate_open_set(alone, [None], draws=2, resamples=0).results
    assert found.measures["accuracy"].mean < 0.2


def test_shots_are_drawn_of_each_class_and_smaller_ones_left_out() -> None:
    labels = np.array(["a"] * 5 + ["b"] * 2 + ["c"] * 3)
    rows = draw_shots(labels, 3, np.random.default_rng(0))
    assert labels[rows].tolist() == ["a"] * 3 + ["c"] * 3
    assert len(set(rows.tolist())) == 6
    with pytest.raises(LabelError, match="expected classes with 9 images or more, got none"):
        draw_shots(labels, 9, np.random.default_rng(0))


def test_what_cannot_be_measured_is_one_error() -> None:
    with pytest.raises(LabelError, match="expected 8 classes or more to draw from, got 7"):
        evaluate_open_set(examples(classes=7))
    few: Any = examples()
    tracks = Examples(few.vectors, few.labels, sequences=np.full(len(few.labels), "track"))
    with pytest.raises(InvalidInput, match="give --ignore-sequences"):
        evaluate_open_set(tracks)
