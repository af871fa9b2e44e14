"""One trial: a setting, trained cheaply, then on one fold, two folds, … all of them, until it falls behind."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metrix.errors import MetrixError
from metrix.experiments.cells import Cell, train_cell
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.spaces import apply_settings, find_moved
from metrix.experiments.tuning.study import STARTUP, StudyFolder, StudyInterrupted
from metrix.files import lock, parse_stored, write_json
from metrix.train.config import Config
from metrix.train.interruption import Interrupted, LoadingFailed, WritingFailed
from metrix.train.watching import Watcher

if TYPE_CHECKING:
    from metrix.evaluate import Retrieval

METRICS = ("recall@1", "map@r")
TRUSTED = 0.6  # rank correlation from which on cheap trials decide which trials go on
MEASURES = "measures.json"  # in the folder of a cell


@dataclass(frozen=True)
class Rung:
    """A stage of a trial: so many folds, trained for a share of the length. `step` is Optuna's."""

    step: int
    folds: int
    share: float


def build_ladder(folds: int, cheap: float) -> list[Rung]:
    """The stages of a trial; each but the last lets about half of the trials go on.

    >>> [(rung.folds, rung.share) for rung in build_ladder(4, 0.25)]
    [(1, 0.25), (1, 1.0), (2, 1.0), (4, 1.0)]
    """
    counts = [n for n in (2**k for k in range(folds)) if n < folds] + [folds]
    rungs = [Rung(2 ** (k + 1), count, 1.0) for k, count in enumerate(counts)]
    return [Rung(1, 1, cheap), *rungs] if cheap else rungs


@dataclass(frozen=True)
class FinishedTrial:
    """A trial as it is shown: `number` counts the trials of all methods in the order in which they began."""

    number: int
    method: str
    state: str  # finished, stopped, failed or running
    usual: bool  # the settings of the base configuration
    settings: dict[str, Any]
    cheap: float | None  # score of the cheap stage, per cent
    scores: tuple[float, ...]  # of the folds that were trained, per cent
    seconds: float
    error: str = ""

    @property
    def score(self) -> float | None:
        """The mean over all folds; None unless the trial is finished."""
        return statistics.fmean(self.scores) if self.state == "finished" else None

    @property
    def latest(self) -> float | None:
        """The mean over the folds that were trained; of the cheap stage where there is none."""
        return statistics.fmean(self.scores) if self.scores else self.cheap


class TrialRunner:
    """Runs the trials of a study in this process."""

    def __init__(self, study: StudyFolder, watch: Callable[[str], Watcher]) -> None:
        self.study, self.watch = study, watch
        self.ladder = build_ladder(study.protocol.folds, study.protocol.cheap)

    def run(self, method: TunedMethod, trial: Any, settings: dict[str, Any]) -> None:
        """Train and measure a trial until it is finished or falls behind, and tell Optuna.

        A trial that cannot be trained (a loss that is not finite, settings that do not go together) counts as failed.
        """
        from optuna.trial import TrialState

        optuna_study = self.study.studies[method.name]
        spent = float(trial.user_attrs.get("seconds", 0.0))
        trial.set_user_attr("process", f"{socket.gethostname()}-{os.getpid()}")
        scores: list[float] = []
        for rung in self.ladder:
            if rung.share < 1 and not self.tries_cheaply(method, trial):
                continue
            began = time.monotonic()
            try:
                scores = [self.score(method, trial, settings, fold, rung.share) for fold in range(1, rung.folds + 1)]
            except (Interrupted, StudyInterrupted, LoadingFailed, WritingFailed):
                raise
            except MetrixError as error:
                trial.set_user_attr("error", str(error))
                optuna_study.tell(trial.number, state=TrialState.FAIL)
                return
            spent += time.monotonic() - began
            trial.set_user_attr("seconds", round(spent, 1))
            trial.set_user_attr("cheap" if rung.share < 1 else "scores", scores[0] if rung.share < 1 else scores)
            if self._falls_behind(method, trial, rung, statistics.fmean(scores)):
                optuna_study.tell(trial.number, state=TrialState.PRUNED)
                return
        optuna_study.tell(trial.number, statistics.fmean(scores))

    def _falls_behind(self, method: TunedMethod, trial: Any, rung: Rung, score: float) -> bool:
        """Whether successive halving ends the trial here; the usual settings and the last stage are always finished."""
        stored = self.study.studies[method.name].get_trials(deepcopy=False)[trial.number]
        if rung.step not in stored.intermediate_values:  # a resumed trial has reported its first stages
            trial.report(score, rung.step)
        behind = bool(trial.should_prune())
        if rung is self.ladder[-1] or trial.user_attrs.get("usual"):
            return False
        return behind and (rung.share == 1 or self.trusts_cheap(method))

    def tries_cheaply(self, method: TunedMethod, trial: Any) -> bool:
        """Whether a trial has a cheap stage: until it is known that such stages rank trials in another order."""
        if "cheap" in trial.user_attrs:
            return True
        pairs = self.cheap_and_dear(method)
        return len(pairs) < STARTUP or self.trusts_cheap(method)

    def trusts_cheap(self, method: TunedMethod) -> bool:
        """Whether the cheap stage ranks the trials of a method as a whole training does."""
        found = correlate_ranks(self.cheap_and_dear(method))
        return found is not None and found >= TRUSTED

    def cheap_and_dear(self, method: TunedMethod) -> list[tuple[float, float]]:
        """The scores of a method's trials on the first fold after a cheap and after a whole training."""
        trials = self.study.studies[method.name].get_trials(deepcopy=False)
        attributes = [trial.user_attrs for trial in trials]
        return [(one["cheap"], one["scores"][0]) for one in attributes if "cheap" in one and "scores" in one]

    def score(self, method: TunedMethod, trial: Any, settings: dict[str, Any], fold: int, share: float) -> float:
        """The score of a setting on one fold, from 0 to 1: trained, resumed, or read."""
        of = self.study.protocol.folds
        cell = self.study.make_cell(self.configure(method, trial, settings, fold, share))
        words = f"{method.name}, trial {trial.number + 1}, fold {fold} of {of}{' (cheap)' if share < 1 else ''}"
        return measure_fold(self.study, cell, lambda: self.watch(words))[self.study.protocol.metric]

    def configure(self, method: TunedMethod, trial: Any, settings: dict[str, Any], fold: int, share: float) -> Config:
        """The configuration of a trial on one fold; the usual settings are those of the base, to the last digit.

        Those that are not in the space are moved into it: what a file of spaces fixes holds for all trials.
        """
        base = method.configure(self.study.protocol.base)
        usual = trial.user_attrs.get("usual")
        chosen = find_moved(base, self.study.protocol.spaces[method.name]) if usual else settings
        config = apply_settings(base, chosen, share)
        return config.with_values({"fold": f"{fold}/{self.study.protocol.folds}", "holdout": 0.0})


def find_errors(trials: Sequence[FinishedTrial]) -> dict[str, str]:
    """Why methods have no finished trial, by method: the first error of their trials."""
    finished = {one.method for one in trials if one.state == "finished"}
    errors: dict[str, str] = {}
    for one in trials:
        if one.error and one.method not in finished:
            errors.setdefault(one.method, one.error)
    return errors


def correlate_ranks(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation; None where fewer than `STARTUP` pairs, or ties alone, leave it undefined.

    >>> correlate_ranks([(1, 10), (2, 20), (3, 25), (4, 40), (5, 45)])
    1.0
    """
    if len(pairs) < STARTUP or any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    from scipy.stats import spearmanr

    return round(float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic), 6)


def measure_fold(study: StudyFolder, cell: Cell, watch: Callable[[], Watcher]) -> dict[str, float]:
    """The measures of a cell on its fold, from 0 to 1, by metric; kept in its folder.

    Trials with equal settings share a cell: another process that measures it is waited for. The model is deleted once
    it is measured: a study has hundreds of them.
    """
    folder = study.store.cell_folder(cell.key)
    file = folder / MEASURES
    with lock(folder / "measures.lock"):
        if file.exists():
            return parse_stored(dict[str, float], file.read_text("utf-8"), file)
        study.store.write_record(cell)
        train_cell(folder, cell.config, watch())
        measured = retrieve(study, cell).means
        found = {metric: float(measured[metric]) for metric in METRICS}
        write_json(file, found)
        run = study.store.run(cell.key)
        for part in (run.model, run.path / "embeddings"):
            shutil.rmtree(part, ignore_errors=True)
        return found


def retrieve(study: StudyFolder, cell: Cell, initial: bool = False) -> Retrieval:
    """The search of a trained cell, or of its network before training, on the classes that it is measured on."""
    from metrix import evaluate
    from metrix.runs.evaluation import embed_examples
    from metrix.runs.trained_model import open_run

    found = embed_examples(open_run(study.store.run(cell.key).path, initial=initial))
    return evaluate.retrieval(**found.arguments, ks=(1,))


def list_trials(study: StudyFolder) -> list[FinishedTrial]:
    """All trials that began, in that order."""
    from optuna.trial import TrialState

    states = {
        TrialState.COMPLETE: "finished",
        TrialState.PRUNED: "stopped",
        TrialState.FAIL: "failed",
        TrialState.RUNNING: "running",
    }
    begun = [
        (trial.datetime_start, method, trial)
        for method, optuna_study in study.studies.items()
        for trial in optuna_study.get_trials(deepcopy=False)
        if trial.state in states and trial.datetime_start is not None
    ]
    return [
        FinishedTrial(
            number=number,
            method=method,
            state=states[trial.state],
            usual=bool(trial.user_attrs.get("usual")),
            settings=dict(trial.params),
            cheap=100.0 * trial.user_attrs["cheap"] if "cheap" in trial.user_attrs else None,
            scores=tuple(100.0 * score for score in trial.user_attrs.get("scores", ())),
            seconds=float(trial.user_attrs.get("seconds", 0.0)),
            error=str(trial.user_attrs.get("error", "")),
        )
        for number, (_, method, trial) in enumerate(sorted(begun, key=lambda one: one[0]), 1)
    ]
