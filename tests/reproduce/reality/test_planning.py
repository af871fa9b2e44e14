"""What a reality check plans: methods, datasets, equal trials, a budget that is divided by cost or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metrix.errors import InvalidInput
from metrix.experiments.tuning.budget import MARGIN, CostModel
from metrix.reproduce.reality import planning
from metrix.reproduce.reality.compared import choose_datasets, choose_methods
from metrix.reproduce.reality.plan import CheckRequest, read_plan
from metrix.reproduce.reality.planning import count_fitting_trials, make_plan
from tests.photos import write_photos

TINY: dict[str, Any] = {"train_classes": 8, "batch_size": 16, "max_steps": 3, "dim": 16}
METHODS = ("contrastive", "contrastive+feature")


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return f"b={write_photos(tmp_path / 'photos')}"


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Times of runs that are not measured: of glyphs-mini, and of other data."""
    times = {"glyphs-mini": 1.0, "photos": 3.0}

    def time_method(method: Any, base: Any, folds: int, folder: Path, warm_up: bool = False) -> float:
        return times["glyphs-mini" if base.data.data == "glyphs-mini" else "photos"]

    monkeypatch.setattr(planning, "time_method", time_method)
    return times


def ask(*data: str, **changes: Any) -> CheckRequest:
    return CheckRequest(**{"data": data, "methods": METHODS, "flags": TINY, "seeds": 2, **changes})


def test_the_usual_methods_are_the_losses_clean_and_mixed_and_the_rivals() -> None:
    names = [method.name for method in choose_methods([])]
    assert names == [
        *("contrastive", "contrastive+feature", "multi-similarity", "multi-similarity+feature"),
        *("proxy-anchor", "proxy-anchor+feature", "proxy-nca++", "proxy-nca+++feature", "supcon", "supcon+feature"),
        *("arcface", "arcface+feature", "recall-at-k"),  # which takes no mixup of Metrix
        *("contrastive+imix", "contrastive+mochi", "proxy-anchor+proxy-synthesis", "recall-at-k+simix"),
    ]


def test_the_usual_datasets_are_characters_with_few_and_with_many_classes() -> None:
    few, many = choose_datasets([], {})
    assert (few.name, few.base.data.train_classes, few.base.train.max_steps) == ("glyphs-30", 30, 500)
    assert (many.name, many.base.data.train_classes, many.base.train.max_steps) == ("glyphs-300", 300, 1500)
    assert few.base.loss.beta is None  # every loss begins with its own defaults
    assert few.base.train.lr == 3e-3


def test_a_dataset_may_have_settings_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mini.yaml"
    file.write_text("data: {data: glyphs-mini, train_classes: 10}\nmodel: {backbone: glyphs-cnn, dim: 32}\n")
    one, other = choose_datasets([f"mini={file}", "glyphs-30"], {"dim": 8})
    assert (one.base.data.train_classes, one.base.model.dim, other.base.model.dim) == (10, 8, 8)
    assert one.base.model.backbone == "glyphs-cnn"


@pytest.mark.parametrize(
    ("given", "flags", "words"),
    [
        (["nowhere=/no/such"], {}, "/no/such does not exist"),
        (["/no/such"], {}, "expected NAME=PATH"),
        (["../a=glyphs-mini"], {}, "a NAME of letters"),
        (["locks=glyphs-mini"], {}, "a NAME of letters"),
        (["plan.json=glyphs-mini"], {}, "a NAME of letters"),
        (["A=glyphs-mini", "a=glyphs"], {}, "a was given twice"),
        (["a=glyphs-mini"], {"margin": 0.2, "fold": "1/2"}, "reality-check with --margin, --fold"),
    ],
)
def test_mistakes_in_datasets(given: list[str], flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        choose_datasets(given, flags)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["contrastive"], "at least two methods"),
        (["contrastive", "contrastive"], "given twice"),
        (["contrastive", "contrastiv+feature"], "did you mean 'contrastive'"),
        (["contrastive", "recall-at-k+feature"], "a mixing method that goes with recall-at-k"),
    ],
)
def test_mistakes_in_methods(given: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        choose_methods(given)


def test_trials_fit_as_counted_by_hand() -> None:
    costs = [CostModel({"a": 10.0, "b": 20.0}, {"a": {}, "b": {}}, 2, 3, 0.0, by_steps=True)] * 2
    trial = 1 + 1 / 2  # runs: the first fold, and the second for the better half
    one = MARGIN * 2 * (trial * 30)
    winners = MARGIN * 2 * 3 * 30
    assert count_fitting_trials(winners + 7 * one + 0.1, costs, ["a", "b"]) == 7
    assert count_fitting_trials(winners + 7 * one - 0.1, costs, ["a", "b"]) == 6
    assert count_fitting_trials(winners - 1, costs, ["a", "b"]) == 0


@pytest.mark.usefixtures("seconds")
def test_a_budget_is_divided_by_cost_and_trials_are_equal(tmp_path: Path, photos: str) -> None:
    plan = make_plan(ask("a=glyphs-mini", photos, budget="20m"), tmp_path / "new")
    first, second = plan.datasets
    assert first.share is not None
    assert second.share == pytest.approx(3 * first.share)
    assert first.share + second.share == pytest.approx(1200)
    assert plan.trials >= 12
    assert plan.seconds <= 1200
    assert {line.trials for line in plan.list_methods()} == {plan.trials}
    assert sum(line.search + line.winners for line in plan.list_methods()) == pytest.approx(plan.seconds)
    again = read_plan(tmp_path / "new", CheckRequest())
    assert again == plan


@pytest.mark.usefixtures("seconds")
def test_a_small_budget_has_fewer_folds_and_a_smaller_one_is_refused_with_the_smallest(
    tmp_path: Path, photos: str
) -> None:
    small = make_plan(ask("a=glyphs-mini", photos, budget="2m"), tmp_path / "small")
    assert (small.folds, small.cheap) == (2, 0.0)
    assert small.trials >= 5
    with pytest.raises(InvalidInput, match=r"--budget: expected at least (\d+)m, in which 5 trials") as caught:
        make_plan(ask("a=glyphs-mini", photos, budget="30s"), tmp_path / "none")
    smallest = str(caught.value).split("at least ")[1].split(",")[0]
    assert make_plan(ask("a=glyphs-mini", photos, budget=smallest), tmp_path / "none").trials >= 5
    with pytest.raises(InvalidInput, match="in which 500 trials"):
        make_plan(ask("a=glyphs-mini", budget="10m", trials=500), tmp_path / "many")


@pytest.mark.usefixtures("seconds")
def test_a_plan_is_kept_and_another_request_refused(tmp_path: Path) -> None:
    plan = make_plan(ask("a=glyphs-mini", trials=3), tmp_path / "x")
    assert make_plan(ask("a=glyphs-mini", trials=3), tmp_path / "x") == plan
    assert make_plan(CheckRequest(), tmp_path / "x") == plan
    with pytest.raises(InvalidInput, match=r"began with other settings \(trials 3\)"):
        make_plan(ask("a=glyphs-mini", trials=4), tmp_path / "x")
    (tmp_path / "x" / "plan.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"plan\.json is damaged"):
        make_plan(CheckRequest(), tmp_path / "x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jpg").touch()
    with pytest.raises(InvalidInput, match="is no reality check"):
        make_plan(ask("a=glyphs-mini", trials=3), tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "expected --budget TIME, such as 8h, or --trials N"),
        ({"budget": "soon"}, "--budget: expected a time"),
        ({"trials": 0}, "--trials: expected an integer ≥ 1"),
        ({"trials": 2, "folds": 1}, "--folds: expected an integer ≥ 2"),
        ({"trials": 2, "seeds": 1}, "--seeds: expected an integer ≥ 2"),
    ],
)
def test_mistakes_in_requests(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        make_plan(ask("a=glyphs-mini", **changes), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_method_that_cannot_be_trained_is_named_before_anything_is_planned(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="contrastive cannot be trained on a: train_classes"):
        make_plan(ask("a=glyphs-mini", trials=2, flags={**TINY, "train_classes": 500}), tmp_path / "x")
    assert not (tmp_path / "x" / "plan.json").exists()
