"""Work on the trials of a study until they are done, and conclude."""

from __future__ import annotations

import dataclasses
import json
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from metrix.errors import InvalidInput
from metrix.experiments.cells import code_version
from metrix.experiments.tuning.budget import (
    estimate_costs,
)
from metrix.experiments.tuning.finals import compare_winners, find_winners, train_winners
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.protocol import Plan
from metrix.experiments.tuning.result import StudyResult, build_result, measure_untrained
from metrix.experiments.tuning.study import StudyFolder, StudyInterrupted
from metrix.experiments.tuning.trials import FinishedTrial, TrialRunner, find_errors, list_trials
from metrix.files import lock, write_text
from metrix.train.interruption import Interrupted
from metrix.train.watching import Watcher

POLL = 1.0  # seconds between two looks at the trials of other processes


@dataclass(frozen=True)
class Standing:
    """How far a study is."""

    phase: str  # searching, waiting for other processes, training the winners
    methods: tuple[str, ...]
    trials: tuple[FinishedTrial, ...]
    plan: Plan
    untrained: float | None  # score of the untrained network on the folds, per cent


class StudyWatcher:
    """Is told how a study progresses and ignores it; the command line has a subclass that draws it."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def report(self, what: str, done: int, of: int) -> None:
        """Preparation, such as the calibration: `done` of `of` items."""

    def update(self, standing: Standing) -> None:
        """A trial or a stage of the study began or ended."""

    def watch_run(self, words: str) -> Watcher:
        """The watcher of a run, which is described in words."""
        return Watcher()

    def close(self) -> None:
        """No more events follow."""


def work_on(study: StudyFolder, watcher: StudyWatcher) -> StudyResult:
    """Work on the trials of a study until they are done, train the winners, and conclude.

    Several processes may call this for one study; each trial and each run is trained by one of them.

    Raises:
        StudyInterrupted: a signal ended it
        InvalidInput: no trial of any method could be trained
    """
    try:
        with _stop_on_signals(study.path):
            return _work(study, watcher)
    except Interrupted as ended:  # within a run, which has written its checkpoint
        raise StudyInterrupted(ended.signum, study.path) from None
    finally:
        watcher.close()


@contextmanager
def _stop_on_signals(folder: Path) -> Iterator[None]:
    """Raise `StudyInterrupted` at SIGINT and SIGTERM between runs, too; other handlers are back after the block."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise StudyInterrupted(signum, folder)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(study: StudyFolder, watcher: StudyWatcher) -> StudyResult:
    runner = TrialRunner(study, watcher.watch_run)
    if study.protocol.code != code_version():
        watcher.note(
            "metrix has changed since this study began: finished trials keep their scores, runs of the winners are "
            "trained again"
        )
    while True:
        with ExitStack() as stack:
            with study.held():
                taken = study.adopt(stack) or _ask(study, stack)
            if taken is not None:
                _update(study, watcher, "searching")
                runner.run(*taken)
                measure_untrained(study)
                continue
        if not study.count_running():
            break
        _update(study, watcher, "waiting for other processes")
        time.sleep(POLL)
    winners = find_winners(study)
    if not winners:
        errors = [f"{name}: {error}" for name, error in find_errors(list_trials(study)).items()]
        raise InvalidInput(f"no trial could be finished, so that there is nothing to compare: {'; '.join(errors)}")
    _update(study, watcher, "training the winners")
    train_winners(study, winners, watcher.watch_run)
    with lock(study.path / "comparison.lock"):  # a second process reads what the first has embedded
        result = build_result(study, winners, compare_winners(study, winners))
        write_text(study.path / "best.yaml", result.to_yaml())
        write_text(study.path / "results.json", json.dumps(result.to_dict(), indent=2) + "\n")
        study.store.write_index()
    return result


def _ask(study: StudyFolder, stack: ExitStack) -> tuple[TunedMethod, Any, dict[str, Any]] | None:
    """The next trial, of the method with the fewest; None if there shall be no more. The caller holds the study."""
    study.write_plan(dataclasses.replace(study.plan, seen=time.time()))
    counts = study.count_trials()
    fewest = min(counts.values())
    if fewest == max(counts.values()) and not _has_another_round(study, fewest):
        return None
    method = next(one for one in study.protocol.methods if counts[one.name] == fewest)
    return method, *study.ask(method, stack)


def _has_another_round(study: StudyFolder, done: int) -> bool:
    """Whether one more trial of each method is wanted, and fits before the deadline with the winners after it."""
    plan = study.plan
    if done == 0:
        return True
    if plan.trials is not None and done >= plan.trials:
        return False
    if plan.left is None:
        return True
    costs = estimate_costs(study.protocol)
    names = [method.name for method in study.protocol.methods]
    taken = {name: [one.seconds for one in list_trials(study) if one.method == name and one.seconds] for name in names}
    expected = {name: costs.trial_seconds(name) for name in names}
    measured = {name: statistics.fmean(taken[name]) if taken[name] else expected[name] for name in names}
    pace = sum(measured.values()) / max(1e-9, sum(expected.values()))
    winners = pace * sum(costs.winner_seconds(name) for name in names)
    return sum(measured.values()) + winners <= plan.left


def _update(study: StudyFolder, watcher: StudyWatcher, phase: str) -> None:
    untrained = measure_untrained(study, only_read=True)
    names = tuple(method.name for method in study.protocol.methods)
    score = statistics.fmean(untrained) if untrained else None
    watcher.update(Standing(phase, names, tuple(list_trials(study)), study.plan, score))
