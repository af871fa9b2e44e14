"""What a reality check will train: methods are timed on each dataset, and as many trials are taken as fit.

All datasets and methods get the same number of trials, folds and seeds, so that a budget is divided by what they cost.
The plan is kept in the folder; the same command, or one without any request, continues it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from metrix.errors import InvalidInput, MetrixError
from metrix.experiments.cells import make_cell
from metrix.experiments.tuning.budget import GOOD_TRIALS, LEAST_TRIALS, MARGIN, MOST_TRIALS, CostModel, time_method
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.spaces import build_space
from metrix.experiments.tuning.starting import FEWER_FOLDS, FOLDS, SEEDS, choose_cheap
from metrix.experiments.tuning.study import check_folder
from metrix.files import lock, write_json
from metrix.messages import count, first_few
from metrix.reproduce.budget import parse_duration
from metrix.reproduce.reality.compared import CheckedData, choose_datasets, choose_methods
from metrix.reproduce.reality.plan import PLAN, CheckPlan, CheckRequest, PlannedData, build_costs, read_plan
from metrix.train.batches import Report, ignore_report
from metrix.train.interruption import Interrupted

TIMES = "times.json"
_OWN = {TIMES, "plan.lock", "calibration"}  # what planning leaves in a folder


def make_plan(request: CheckRequest, folder: Path, report: Report = ignore_report, keep: bool = True) -> CheckPlan:
    """The plan of a folder, or a new one, made after each method was trained for a few steps on each dataset.

    Args:
        request: what was asked for
        folder: of the reality check; times that were measured are kept there
        report: is called with the progress
        keep: write a new plan, so that the folder has it from now on

    Raises:
        InvalidInput: the request makes no sense, a method cannot be trained on a dataset, nothing can be concluded in
            the budget, or the folder has another plan
    """
    request.check()
    kept = read_plan(folder, request)
    if kept is not None:
        return kept
    if keep and request.budget is None and request.trials is None:
        raise InvalidInput("expected --budget TIME, such as 8h, or --trials N, or both, got neither")
    if folder.exists() and (not folder.is_dir() or not {file.name for file in folder.iterdir()} <= _OWN):
        raise InvalidInput(f"{folder} already exists and is no reality check; choose another --output")
    methods, datasets = choose_methods(request.methods), choose_datasets(request.data, request.flags)
    check_folder(folder)
    with lock(folder / "plan.lock"):
        kept = read_plan(folder, request)  # another process has made it meanwhile
        if kept is not None:
            return kept
        fixed = tuple(request.flags)
        times = _time_methods(datasets, methods, fixed, folder, request.folds or FOLDS, report)
        plan = _fit_plan(request, datasets, methods, fixed, times)
        if keep:
            write_json(folder / PLAN, plan.to_dict())
    return plan


def _time_methods(
    datasets: Sequence[CheckedData],
    methods: Sequence[TunedMethod],
    fixed: Sequence[str],
    folder: Path,
    folds: int,
    report: Report,
) -> list[dict[str, float]]:
    """The seconds of a run of each method on each dataset; those measured before by the same code are read."""
    file = folder / TIMES
    known: dict[str, float] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    found: list[dict[str, float]] = []
    warm = False
    for number, data in enumerate(datasets):
        found.append({})
        for n, method in enumerate(methods):
            report("timing the methods", number * len(methods) + n, len(datasets) * len(methods))
            try:
                build_space(method, data.base, {}, dict.fromkeys(fixed))
                key = make_cell(method.configure(data.base), data.study_data).key
                if key not in known:
                    known[key] = time_method(method, data.base, folds, folder, warm_up=not warm)
                    write_json(file, known)
                    warm = True
            except Interrupted:
                raise
            except MetrixError as error:
                raise InvalidInput(f"{method.name} cannot be trained on {data.name}: {error}") from error
            found[-1][method.name] = known[key]
    report("timing the methods", len(datasets) * len(methods), len(datasets) * len(methods))
    return found


def _fit_plan(
    request: CheckRequest,
    datasets: Sequence[CheckedData],
    methods: Sequence[TunedMethod],
    fixed: Sequence[str],
    times: Sequence[dict[str, float]],
) -> CheckPlan:
    """As many trials as fit; fewer folds and no cheap stages where those are few."""
    seeds, names = request.seeds or SEEDS, [method.name for method in methods]
    budget = None if request.budget is None else parse_duration(request.budget)
    settings = [(request.folds or FOLDS, choose_cheap(request.trials)), (request.folds or FEWER_FOLDS, 0.0)]
    chosen: tuple[list[CostModel], int] | None = None
    for folds, cheap in settings:
        costs = [
            build_costs(data.base, methods, fixed, seconds, folds, seeds, cheap)
            for data, seconds in zip(datasets, times, strict=True)
        ]
        trials = request.trials or (LEAST_TRIALS if budget is None else count_fitting_trials(budget, costs, names))
        chosen = costs, trials
        fits = budget is None or sum(cost.seconds(names, trials) for cost in costs) <= budget
        if fits and (request.trials is not None or trials >= GOOD_TRIALS):
            break
    assert chosen is not None
    costs, trials = chosen
    least = request.trials or LEAST_TRIALS
    needed = sum(cost.seconds(names, least) for cost in costs)
    if budget is not None and needed > budget:
        raise InvalidInput(
            f"--budget: expected at least {math.ceil(needed / 60)}m, in which {count(least, 'trial')} each of "
            f"{count(len(names), 'method')} ({first_few(names, 3)}) on {count(len(datasets), 'dataset')} and "
            f"{count(seeds, 'seed')} of each winner fit, got {budget / 60:.3g}m, in which nothing can be concluded; "
            "give more time, fewer methods (--method) or datasets (--data), or shorter training (--max-steps, --epochs)"
        )
    seconds = [cost.seconds(names, trials) for cost in costs]
    return CheckPlan(
        asked=request.to_dict(),
        datasets=tuple(
            PlannedData(
                data.name,
                data.base,
                data.study_data.fingerprint,
                dict(cost.run_seconds),
                own,
                None if budget is None else budget * own / sum(seconds),
            )
            for data, cost, own in zip(datasets, costs, seconds, strict=True)
        ),
        methods=tuple(methods),
        trials=trials,
        folds=costs[0].folds,
        seeds=seeds,
        cheap=costs[0].cheap,
        fixed=tuple(fixed),
    )


def count_fitting_trials(budget: float, costs: Sequence[CostModel], methods: Sequence[str]) -> int:
    """The trials of each method on each dataset that fit into so many seconds; 0 if not even the winners do."""
    each = MARGIN * sum(cost.trial_seconds(name) for cost in costs for name in methods)
    winners = MARGIN * sum(cost.winner_seconds(name) for cost in costs for name in methods)
    return max(0, min(MOST_TRIALS, math.floor((budget - winners) / max(1e-9, each))))
