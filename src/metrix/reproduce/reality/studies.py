"""A study of `metrix tune` for each dataset, one after the other, to the end of each.

plan.json, times.json       what is trained, and how long methods take
NAME/                       the study of a dataset, an ordinary one of `metrix tune`
NAME/outcome.json           what is kept of it; with it, the dataset is finished
index.html, results.json, runs.csv     the comparison

A finished study is read, an interrupted one continued. Another process that runs the same command with the same folder
works on the same studies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from metrix.errors import MetrixError
from metrix.experiments.tuning.running import StudyWatcher, work_on
from metrix.experiments.tuning.starting import create_study, plan_until, resume_study
from metrix.experiments.tuning.study import StudyFolder, StudyInterrupted
from metrix.files import lock
from metrix.messages import count, format_duration
from metrix.report.tune_page import write_tune_page
from metrix.reproduce.reality.outcome import DatasetOutcome, keep_outcome, read_outcome
from metrix.reproduce.reality.plan import CheckPlan, CheckRequest, PlannedData
from metrix.reproduce.reality.planning import make_plan
from metrix.train.batches import Report, ignore_report
from metrix.train.interruption import Interrupted


class CheckInterrupted(MetrixError):  # noqa: N818 - nothing went wrong
    """A signal ended a reality check; the same command continues it."""

    def __init__(self, exit_code: int, folder: Path) -> None:
        super().__init__(
            f"interrupted; nothing is lost: continue with metrix reproduce reality-check --output {folder}"
        )
        self.exit_code = exit_code


def plan_check(request: CheckRequest, folder: Path, report: Report = ignore_report, keep: bool = True) -> CheckPlan:
    """The plan of a folder, or a new one: see `make_plan`.

    Raises:
        CheckInterrupted: a signal ended it
    """
    try:
        return make_plan(request, folder, report, keep)
    except Interrupted as ended:
        raise CheckInterrupted(ended.exit_code, folder) from None


def run_studies(plan: CheckPlan, folder: Path, build_watcher: Callable[[], StudyWatcher]) -> list[DatasetOutcome]:
    """Finish the study of each dataset.

    Args:
        plan: what is trained
        folder: of the reality check
        build_watcher: called once for each study, whose progress the watcher is told

    Raises:
        CheckInterrupted: a signal ended it
    """
    found = []
    for number, data in enumerate(plan.datasets, 1):
        watcher = build_watcher()
        where = f"{data.name} ({number} of {count(len(plan.datasets), 'dataset')})"
        outcome = read_outcome(folder / data.name)
        if outcome is not None:
            watcher.note(f"{where}: was finished before")
        else:
            share = "" if data.share is None else f" of {format_duration(data.share)}"
            watcher.note(
                f"{where}: {count(plan.trials, 'trial')} of each method, about {format_duration(data.seconds)}{share}"
            )
            outcome = _finish_study(plan, data, folder, watcher)
        found.append(outcome)
    return found


def _finish_study(plan: CheckPlan, data: PlannedData, folder: Path, watcher: StudyWatcher) -> DatasetOutcome:
    place = folder / data.name
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(folder / "locks" / f"{data.name}.lock", wait=False))
                joins = False
            except BlockingIOError:
                watcher.note(f"another process works on {data.name}: this one helps")
                joins = True
            found = work_on(_open_study(plan, data, place, joins), watcher)
            write_tune_page(found)
            return keep_outcome(found)
    except (StudyInterrupted, Interrupted) as ended:  # between runs, or within one
        raise CheckInterrupted(ended.exit_code, folder) from None


def _open_study(plan: CheckPlan, data: PlannedData, place: Path, joins: bool) -> StudyFolder:
    """The study of a dataset: a new one; one to be joined; or one to be continued, in the time that was left."""
    with lock(place.parent / "locks" / f"{place.name}-creation.lock"):
        if not (place / "study.json").is_file():
            costs, until = plan.cost_of(data), plan_until(plan.trials, data.share)
            return create_study(StudyFolder(place), data.base, data.study_data, plan.methods, costs, until)
        if not joins:
            return resume_study(place, None, None)
        study = StudyFolder(place)
        study.check_data()
        return study
