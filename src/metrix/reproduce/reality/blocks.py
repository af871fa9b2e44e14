"""The tables and figures of a reality check."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence

from metrix.messages import count
from metrix.report.figures.method_ranks import draw_critical_difference, draw_recall_intervals
from metrix.report.page import Block, Cell, Column, Figure, Table, Text, Value
from metrix.reproduce.reality.answer import VERDICTS
from metrix.reproduce.reality.outcome import FIT, MethodOutcome
from metrix.reproduce.reality.summary import CheckResult, OverDatasets

UNTRAINED = "untrained"


def build_main_table(found: CheckResult) -> Table:
    """Recall@1 of each method on each dataset, with its rank there; the best mean rank first."""
    ranks = found.ranks
    means = {} if ranks is None else ranks.means
    names = sorted([method.name for method in found.methods], key=lambda name: means.get(name, math.inf))
    columns = [Column("method", text=True)]
    for one in found.outcomes:
        columns += [Column("Recall@1 %", one.name), Column("rank", one.name)]
    columns += [Column("mean rank")] if len(found.outcomes) > 1 else []
    rows: list[list[Cell]] = []
    for name in names:
        row: list[Cell] = [name]
        for number, outcome in enumerate(found.outcomes):
            own = outcome.find(name)
            row.append(None if own is None else Value(own.recall, interval=own.interval, digits=1))
            known = ranks is not None and name in ranks.methods
            row.append(Value(ranks.ranks[number, ranks.methods.index(name)], digits=1) if known and ranks else None)
        if len(found.outcomes) > 1:
            interval = ranks.intervals[name] if ranks and found.generalises and name in means else None
            row.append(Value(means[name], interval=interval) if name in means else None)
        rows.append(row)
    last: list[Cell] = [UNTRAINED]
    for outcome in found.outcomes:
        last += [Value(outcome.untrained, digits=1), None]
    rows.append([*last, None] if len(found.outcomes) > 1 else last)
    sizes = ", ".join(
        f"{one.name} {count(one.classes, 'class')} ({count(one.queries, 'query')})" for one in found.outcomes
    )
    notes = [
        f"Recall@1 on the test classes: {sizes}; means over {count(found.seeds, 'seed')}. Intervals are over another "
        "draw of test classes, 95 % for all comparisons of a dataset together (Bonferroni). Rank 1 is the best; ties "
        "share their mean."
    ]
    if found.generalises:
        notes.append("Intervals of mean ranks are over another draw of datasets (bootstrap, 95 %).")
    return Table(columns, rows, "Methods with equal tuning, on classes never seen in training", notes, "methods")


def draw_recalls(found: CheckResult) -> Figure:
    """Recall@1 with intervals over classes, a panel for each dataset."""
    panels = {
        outcome.name: {one.method: (one.recall, *one.interval) for one in outcome.methods} for outcome in found.outcomes
    }
    untrained = {outcome.name: outcome.untrained for outcome in found.outcomes}
    return draw_recall_intervals(panels, untrained, [method.name for method in found.methods])


def compose_ranks(found: CheckResult) -> list[Block]:
    """The critical-difference picture and Friedman's test; why there is none with too few datasets."""
    ranks = found.ranks
    if ranks is None or not found.generalises:
        return [
            Text(
                "There is no picture of mean ranks: with fewer than three different datasets they say nothing about "
                "others. Intervals over classes are in the tables above and below.",
                "missing",
            )
        ]
    test = ranks.friedman
    ends = f"F = {test.f:.3g}" if math.isfinite(test.f) else "all datasets rank alike"
    text = (
        f"Friedman's test, corrected for ties: χ² = {test.chi_square:.3g}, {ends} (Iman and Davenport), p = "
        f"{test.p_value:.2g} by permutations of ranks. Below 0.05, mean ranks differ by more than chance; which ones "
        "do is what the critical difference says."
    )
    picture = draw_critical_difference(ranks.means, ranks.critical_difference, ranks.groups, found.different_data)
    return [Text(text), picture]


def build_gain_table(found: CheckResult, groups: Sequence[OverDatasets], caption: str, name: str) -> Table:
    """Differences to another method on each dataset, with a verdict, and their mean."""
    columns = [Column("method", text=True), Column("against", text=True)]
    for outcome in found.outcomes:
        columns += [Column("points", outcome.name), Column("verdict", outcome.name, text=True)]
    columns += [Column("mean over datasets")] if len(found.outcomes) > 1 else []
    rows: list[list[Cell]] = []
    for one in groups:
        row: list[Cell] = [one.name, one.against]
        for outcome in found.outcomes:
            contrast = one.contrasts.get(outcome.name)
            if contrast is None:
                row += [None, "not measured"]
                continue
            margin = "" if contrast.seed_margin is None else f"seeds ± {contrast.seed_margin:.1f}"
            interval = (contrast.low, contrast.high)
            row.append(Value(contrast.difference, interval=interval, digits=1, sign=True, below=margin))
            row.append(VERDICTS[contrast.verdict])
        if len(found.outcomes) > 1:
            around = None if one.margin is None else (one.mean - one.margin, one.mean + one.margin)
            row.append(Value(one.mean, interval=around, digits=1, sign=True))
        rows.append(row)
    corrections = ", ".join(f"{one.comparisons} on {one.name}" for one in found.outcomes)
    notes = [
        "Points of Recall@1 on the test classes, paired query by query. Intervals are over another draw of test "
        f"classes, corrected for the number of comparisons of the dataset ({corrections}). A difference helps or "
        "does harm if this interval and the 95 % interval over seeds exclude zero."
    ]
    if len(found.outcomes) > 1 and any(one.margin is not None for one in groups):
        notes.append("The interval of the mean is over datasets (Student's t, 95 %).")
    return Table(columns, rows, caption, notes, name)


def build_tuning_table(found: CheckResult) -> Table:
    """The usual settings against the best ones, on the folds."""

    def show(own: MethodOutcome) -> list[Cell]:
        usual = statistics.fmean(own.usual_folds) if own.usual_folds else None
        return [
            None if usual is None else Value(usual, digits=1),
            Value(statistics.fmean(own.folds), digits=1),
            None if own.tuning_gain is None else Value(own.tuning_gain, digits=1, sign=True),
        ]

    note = (
        f"Recall@1 % on {count(found.folds, 'fold')} of the training classes: the settings that the search began with, "
        "the best of all trials, and the difference in points. The best are optimistic, because they were chosen by "
        "these numbers."
    )
    return _table_by_method(found, ("usual", "tuned", "gain"), show, "What tuning gains", note, "tuning")


def build_cost_table(found: CheckResult) -> Table:
    """Seconds of a run with the best settings, and what the search took."""

    def show(own: MethodOutcome) -> list[Cell]:
        run, search = Value(own.run_seconds, digits=1), Value(own.trial_seconds, digits=0)
        return [run, own.trials, own.stopped, own.failed, search]

    note = (
        "Seconds of a run of the best settings on all training classes, the mean over seeds; length is a setting that "
        "is searched. Trials of the search, those that fell behind and were stopped, those that could not be trained, "
        "and the seconds of all. Times are of this machine, with whatever else it did."
    )
    columns = ("seconds a run", "trials", "stopped", "failed", "seconds of all")
    return _table_by_method(found, columns, show, "What each method costs", note, "cost")


def build_fit_table(found: CheckResult) -> Table:
    """How far the training classes are fitted, beside unseen classes."""

    def show(own: MethodOutcome) -> list[Cell]:
        values = [own.mean_fit(key) for key in FIT]
        return [None if value is None else Value(value, digits=1) for value in values]

    note = (
        "MAP@R % within training images beside that within as many images of as many unseen classes, and the gap in "
        "points; means over seeds."
    )
    columns = ("training", "unseen", "gap")
    return _table_by_method(found, columns, show, "How well the training classes are fitted", note, "fit")


def _table_by_method(
    found: CheckResult,
    names: Sequence[str],
    show: Callable[[MethodOutcome], list[Cell]],
    caption: str,
    note: str,
    name: str,
) -> Table:
    """A row for each method with the same columns for each dataset; empty where a method has no result."""
    columns = [Column("method", text=True)]
    columns += [Column(one, outcome.name) for outcome in found.outcomes for one in names]
    rows: list[list[Cell]] = []
    for method in found.methods:
        row: list[Cell] = [method.name]
        for outcome in found.outcomes:
            own = outcome.find(method.name)
            row += [None] * len(names) if own is None else show(own)
        rows.append(row)
    return Table(columns, rows, caption, [note], name)


RUN_COLUMNS = ("dataset", "method", "loss", "mixup", "seed", "recall@1", "seconds", *FIT, "settings", "run")


def tabulate_runs(found: CheckResult) -> list[list[object]]:
    """All final runs, a row each, the header first; per cent, seconds, and settings as JSON."""
    lines: list[list[object]] = [list(RUN_COLUMNS)]
    for outcome in found.outcomes:
        for method in found.methods:
            own = outcome.find(method.name)
            if own is None:
                continue
            settings = json.dumps(own.settings, sort_keys=True)
            for run in own.runs:
                fit = [run.fit.get(key) for key in FIT]
                names = [outcome.name, method.name, method.loss, method.mixing]
                lines.append([*names, run.seed, run.recall, run.seconds, *fit, settings, run.folder])
    return lines


def build_run_table(found: CheckResult) -> Table:
    """All final runs."""
    digits = {"recall@1": 1, "seconds": 1, **dict.fromkeys(FIT, 1)}
    header, *lines = tabulate_runs(found)
    shown = [n for n, name in enumerate(header) if name not in ("loss", "mixup")]
    columns = [Column(str(header[n]), text=header[n] in ("method", "settings", "run")) for n in shown]
    rows: list[list[Cell]] = []
    for line in lines:
        cells: list[Cell] = []
        for n in shown:
            value = line[n]
            number = isinstance(value, float)
            cells.append(
                Value(float(str(value)), digits=digits[str(header[n])])
                if number
                else None
                if value is None
                else str(value)
            )
        rows.append(cells)
    return Table(columns, rows, "", [], "runs")
