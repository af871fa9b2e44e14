"""Start, resume or join a study, work on its trials until they are done, and conclude."""

from __future__ import annotations

import json
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from metrix.errors import InvalidInput, MetrixError, check_integer, unknown_choice
from metrix.experiments.cells import code_version
from metrix.experiments.tuning.budget import (
    GOOD_TRIALS,
    CostModel,
    Fit,
    describe_fit,
    estimate_costs,
    fit_folds,
    time_method,
)
from metrix.experiments.tuning.finals import compare_winners, find_winners, train_winners
from metrix.experiments.tuning.methods import TunedMethod, list_usual_methods, parse_methods
from metrix.experiments.tuning.result import StudyResult, build_result, measure_untrained
from metrix.experiments.tuning.spaces import build_space
from metrix.experiments.tuning.study import (
    Plan,
    Protocol,
    StudyData,
    StudyFolder,
    check_folder,
    fingerprint_data,
    name_data,
    strip_password,
)
from metrix.experiments.tuning.trials import METRICS, FinishedTrial, TrialRunner, list_trials
from metrix.files import write_text
from metrix.train.config import Config
from metrix.train.data_place import with_absolute_paths
from metrix.train.interruption import Interrupted
from metrix.train.watching import Watcher

FOLDS, FEWER_FOLDS, SEEDS = 4, 2, 3  # fewer folds, where a budget is small
CHEAP = 1 / 3
POLL = 1.0  # seconds between two looks at the trials of other processes


class StudyInterrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A signal ended the work on a study; it can be resumed."""

    def __init__(self, signum: int, folder: Path) -> None:
        name = signal.Signals(signum).name
        super().__init__(f"interrupted by {name}; nothing is lost: continue with metrix tune --resume {folder}")
        self.exit_code = 128 + signum


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


@dataclass(frozen=True)
class Request:
    """What a user asks of a new study; `None` leaves the choice to metrix."""

    base: Config
    methods: Sequence[str] = ()
    budget: float | None = None  # seconds
    trials: int | None = None
    folds: int | None = None
    seeds: int = SEEDS
    metric: str = METRICS[0]
    cheap: bool = True
    changes: Mapping[str, Any] | None = None  # of the spaces
    fixed: Mapping[str, Any] | None = None  # settings that are not searched
    storage: str | None = None

    def check(self) -> None:
        """Raise `InvalidInput` unless it makes sense."""
        if self.budget is None and self.trials is None:
            raise InvalidInput("expected --budget TIME, such as 2h, or --trials N, or both, got neither")
        if self.folds is not None:
            check_integer("--folds", self.folds, least=2)
        check_integer("--seeds", self.seeds, least=2)
        if self.trials is not None:
            check_integer("--trials", self.trials, least=1)
        if self.metric not in METRICS:
            raise unknown_choice("--metric", self.metric, METRICS)


def start_study(request: Request, folder: Path, watcher: StudyWatcher) -> StudyFolder:
    """A new study, planned after a short calibration.

    Raises:
        InvalidInput: the request makes no sense, the folder is taken, a method cannot be trained on the data, or
            nothing can be concluded in the budget
    """
    request.check()
    base = with_absolute_paths(request.base)
    study = StudyFolder(folder, request.storage)
    study.check_new()
    chosen = parse_methods(request.methods)
    data = StudyData(name_data(base), fingerprint_data(base))
    check_folder(folder)
    methods = chosen or list_usual_methods(base)
    spaces = {one.name: build_space(one, base, request.changes or {}, request.fixed or {}) for one in methods}
    cheap = CHEAP if request.cheap else 0.0
    costs, fit = _fit(request, base, methods, spaces, cheap, folder, watcher, bool(chosen))
    watcher.note(f"plan: {describe_fit(fit, costs, request.budget)}")
    protocol = Protocol(
        base=base,
        methods=tuple(one for one in methods if one.name in fit.methods),
        spaces={name: spaces[name] for name in fit.methods},
        metric=request.metric,
        folds=costs.folds,
        seeds=request.seeds,
        cheap=costs.cheap,
        data=data,
        run_seconds={name: costs.run_seconds[name] for name in fit.methods},
        code=code_version(),
        storage=strip_password(request.storage),
    )
    study.create(protocol, plan_until(request.trials, request.budget))
    return study


def _fit(
    request: Request,
    base: Config,
    methods: Sequence[TunedMethod],
    spaces: Mapping[str, Any],
    cheap: float,
    folder: Path,
    watcher: StudyWatcher,
    chosen: bool,
) -> tuple[CostModel, Fit]:
    """Time the methods, as many as there is any hope to fit, and choose methods and trials."""
    seconds: dict[str, float] = {}
    folds = request.folds or FOLDS
    costs = CostModel(seconds, spaces, folds, request.seeds, cheap, base.train.max_steps is not None)
    limit = len(methods) if chosen or request.budget is not None else 2
    for number, method in enumerate(methods[:limit]):
        watcher.report(f"calibrating {method.name}", number, limit)
        seconds[method.name] = time_method(method, base, folds, folder, warm_up=number == 0)
        full = request.budget is not None and costs.seconds(list(seconds), GOOD_TRIALS) > request.budget
        if full and not chosen and len(seconds) >= 2:
            break
    watcher.report("calibrating", limit, limit)
    names = list(seconds)
    if request.trials is not None:
        return costs, Fit(tuple(names), request.trials, costs.seconds(names, request.trials))
    assert request.budget is not None
    fewer = FEWER_FOLDS if request.folds is None else request.folds
    return fit_folds(request.budget, costs, names, chosen, fewer)


def plan_until(trials: int | None, budget: float | None) -> Plan:
    """The plan of a search that ends after so many trials of each method, or so many seconds from now."""
    return Plan(trials, None if budget is None else time.time() + budget, budget)


def resume_study(folder: Path, trials: int | None, budget: float | None, storage: str | None = None) -> StudyFolder:
    """A study to continue: with what was planned, or for more trials of each method, or more time."""
    study = StudyFolder(folder, storage)
    study.check_data()
    if trials is not None or budget is not None:
        done = min(study.count_trials().values())
        study.write_plan(plan_until(None if trials is None else done + trials, budget))
    elif study.plan.deadline is not None:  # the time that was left when it stopped is not known: start it again
        study.write_plan(plan_until(study.plan.trials, study.plan.budget))
    return study


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
        errors = [trial.error for trial in list_trials(study) if trial.error]
        raise InvalidInput(f"no trial could be trained: {errors[0] if errors else 'none began'}")
    _update(study, watcher, "training the winners")
    train_winners(study, winners, watcher.watch_run)
    result = build_result(study, winners, compare_winners(study, winners))
    write_text(study.path / "best.yaml", result.to_yaml())
    write_text(study.path / "results.json", json.dumps(result.to_dict(), indent=2) + "\n")
    study.store.write_index()
    return result


def _ask(study: StudyFolder, stack: ExitStack) -> tuple[TunedMethod, Any, dict[str, Any]] | None:
    """The next trial, of the method with the fewest; None if there shall be no more. The caller holds the study."""
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
