"""What is kept of a finished study: all that the comparison over datasets needs, in a file beside it."""

from __future__ import annotations

import dataclasses
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.experiments.tuning.finals import Contrast, FinalResult, Winner
from metrix.experiments.tuning.result import StudyResult
from metrix.experiments.tuning.trials import find_errors
from metrix.files import parse_stored, write_json
from metrix.train.run_folder import RunFolder

OUTCOME = "outcome.json"
FIT = ("training_map@r", "unseen_map@r", "gap")  # of the results of a run


@dataclass(frozen=True)
class FinalRun:
    """A run of the best settings of a method on all training classes; recall and fit are in per cent.

    `fit` has MAP@R of the training classes, of equally many unseen ones, and the gap; it is empty where a run did
    not measure it.
    """

    seed: int
    recall: float
    seconds: float
    fit: dict[str, float]
    folder: str  # relative to the reality check


@dataclass(frozen=True)
class MethodOutcome:
    """A method on a dataset: its search on the folds, and its best settings on the test classes."""

    method: str
    runs: tuple[FinalRun, ...]
    interval: tuple[float, float]  # of Recall@1 over test classes, corrected for the comparisons of the dataset
    folds: tuple[float, ...]  # scores of the best settings, per cent
    usual_folds: tuple[float, ...]  # of the settings that the search began with; empty if they could not be trained
    settings: dict[str, Any]  # in which the best settings differ from those of the dataset
    trials: int
    stopped: int
    failed: int
    trial_seconds: float

    @property
    def recall(self) -> float:
        """Recall@1 on the test classes, the mean over seeds, per cent."""
        return statistics.fmean(run.recall for run in self.runs)

    @property
    def run_seconds(self) -> float:
        """The mean duration of a run of the best settings."""
        return statistics.fmean(run.seconds for run in self.runs)

    @property
    def tuning_gain(self) -> float | None:
        """How far the best settings are above the usual ones on the folds, in points."""
        if not self.usual_folds:
            return None
        return statistics.fmean(self.folds) - statistics.fmean(self.usual_folds)

    def mean_fit(self, key: str) -> float | None:
        """A measure of fit, the mean over runs; None where no run has it."""
        values = [run.fit[key] for run in self.runs if key in run.fit]
        return statistics.fmean(values) if values else None


@dataclass(frozen=True)
class DatasetOutcome:
    """A finished study of a dataset."""

    name: str
    fingerprint: str
    code: str  # version of the code that trains
    classes: int
    queries: int
    comparisons: int
    looks: int
    untrained: float  # Recall@1 on the test classes, per cent
    methods: tuple[MethodOutcome, ...]
    contrasts: tuple[Contrast, ...]
    failed: dict[str, str]  # methods without any finished trial, and why

    def find(self, method: str) -> MethodOutcome | None:
        """The outcome of a method; None if no trial of it was finished."""
        return next((one for one in self.methods if one.method == method), None)

    def find_contrast(self, method: str, against: str) -> Contrast | None:
        """The difference between two methods on the test classes, if the study compared them."""
        return next((one for one in self.contrasts if (one.name, one.against) == (method, against)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = dataclasses.asdict(self)
        for method, one in zip(plain["methods"], self.methods, strict=True):
            method |= {"recall": one.recall, "run_seconds": one.run_seconds, "tuning_gain": one.tuning_gain}
        return {**plain, "contrasts": [one.to_dict() for one in self.contrasts]}


def read_outcome(study: Path) -> DatasetOutcome | None:
    """The outcome of a study; None if it is not finished."""
    file = study / OUTCOME
    return parse_stored(DatasetOutcome, file.read_text("utf-8"), file) if file.is_file() else None


def keep_outcome(found: StudyResult) -> DatasetOutcome:
    """Gather the outcome of a finished study, and write it into its folder."""
    table, protocol = found.table, found.protocol
    results = {one.method: one for one in table.results}
    winners = {winner.method.name: winner for winner in found.winners}
    outcome = DatasetOutcome(
        name=protocol.data.name,
        fingerprint=protocol.data.fingerprint,
        code=protocol.code,
        classes=table.classes,
        queries=table.queries,
        comparisons=table.comparisons,
        looks=table.looks,
        untrained=table.untrained.mean,
        methods=tuple(_gather_method(found, winner, results[name]) for name, winner in winners.items()),
        contrasts=table.contrasts,
        failed=find_errors(found.trials),
    )
    write_json(found.folder / OUTCOME, dataclasses.asdict(outcome))
    return outcome


def _gather_method(found: StudyResult, winner: Winner, result: FinalResult) -> MethodOutcome:
    name = winner.method.name
    trials = [one for one in found.trials if one.method == name]
    usual = found.usual_of(name)
    base = winner.method.configure(found.protocol.base)
    return MethodOutcome(
        method=name,
        runs=tuple(
            _gather_run(found, folder, recall) for folder, recall in zip(result.folders, result.recalls, strict=True)
        ),
        interval=result.interval,
        folds=winner.scores,
        usual_folds=() if usual is None else usual.scores,
        settings=winner.config.differences_to(base),
        trials=len(trials),
        stopped=sum(one.state == "stopped" for one in trials),
        failed=sum(one.state == "failed" for one in trials),
        trial_seconds=sum(one.seconds for one in trials),
    )


def _gather_run(found: StudyResult, folder: Path, recall: float) -> FinalRun:
    run = RunFolder(folder)
    results = run.results or {}
    fit = results.get("fit") or {}
    return FinalRun(
        seed=run.config.train.seed,
        recall=recall,
        seconds=float(results.get("seconds", 0.0)),
        fit={key: 100.0 * float(fit[key]) for key in FIT if key in fit},
        folder=Path(os.path.relpath(folder, found.folder.parent)).as_posix(),
    )
