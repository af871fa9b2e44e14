"""A study: equal trials on the same folds, test classes only at the end, nothing lost when it is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.core.spaces import LogUniform, OneOf, Uniform, WholeNumber
from metrix.errors import InvalidInput
from metrix.experiments.cells import CellStore
from metrix.experiments.tuning import budget
from metrix.experiments.tuning.budget import CostModel, fit_budget, fit_folds
from metrix.experiments.tuning.conclusion import conclude, narrow
from metrix.experiments.tuning.finals import Contrast, compare_winners, find_winners, reference_of, train_winners
from metrix.experiments.tuning.methods import TunedMethod, list_usual_methods, parse_method, parse_methods
from metrix.experiments.tuning.protocol import Plan
from metrix.experiments.tuning.result import StudyResult
from metrix.experiments.tuning.running import StudyWatcher, work_on
from metrix.experiments.tuning.spaces import apply_settings, build_space, find_usual, parse_range, read_changes
from metrix.experiments.tuning.starting import Request, resume_study, start_study
from metrix.experiments.tuning.study import StudyFolder, StudyInterrupted, strip_password
from metrix.experiments.tuning.trials import TrialRunner, build_ladder, correlate_ranks, list_trials
from metrix.files import lock
from metrix.train.config import Config, read_config
from metrix.train.fit import describe_outlook
from metrix.train.presets import preset
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher

TINY: dict[str, Any] = {"data": "glyphs-mini", "train_classes": 8, "batch_size": 16, "max_steps": 3, "dim": 16}
METHODS = ("contrastive", "contrastive+feature")
pytest.importorskip("optuna")


def tiny(**changes: Any) -> Config:
    return preset("glyphs").with_values({**TINY, **changes})


def ask_for(**changes: Any) -> Request:
    return Request(**{"base": tiny(), "methods": METHODS, "trials": 2, "folds": 2, "seeds": 2, **changes})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return start_study(ask_for(), tmp_path_factory.mktemp("tunes") / "a", StudyWatcher())


@pytest.fixture(scope="module")
def found(study: StudyFolder) -> StudyResult:
    return work_on(study, StudyWatcher())


def test_methods_have_equal_trials_that_begin_with_the_usual_settings(found: StudyResult) -> None:
    for name in METHODS:
        of = [trial for trial in found.trials if trial.method == name]
        assert [trial.usual for trial in of] == [True, False]
        assert of[0].state == "finished"
        assert len(of[0].scores) == 2
    assert [trial.number for trial in found.trials] == [1, 2, 3, 4]
    assert len(found.untrained) == 2


def test_trials_see_the_same_folds_and_no_test_class(study: StudyFolder, found: StudyResult) -> None:
    from metrix.train.batches import open_data

    test = set(open_data(tiny()).test.class_names)
    held: dict[str, set[str]] = {}
    finals = 0
    for key, record in study.store.records():
        config = study.store.run(key).config
        measured = set(open_data(config).test.class_names)
        results = study.store.results(key)
        assert results is not None, record["name"]
        assert results["test"]["classes"] == len(measured)
        if config.data.fold is None:
            finals += 1
            assert measured == test
            continue
        assert not measured & test
        assert held.setdefault(config.data.fold, measured) == measured
        assert not study.store.run(key).model.exists()  # hundreds of models would fill the disk
    assert set(held) == {"1/2", "2/2"}
    assert not held["1/2"] & held["2/2"]
    assert finals == 2 * 2


def test_the_test_classes_are_compared_with_class_level_intervals_for_all_comparisons(found: StudyResult) -> None:
    table = found.table
    assert {(one.name, one.against) for one in table.contrasts} == {
        ("contrastive", "untrained"),
        ("contrastive+feature", "untrained"),
        ("contrastive+feature", "contrastive"),
    }
    assert table.comparisons == 3
    assert table.looks == 1
    for one in table.contrasts:
        assert one.low <= one.difference <= one.high
        assert one.difference == pytest.approx(float(np.mean(one.over_seeds)))
    by_name = {one.method: one for one in table.results}
    assert table.find("contrastive", "untrained").difference == pytest.approx(  # type: ignore[union-attr]
        by_name["contrastive"].mean - table.untrained.mean
    )


def test_the_best_settings_are_a_file_for_metrix_train(study: StudyFolder, found: StudyResult) -> None:
    config = read_config(study.path / "best.yaml")
    assert config == found.best.config
    assert config.data.fold is None
    assert config.data.holdout == 0
    assert found.best.score == max(winner.score for winner in found.winners)
    written = json.loads((study.path / "results.json").read_text("utf-8"))
    assert written["best"]["method"] == found.best.method.name
    assert written["conclusion"] == found.conclusion.text


def test_the_conclusion_says_what_helped_and_what_an_hour_would_buy(found: StudyResult) -> None:
    said = found.conclusion.text
    assert f"Best on the folds: {found.best.method.name}" in said
    assert "contrastive+feature against contrastive" in said
    fit = next(one.fit for one in found.table.results if one.method == "contrastive")
    assert fit is not None
    assert describe_outlook(fit) in said
    assert "Another hour: about" in said


def test_the_page_has_everything(found: StudyResult) -> None:
    from metrix.report.tune_page import compose_tune_page

    page = compose_tune_page(found)
    assert [section.heading for section in page.sections] == [
        *("Answer", "Test classes", "Search", "What mattered", "Folds", "All trials")
    ]
    cheap = compose_tune_page(dataclasses.replace(found, cheap_and_dear={"contrastive": [(50.0, 60.0), (40.0, 70.0)]}))
    assert [section.heading for section in cheap.sections][-2:] == ["Cheap trials", "All trials"]
    html = page.to_html()
    assert "The test classes were measured once." in html
    for text in (*METHODS, *found.conclusion.sentences):
        assert text in html


def test_a_finished_study_trains_nothing_again_and_a_longer_one_counts_its_looks(
    study: StudyFolder, found: StudyResult
) -> None:
    trained = {key: (study.store.run(key).path / "results.json").stat().st_mtime_ns for key, _ in study.store.records()}
    again = work_on(resume_study(study.path, None, None), StudyWatcher())
    assert again.table == found.table
    longer = work_on(resume_study(study.path, 1, None), StudyWatcher())
    assert len(longer.trials) == len(found.trials) + 2
    after = {key: (study.store.run(key).path / "results.json").stat().st_mtime_ns for key, _ in study.store.records()}
    assert {key: after[key] for key in trained} == trained
    changed = [winner.config for winner in longer.winners] != [winner.config for winner in found.winners]
    assert longer.table.looks == 1 + changed
    assert longer.table.comparisons == 3 * longer.table.looks


def start_process(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from metrix.cli.app import main; main()", "tune", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_study_loses_nothing_and_two_processes_finish_it(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    words = [f"--{key.replace('_', '-')}={value}" for key, value in TINY.items() if key != "data"]
    words += [f"--method={name}" for name in METHODS]
    first = start_process("glyphs-mini", *words, "--trials=5", "--folds=2", "--seeds=2", f"--output={folder}")
    try:
        deadline = time.monotonic() + 120
        while not any(folder.glob("cells/*/measures.json")):
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/measures.json")}
    begun = StudyFolder(folder).count_trials()
    assert StudyFolder(folder).count_running() >= 1  # the killed process left it
    both = [start_process("--resume", str(folder)), start_process("--join", str(folder))]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in both]
    assert [code for _, _, code in ended] == [0, 0], "\n".join(err for _, err, _ in ended)
    study = StudyFolder(folder)
    assert study.count_trials() == dict.fromkeys(METHODS, 5)
    assert study.count_running() == 0
    assert sum(begun.values()) < 10
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    workers = {
        trial.user_attrs["process"] for one in study.studies.values() for trial in one.get_trials(deepcopy=False)
    }
    assert len(workers) >= 2
    assert all(study.store.results(key) is not None for key, _ in study.store.records())
    assert (folder / "index.html").is_file()
    assert json.loads((folder / "results.json").read_text("utf-8"))["test"]["looks"] == 1


def test_a_signal_between_runs_says_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    before = signal.getsignal(signal.SIGTERM)

    def measure(*given: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("metrix.experiments.tuning.running.measure_untrained", measure)
    with pytest.raises(StudyInterrupted, match=f"continue with metrix tune --resume {study.path}") as caught:
        work_on(study, StudyWatcher())
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_while_a_trial_is_measured_does_not_count_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    monkeypatch.setattr(
        "metrix.experiments.tuning.trials.retrieve", lambda *given: os.kill(os.getpid(), signal.SIGTERM)
    )
    with pytest.raises(StudyInterrupted):
        work_on(study, StudyWatcher())
    assert [trial.state for trial in list_trials(study)] == ["running"]


def test_an_interrupted_trial_is_adopted_with_its_settings(tmp_path: Path) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    method = study.protocol.methods[0]
    with ExitStack() as stack:
        trial, settings = study.ask(method, stack)
        other = StudyFolder(study.path)
        with ExitStack() as nobody:
            assert other.adopt(nobody) is None  # its process lives
    with ExitStack() as stack:
        adopted = other.adopt(stack)
        assert adopted is not None
        assert (adopted[0], adopted[1].number, adopted[2]) == (method, trial.number, settings)


def test_a_journal_and_a_database_hold_a_study_as_the_file_does(tmp_path: Path) -> None:
    asked = [f"sqlite:///{tmp_path / 'other.db'}", "journal"]
    numbers = []
    for n, storage in enumerate(asked):
        study = start_study(ask_for(methods=("contrastive",), storage=storage), tmp_path / str(n), StudyWatcher())
        assert not (study.path / "study.db").exists()
        numbers.append(StudyFolder(study.path).count_trials())
    assert numbers == [{"contrastive": 0}] * 2
    assert (tmp_path / "1" / "study.journal").is_file()
    with pytest.raises(InvalidInput, match="--storage: expected journal or a URL such as"):
        start_study(ask_for(methods=("contrastive",), storage="nonsense"), tmp_path / "x", StudyWatcher())


def test_a_password_is_not_kept() -> None:
    assert strip_password("postgresql://me:secret@host:5432/tunes") == "postgresql://me@host:5432/tunes"
    assert strip_password("redis://:secret@host") == "redis://host"
    assert strip_password("journal") == "journal"


def test_a_damaged_plan_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"plan\.json is damaged"):
        StudyFolder(tmp_path).plan  # noqa: B018
    (tmp_path / "plan.json").unlink()
    with pytest.raises(InvalidInput, match=r"plan\.json is missing; restore it"):
        StudyFolder(tmp_path).plan  # noqa: B018


def test_other_data_is_refused(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrix.experiments.tuning.study.fingerprint_data", lambda config: "other")
    with pytest.raises(InvalidInput, match="began with other data: expected fingerprint"):
        resume_study(study.path, None, None)


def test_a_comparison_that_failed_is_no_look(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    winner = dataclasses.replace(find_winners(study)[0], config=tiny(seed=7))  # was never trained
    before = (study.path / "looks.json").read_bytes()
    with pytest.raises(InvalidInput, match="is no run"):
        compare_winners(study, [winner])
    assert (study.path / "looks.json").read_bytes() == before


def test_a_study_that_began_with_other_code_says_so(
    study: StudyFolder, found: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Listener(StudyWatcher):
        def note(self, text: str) -> None:
            said.append(text)

    work_on(StudyFolder(study.path), Listener())
    assert said == []
    monkeypatch.setattr("metrix.experiments.tuning.running.code_version", lambda: "other")
    work_on(StudyFolder(study.path), Listener())
    assert said[0].startswith("metrix has changed since this study began")


def test_methods_are_parsed_and_refused() -> None:
    assert parse_method("proxy-nca++") == TunedMethod("proxy-nca++")
    assert parse_method("proxy-anchor+proxy-synthesis").mixup_method == "proxy-synthesis"
    for text, said in (
        ("contrastiv", "did you mean 'contrastive'"),
        ("contrastive+featur", "did you mean 'feature'"),
        ("contrastive+proxy-synthesis", "a mixing method that goes with contrastive"),
        ("triplet+feature", "none does"),
    ):
        with pytest.raises(InvalidInput, match=said):
            parse_method(text)
    with pytest.raises(InvalidInput, match="contrastive was given twice"):
        parse_methods(["contrastive", "contrastive"])
    usual = [method.name for method in list_usual_methods(preset("glyphs"))]
    assert usual[:4] == ["multi-similarity", "multi-similarity+feature", "contrastive", "contrastive+feature"]


def test_a_method_is_compared_with_its_clean_loss() -> None:
    a, b, c = (parse_method(name) for name in ("supcon", "contrastive", "contrastive+feature"))
    assert reference_of(c, (a, b, c)) == b
    assert reference_of(b, (a, b, c)) == a
    assert reference_of(a, (a, b, c)) is None
    assert reference_of(c, (a, c)) == a


def test_spaces_follow_the_tables_the_file_and_the_flags(tmp_path: Path) -> None:
    method, base = parse_method("contrastive+feature"), tiny()
    space = build_space(method, base, {}, {})
    assert {"length", "lr", "margin", "reduction", "strength", "pairs", "augment", "per_class"} <= set(space)
    file = tmp_path / "space.yaml"
    file.write_text(
        "lr: {log_uniform: [1.0e-4, 1.0e-1]}\naugment: none\ncontrastive+feature:\n  strength: [0.2, 0.4]\n"
    )
    changes = read_changes(file)
    changed = build_space(method, base, changes, {"margin": 0.3})
    assert changed["lr"] == LogUniform(1e-4, 1e-1)
    assert changed["augment"] == OneOf(("none",))
    assert changed["strength"] == OneOf((0.2, 0.4))
    assert "margin" not in changed  # a flag fixes it
    assert build_space(parse_method("contrastive"), base, changes, {})["lr"] == changed["lr"]
    assert "strength" not in build_space(parse_method("contrastive"), base, changes, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 0.1\naugment: none\nlr: 0.2\n", "space.yaml, line 3: expected each key once, got 'lr' again"),
        ("contrastive:\n  lr: 0.1\n  lr: 0.2\n", "space.yaml, line 3: expected each key once, got 'lr' again"),
        ("backbone: [resnet18, resnet81, resnet50]\n", "unknown backbone 'resnet81'"),
        ("contrastive:\n  backbone: [glyphs-cnn, glyph-cnn]\n", "unknown backbone 'glyph-cnn'"),
        ("lr: [\n", "is not YAML"),
    ],
)
def test_a_file_of_spaces_is_refused_at_once(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_changes(tmp_path / "space.yaml")
    assert said in str(caught.value)


def test_ranges_are_parsed_and_refused() -> None:
    assert parse_range("margin", {"uniform": [0.1, 0.5]}) == Uniform(0.1, 0.5)
    assert parse_range("per_class", {"whole_number": [2, 8]}) == WholeNumber(2, 8)
    for key, given, said in (
        ("marjin", [1], "did you mean 'margin'"),
        ("lr", {"log_uniform": ["1e-4", 1]}, "YAML reads 1e-4 as text"),
        ("lr", {"log_uniform": [0.0, 1.0]}, "expected low > 0"),
        ("lr", {"uniform": [1.0, 0.1]}, "low < high"),
        ("lr", {"normal": [0.1, 1.0]}, "expected one of uniform, log_uniform, whole_number"),
        ("lr", [], "got none"),
        ("lr", {"uniform": [-1.0, 1.0]}, "lr"),
        ("augment", "wild", "augment"),
        ("loss", ["contrastive"], "one that the study sets itself"),
        ("per_class", {"whole_number": [2, 8.5]}, "two whole numbers"),
        ("per_class", {"uniform": [2, 8]}, "per_class: uniform: .* for whole numbers, give whole_number"),
        ("length", {"uniform": [-1, 2]}, "length: expected a multiple > 0 of the usual length, got -1"),
        ("length", "long", "length: expected a multiple > 0"),
    ):
        with pytest.raises(InvalidInput, match=said):
            parse_range(key, given)


def test_the_usual_settings_are_the_nearest_point_of_the_space() -> None:
    config = parse_method("multi-similarity").configure(preset("glyphs"))
    usual = find_usual(config, build_space(parse_method("multi-similarity"), preset("glyphs"), {}, {}))
    assert (usual["length"], usual["lr"], usual["margin"], usual["augment"]) == (1.0, 1e-2, 0.3, "none")
    config = parse_method("proxy-anchor").configure(Config())
    space = build_space(parse_method("proxy-anchor"), Config(), {}, {})
    assert find_usual(config, space)["proxy_lr"] == pytest.approx(100 * config.train.lr)
    assert find_usual(config, space)["margin"] == 0.1


def test_what_a_file_of_spaces_fixes_holds_for_the_first_trial_and_its_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[Config] = []

    def calibrate(config: Config, *_: Any, **__: Any) -> float:
        timed.append(config)
        return 1.0

    monkeypatch.setattr(budget, "calibrate", calibrate)
    changes = {"augment": "standard", "per_class": {"whole_number": [2, 3]}, "clip": {"uniform": [0.5, 2.0]}}
    asked = ask_for(methods=("contrastive",), changes=changes)
    study = start_study(asked, tmp_path / "a", StudyWatcher())
    (method,) = study.protocol.methods
    assert study.protocol.base.train.per_class > 3
    with ExitStack() as stack:
        trial, settings = study.ask(method, stack)
    config = TrialRunner(study, lambda words: Watcher()).configure(method, trial, settings, 1, 1.0)
    for found in (config, *timed):
        assert (found.data.augment, found.train.per_class, found.train.clip) == ("standard", 3, 0.5)
    assert config.train.max_steps == asked.base.train.max_steps


def test_a_file_of_spaces_names_methods_that_are_compared(tmp_path: Path) -> None:
    asked = ask_for(changes={"triplet": {"margin": 0.1}})
    with pytest.raises(InvalidInput, match="triplet: expected a method of the study"):
        start_study(asked, tmp_path / "a", StudyWatcher())


def test_the_length_scales_what_happens_at_given_epochs() -> None:
    config = Config().with_values({"epochs": 60, "warmup_epochs": 5, "decay_every": 10, "max_steps": 600})
    train = apply_settings(config, {"length": 0.5, "lr": 1e-3}).train
    assert (train.epochs, train.warmup_epochs, train.decay_every, train.max_steps, train.lr) == (30, 2, 5, 300, 1e-3)
    assert apply_settings(config, {"length": 0.5}, share=1e-6).train.max_steps == 1


def test_the_ladder_ends_with_all_folds() -> None:
    assert [(rung.step, rung.folds) for rung in build_ladder(3, 0.0)] == [(2, 1), (4, 2), (8, 3)]
    assert [(rung.step, rung.folds, rung.share) for rung in build_ladder(2, 0.3)] == [
        (1, 1, 0.3),
        (2, 1, 1.0),
        (4, 2, 1.0),
    ]


def test_ranks_of_few_or_equal_scores_are_undefined() -> None:
    assert correlate_ranks([(1, 2), (2, 3)]) is None
    assert correlate_ranks([(1, 2)] * 6) is None
    assert correlate_ranks([(n, -n) for n in range(6)]) == -1


COSTS = CostModel({"a": 10.0, "b": 20.0, "c": 10.0}, {"a": {}, "b": {}, "c": {}}, folds=4, seeds=3, cheap=0.0)


def test_a_budget_is_filled_with_trials() -> None:
    assert COSTS.trial_seconds("a") == pytest.approx(10 * (1 + 1 / 2 + 2 / 4))
    fit = fit_budget(7200, COSTS, ["a", "b"], chosen=True)
    assert COSTS.seconds(fit.methods, fit.trials) <= 7200 < COSTS.seconds(fit.methods, fit.trials + 1)
    few = fit_budget(COSTS.seconds(["a", "b"], 7), COSTS, ["a", "b", "c"], chosen=False)
    assert (few.methods, few.trials) == (("a", "b"), 7)
    many = fit_budget(36_000, COSTS, ["a", "b", "c"], chosen=False)
    assert many.methods == ("a", "b", "c")


def test_a_small_budget_has_fewer_folds_and_a_large_one_all() -> None:
    dear = dataclasses.replace(COSTS, cheap=1 / 3)
    assert fit_folds(36_000, dear, ["a", "b"], True, fewer=2)[0] == dear
    small = dear.seconds(["a", "b"], 8)
    costs, fit = fit_folds(small, dear, ["a", "b"], True, fewer=2)
    assert (costs.folds, costs.cheap) == (2, 0.0)
    assert fit.trials > 8
    assert fit_folds(small, dear, ["a", "b"], True, fewer=4)[0].folds == 4  # the user asked for them


def test_a_budget_in_which_nothing_can_be_concluded_is_refused_with_the_smallest_that_can() -> None:
    with pytest.raises(InvalidInput, match=r"expected at least (\d+)m.* got 1m") as caught:
        fit_budget(60, COSTS, ["a", "b"], chosen=True)
    least = 60 * int(str(caught.value).split("at least ")[1].split("m")[0])
    assert fit_budget(least, COSTS, ["a", "b"], chosen=True).trials == 5
    with pytest.raises(InvalidInput):
        fit_budget(least - 60, COSTS, ["a", "b"], chosen=True)
    assert fit_budget(least, COSTS, ["a", "b"], chosen=True, most=2).trials == 2
    with pytest.raises(InvalidInput, match="in which 2 trials each of a, b"):
        fit_budget(60, COSTS, ["a", "b"], chosen=True, most=2)


def test_a_refused_budget_leaves_no_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="in which nothing can be concluded"):
        start_study(ask_for(budget=0.5, trials=None), tmp_path / "a", StudyWatcher())
    with pytest.raises(InvalidInput, match="in which nothing can be concluded"):
        start_study(ask_for(budget=0.5, trials=2, methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    assert not (tmp_path / "a" / "study.json").exists()


def test_a_verdict_needs_classes_and_seeds() -> None:
    assert Contrast("a", "b", 2.0, 0.5, 3.5, (2.0, 2.1, 1.9)).verdict == "helps"
    assert Contrast("a", "b", -2.0, -3.5, -0.5, (-2.0, -2.1, -1.9)).verdict == "harms"
    assert Contrast("a", "b", 2.0, -0.5, 4.5, (2.0, 2.1, 1.9)).verdict == "open"  # other classes
    assert Contrast("a", "b", 2.0, 0.5, 3.5, (6.0, -1.0, 1.0)).verdict == "open"  # other seeds


def test_more_seeds_narrow_the_interval_as_students_t_says() -> None:
    from metrix.evaluate.seeds import SeedDifferences

    values = (1.0, 2.0, 4.0)
    assert narrow(values, 3) == pytest.approx(SeedDifferences(values).margin)
    assert narrow(values, 30) < narrow(values, 3) / 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trials": None}, "expected --budget TIME, such as 2h, or --trials N"),
        ({"folds": 1}, "--folds"),
        ({"folds": 40}, "fold: expected 2 to 30 folds of 60 training classes"),
        ({"seeds": 1}, "--seeds"),
        ({"metric": "recall"}, "did you mean 'recall@1'"),
        ({"methods": ("nothing",)}, "--method: loss"),
    ],
)
def test_requests_that_make_no_sense(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        start_study(ask_for(**changes), tmp_path / "a", StudyWatcher())


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, study: StudyFolder) -> None:
    (tmp_path / "thesis.tex").write_text("!")
    with pytest.raises(InvalidInput, match="already exists and is no study"):
        start_study(ask_for(), tmp_path, StudyWatcher())
    with pytest.raises(InvalidInput, match=f"continue it with --resume {study.path}"):
        start_study(ask_for(), study.path, StudyWatcher())
    with pytest.raises(InvalidInput, match=r"is no study: it has no study\.json"):
        resume_study(tmp_path, None, None)


def test_a_trial_that_cannot_be_trained_fails_and_the_study_goes_on(tmp_path: Path) -> None:
    asked = ask_for(methods=("contrastive",), changes={"lr": [1e-2, 1e30]}, trials=4)
    found = work_on(start_study(asked, tmp_path / "a", StudyWatcher()), StudyWatcher())
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert len(found.trials) == 4
    assert failed
    assert all("finite" in trial.error for trial in failed)
    assert RunFolder(found.table.results[0].folders[0]).results is not None


def test_a_trial_that_ends_while_it_is_adopted_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    own = ExitStack()
    trial, _ = study.ask(study.protocol.methods[0], own)
    other = StudyFolder(study.path)

    def end_first(path: Path, *, wait: bool = True) -> Any:
        study.studies["contrastive"].tell(trial.number, 0.5)
        own.close()
        return lock(path, wait=wait)

    monkeypatch.setattr("metrix.experiments.tuning.study.lock", end_first)
    with ExitStack() as stack:
        assert other.adopt(stack) is None


def test_trials_with_equal_settings_wait_for_each_other(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from metrix.experiments.tuning.trials import measure_fold

    cell = study.make_cell(tiny(fold="1/2", seed=11))
    file = study.store.cell_folder(cell.key) / "measures.json"
    file.parent.mkdir(parents=True)

    def train_elsewhere(*given: Any) -> None:
        raise AssertionError("another process has trained it")

    monkeypatch.setattr("metrix.experiments.tuning.trials.train_cell", train_elsewhere)
    with lock(file.with_name("measures.lock")):
        begun = threading.Event()
        found: list[dict[str, float]] = []

        def measure() -> None:
            begun.set()
            found.append(measure_fold(study, cell, Watcher))

        waiting = threading.Thread(target=measure)
        waiting.start()
        begun.wait()
        time.sleep(0.1)
        assert not found
        file.write_text('{"recall@1": 0.5, "map@r": 0.25}')
    waiting.join()
    assert found == [{"recall@1": 0.5, "map@r": 0.25}]


def test_a_joined_process_trains_the_winners_that_no_other_trains(
    study: StudyFolder, found: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, bool]] = []

    def train_cell(folder: Path, config: Config, watcher: Watcher, *, wait: bool) -> None:
        calls.append((folder.name, wait))
        if len(calls) == 1:
            raise BlockingIOError
        if not wait:
            trained.add(folder.name)

    trained: set[str] = set()
    monkeypatch.setattr("metrix.experiments.tuning.finals.train_cell", train_cell)
    monkeypatch.setattr(CellStore, "results", lambda store, key: {} if key in trained else None)
    train_winners(study, found.winners, lambda words: Watcher())
    first = calls[0][0]
    assert [wait for _, wait in calls] == [False] * 4 + [True]
    assert calls[-1] == (first, True)


def test_the_budget_of_a_study_passes_only_while_it_is_worked_on(tmp_path: Path) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    now = time.time()
    study.write_plan(Plan(None, now - 1000, 3600, seen=now - 1600))  # stopped with ten minutes left, a while ago
    left = resume_study(study.path, None, None).plan.left
    assert left == pytest.approx(600, abs=60)
    study.write_plan(Plan(None, now - 1000, 3600, seen=now - 900))  # it was over
    assert resume_study(study.path, None, None).plan.left == pytest.approx(-100, abs=60)
    assert resume_study(study.path, None, 60.0).plan.left == pytest.approx(60, abs=30)  # for longer


def test_studies_that_share_a_storage_keep_apart_and_can_be_renamed(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    one = start_study(ask_for(methods=("contrastive",), storage=storage), tmp_path / "1" / "a", StudyWatcher())
    other = start_study(ask_for(methods=("contrastive",), storage=storage), tmp_path / "2" / "a", StudyWatcher())
    with ExitStack() as stack:
        one.ask(one.protocol.methods[0], stack)
    assert other.count_trials() == {"contrastive": 0}
    one.path.rename(tmp_path / "1" / "b")
    assert StudyFolder(tmp_path / "1" / "b").count_trials() == {"contrastive": 1}


def test_the_conclusion_names_methods_that_could_not_be_trained(study: StudyFolder, found: StudyResult) -> None:
    broken = dataclasses.replace(found.trials[0], method="supcon", state="failed", scores=(), error="not finite")
    winners = find_winners(study)
    said = conclude(winners, [*found.trials, broken], found.table, "recall@1")
    assert "Not compared, because no trial could be finished: supcon (not finite)." in said.text
    assert "Not compared" not in conclude(winners, found.trials, found.table, "recall@1").text


def test_ranges_of_a_file_hold_for_the_methods_that_have_the_setting() -> None:
    changes = {"margin": {"uniform": [0.1, 0.5]}, "strength": [0.2, 0.4]}
    spaces = {name: build_space(parse_method(name), tiny(), changes, {}) for name in ("contrastive", "supcon+feature")}
    assert spaces["contrastive"]["margin"] == Uniform(0.1, 0.5)
    assert "strength" not in spaces["contrastive"]
    assert "margin" not in spaces["supcon+feature"]  # SupCon has none
    assert spaces["supcon+feature"]["strength"] == OneOf((0.2, 0.4))


def test_a_study_whose_trials_are_lost_or_damaged_is_one_error(tmp_path: Path) -> None:
    study = start_study(ask_for(methods=("contrastive",)), tmp_path / "a", StudyWatcher())
    with pytest.raises(InvalidInput, match="--storage: journal has no trials of"):
        resume_study(study.path, 1, None, "journal")  # it began in a file
    (study.path / "study.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(InvalidInput, match=r"study\.db cannot be opened: .*; restore it, or start a new study"):
        StudyFolder(study.path).count_trials()
    (study.path / "study.db").unlink()
    with pytest.raises(InvalidInput, match=r"study\.db has no trials of .*; restore it"):
        StudyFolder(study.path).count_trials()


def test_a_storage_is_opened_before_methods_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "calibrate", lambda *given, **more: pytest.fail("calibrated"))
    with pytest.raises(InvalidInput, match="--storage: nonsense://host cannot be opened"):
        start_study(ask_for(storage="nonsense://host"), tmp_path / "a", StudyWatcher())
