"""Start a study, planned after a short calibration, or resume one."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, check_integer, unknown_choice
from metrix.experiments.cells import code_version
from metrix.experiments.tuning.budget import (
    GOOD_TRIALS,
    MOST_TRIALS,
    CostModel,
    Fit,
    describe_fit,
    fit_folds,
    time_method,
)
from metrix.experiments.tuning.methods import TunedMethod, list_usual_methods, parse_methods
from metrix.experiments.tuning.protocol import Plan, Protocol, StudyData
from metrix.experiments.tuning.running import StudyWatcher
from metrix.experiments.tuning.spaces import build_space, check_methods
from metrix.experiments.tuning.study import (
    JOURNAL,
    StudyFolder,
    check_folder,
    fingerprint_data,
    name_data,
    strip_password,
)
from metrix.experiments.tuning.trials import METRICS
from metrix.train.config import Config
from metrix.train.data_place import with_absolute_paths

FOLDS, FEWER_FOLDS, SEEDS = 4, 2, 3  # fewer folds, where a budget is small
CHEAP = 1 / 3


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
    began = time.time()
    request.check()
    base = with_absolute_paths(request.base)
    study = StudyFolder(folder, request.storage)
    study.check_new()
    chosen = parse_methods(request.methods)
    data = StudyData(name_data(base), fingerprint_data(base))
    check_folder(folder)
    if request.storage not in (None, JOURNAL):
        study.open_storage(request.storage)  # now, not after the calibration
    methods = chosen or list_usual_methods(base)
    check_methods(request.changes or {}, [one.name for one in methods])
    spaces = {one.name: build_space(one, base, request.changes or {}, request.fixed or {}) for one in methods}
    cheap = choose_cheap(request.trials) if request.cheap else 0.0
    costs, fit = _fit(request, base, methods, spaces, cheap, folder, watcher, bool(chosen))
    watcher.note(f"plan: {describe_fit(fit, costs, request.budget)}")
    plan = plan_until(request.trials, request.budget, began)
    return create_study(
        study, base, data, [one for one in methods if one.name in fit.methods], costs, plan, request.metric
    )


def create_study(
    study: StudyFolder,
    base: Config,
    data: StudyData,
    methods: Sequence[TunedMethod],
    costs: CostModel,
    plan: Plan,
    metric: str = METRICS[0],
) -> StudyFolder:
    """Write a new study of some methods, whose spaces, folds and seeds are those that its costs were calculated for."""
    names = [method.name for method in methods]
    protocol = Protocol(
        base=base,
        methods=tuple(methods),
        spaces={name: costs.spaces[name] for name in names},
        metric=metric,
        folds=costs.folds,
        seeds=costs.seeds,
        cheap=costs.cheap,
        data=data,
        run_seconds={name: costs.run_seconds[name] for name in names},
        code=code_version(),
        storage=strip_password(study.asked_storage),
        prefix="" if study.asked_storage is None else f"{study.path.name}-{secrets.token_hex(4)}: ",
    )
    study.create(protocol, plan)
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
        seconds[method.name] = time_method(method, base, folds, folder, number == 0, spaces[method.name])
        full = request.budget is not None and costs.seconds(list(seconds), GOOD_TRIALS) > request.budget
        if full and not chosen and len(seconds) >= 2:
            break
    watcher.report("calibrating", limit, limit)
    names = list(seconds)
    if request.budget is None:
        assert request.trials is not None
        return costs, Fit(tuple(names), request.trials, costs.seconds(names, request.trials))
    fewer = FEWER_FOLDS if request.folds is None else request.folds
    return fit_folds(request.budget, costs, names, chosen, fewer, request.trials or MOST_TRIALS)


def choose_cheap(trials: int | None) -> float:
    """The share of its length that a trial is first trained for; 0 for few trials, where that would cost more.

    >>> choose_cheap(None) > 0, choose_cheap(5)
    (True, 0.0)
    """
    return 0.0 if trials is not None and trials < GOOD_TRIALS else CHEAP


def plan_until(trials: int | None, budget: float | None, since: float | None = None) -> Plan:
    """The plan of a search that ends after so many trials of each method, or so many seconds since a time, or now."""
    now = time.time()
    return Plan(trials, None if budget is None else (since or now) + budget, budget, now)


def resume_study(folder: Path, trials: int | None, budget: float | None, storage: str | None = None) -> StudyFolder:
    """A study to continue: with what was planned, or for more trials of each method, or more time.

    The planned time does not pass while no process works on the study.
    """
    study = StudyFolder(folder, storage)
    study.check_data()
    with study.held():
        plan = study.plan
        if trials is not None or budget is not None:
            done = min(study.count_trials().values())
            study.write_plan(plan_until(None if trials is None else done + trials, budget))
        elif plan.deadline is not None and plan.seen is not None:
            paused = time.time() - plan.seen
            study.write_plan(dataclasses.replace(plan, deadline=plan.deadline + paused, seen=time.time()))
    return study
