"""Advice from clean and mixed runs of the same seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metrix.errors import InvalidInput
from metrix.runs.advice import Advice, advise
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder


def write_run(folder: Path, recall: float | None, images: str = "same", **values: Any) -> Path:
    """A finished run with this Recall@1, or an unfinished one."""
    name = "-".join(str(value) for value in values.values()) or "run"
    run = RunFolder(folder / f"{name}-{recall}")
    run.path.mkdir(parents=True)
    run.write_text("config.yaml", Config().with_values({"mixup": [], **values}).to_yaml())
    run.write_json("environment.json", {"data_fingerprint": images})
    if recall is not None:
        run.write_json("results.json", {"test": {"recall": {"1": recall}}})
    return run.path


def add_fit(path: Path, training: float, unseen: float) -> None:
    run = RunFolder(path)
    assert run.results is not None
    run.write_json("results.json", {**run.results, "fit": {"training_map@r": training, "unseen_map@r": unseen}})


def pairs(folder: Path, clean: list[float], mixed: list[float], **values: Any) -> list[Path]:
    runs = [write_run(folder, recall, seed=seed) for seed, recall in enumerate(clean)]
    mixing = {"mixup": ["embed"], **values}
    return [*(write_run(folder, recall, seed=seed, **mixing) for seed, recall in enumerate(mixed)), *runs]


def test_a_gain_outside_the_interval(tmp_path):
    (found,) = advise(pairs(tmp_path, [0.50, 0.51, 0.52], [0.53, 0.55, 0.57]))
    assert found.differences.values == pytest.approx((3.0, 4.0, 5.0))
    first, second = found.sentences()
    assert first.startswith("embed: Recall@1 +4.0 ± 2.5 points against the clean loss, over 3 seeds")
    assert second == "Mixup helped: the interval excludes zero."


@pytest.mark.parametrize(("training", "words"), [(0.99, "fit their training classes"), (0.4, "do not fit")])
def test_the_fit_of_the_clean_runs_is_said(tmp_path, training, words):
    runs = pairs(tmp_path, [0.50, 0.51, 0.52], [0.53, 0.55, 0.57])
    for path in runs[:3]:  # the mixed ones have no say in it
        add_fit(path, 0.7, 0.7)
    assert advise(runs)[0].fit is None  # not all clean runs measured it
    for number, path in enumerate(runs[3:]):
        add_fit(path, training + 0.001 * (number - 1), 0.3)
    (found,) = advise(runs)
    assert found.to_dict()["fit"] == pytest.approx({"training_map@r": training, "unseen_map@r": 0.3})
    (said,) = [one for one in found.sentences() if words in one]
    assert f"MAP@R {100 * training:.1f} %, unseen ones 30.0 %" in said


def test_too_few_seeds_and_how_many_more(tmp_path):
    (found,) = advise(pairs(tmp_path, [0.50, 0.51, 0.52], [0.51, 0.53, 0.55], strength=0.1))
    assert found.mixup == "embed, strength 0.1"
    assert "does not tell whether mixup helped" in found.sentences()[1]
    assert "2 more seeds of each (5 in all)" in found.sentences()[2]
    assert json.dumps(found.to_dict())


def test_each_kind_of_mixup_is_told_apart_and_unpaired_runs_are_named(tmp_path):
    runs = pairs(tmp_path / "a", [0.5, 0.5], [0.6, 0.61])
    runs += [write_run(tmp_path / "b", 0.4, mixup=["feature"], seed=seed) for seed in (0, 1, 7)]
    embed, feature = advise(runs)
    assert (embed.mixup, feature.mixup) == ("embed", "feature")
    assert feature.unpaired == (str(runs[-1]),)
    assert feature.differences.mean == pytest.approx(-10.0)


def test_what_cannot_be_paired(tmp_path):
    runs = pairs(tmp_path, [0.5, 0.5], [0.6, 0.61])
    with pytest.raises(InvalidInput, match="got no clean runs"):
        advise(runs[:2])
    with pytest.raises(InvalidInput, match="got no runs with mixup"):
        advise(runs[2:])
    with pytest.raises(InvalidInput, match="at least 2 seeds with a clean and a mixed run each, got 1"):
        advise(runs[1:3] + runs[3:])
    with pytest.raises(InvalidInput, match=r"differ in seed and mixup only, got lr 0\.0001 and 0\.1"):
        advise([*runs, write_run(tmp_path, 0.7, seed=3, lr=0.1)])
    with pytest.raises(InvalidInput, match="on the same data"):
        advise([*runs, write_run(tmp_path, 0.7, images="other", seed=4)])
    with pytest.raises(InvalidInput, match="is not finished"):
        advise([*runs, write_run(tmp_path, None, seed=5), write_run(tmp_path, 0.5, seed=5, mixup=["embed"])])


def test_runs_that_do_not_beat_the_untrained_network_need_no_more_seeds() -> None:
    found = Advice("embed", (0, 1, 2), (94.0, 93.5, 93.9), (93.8, 94.0, 93.2), unbeaten=5)
    said = " ".join(found.sentences())
    assert "In 5 of 6 runs no epoch beat the untrained network" in said
    assert "more seed" not in said.replace("more seeds will not", "")
    assert found.to_dict()["unbeaten"] == 5
