"""Classes: the worst and the best of each run, and those that are confused most."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.evaluate.metrics import metric_name
from metrix.messages import count
from metrix.report.figures.confusion import draw_confusion
from metrix.report.page import Block, Cell, Column, Section, SideBySide, Table, Text, Value
from metrix.report.page.escaping import slugify
from metrix.report.reported_runs import MeasuredRun, ReportedRun, measured_runs
from metrix.report.sections import name_missing
from metrix.runs.class_table import SHOWN, ClassSummary, list_measures, summarise_classes

DRAWN_AT_MOST = 30  # classes of a confusion matrix
RUNS_AT_MOST = 4  # with tables of their own
SHOWN_OF_SEVERAL = 6  # of the worst, of the best and of the confused classes, if there are several runs


def build_classes_section(runs: Sequence[ReportedRun]) -> Section:
    """Tables of single classes and of confused pairs for each run, and a confusion matrix if there are few classes."""
    blocks: list[Block] = []
    shown = measured_runs(runs)
    for run in shown[:RUNS_AT_MOST]:
        summary = summarise_classes(run.retrieval, SHOWN if len(shown) == 1 else SHOWN_OF_SEVERAL)
        beside: list[Block] = [_build_classes(run, summary, len(shown) > 1)]
        beside += [_build_pairs(run, summary, len(shown) > 1)] if summary.confused else []
        confusion = run.retrieval.confusion
        if confusion is not None and len(confusion.names) <= DRAWN_AT_MOST:
            name = f"confusion-{slugify(run.name)}"
            caption = "Per cent of the queries of each class (rows) whose nearest neighbour is of each class (columns)."
            beside.append(draw_confusion(*confusion.matrix(), name=name, title=run.name, caption=caption))
        blocks.append(SideBySide(beside))
    if len(shown) > RUNS_AT_MOST:
        blocks.append(Text(f"Shown for the first {RUNS_AT_MOST} of {len(shown)} runs.", "note"))
    if shown:
        about = (
            "How each class fares as a query, and which class is found first where it is not its own. Of classes with "
            "few queries, one or two wrong queries make the worst."
        )
        blocks.insert(0, Text(about))
    return Section("Classes", [*blocks, *name_missing(runs)])


def _build_classes(run: MeasuredRun, summary: ClassSummary, several: bool) -> Table:
    measures = list_measures(run.retrieval)
    columns = [Column("class"), Column(run.evaluation.examples), *(Column(metric_name(key)) for key in measures)]
    columns += [Column("most confused with", text=True)]
    rows: list[list[Cell] | str] = []
    whole = len(summary.worst) + len(summary.best) == summary.classes
    for heading, listed in (("worst", summary.worst), ("best", summary.best[::-1] if whole else summary.best)):
        if listed and not whole:
            rows.append(heading)
        for one in listed:
            shares = (Value(100 * one.measures[key], digits=1) for key in measures)
            number = f"({one.confused}\u00a0of\u00a0{one.queries})"
            other = "–" if one.confused_with is None else f"{one.confused_with} {number}"
            rows.append([str(one.label), one.images, *shares, other])
    shown = "All" if whole else f"The {len(summary.worst)} worst and the {len(summary.best)} best of"
    caption = f"{shown} {count(summary.classes, 'class')}{', worst first' if whole else ''}, %"
    caption += f": {run.name}" if several else ""
    notes = ["In brackets: how many of its queries find that class first."] if summary.wrong else []
    notes += [] if whole else ["metrix evaluate RUN --per-class FILE.csv lists all classes."]
    return Table(columns, rows, caption, notes, f"classes-{slugify(run.name)}")


def _build_pairs(run: MeasuredRun, summary: ClassSummary, several: bool) -> Table:
    columns = [Column("class"), Column("finds first", text=True), Column("queries"), Column("the reverse")]
    rows: list[list[Cell]] = [
        [str(pair.label), str(pair.other), pair.queries, pair.reverse] for pair in summary.confused
    ]
    wrong = f"Another class is found first by {summary.wrong:,} of {count(run.retrieval.queries, 'query')}."
    caption = "Classes that are confused most" + (f": {run.name}" if several else "")
    return Table(columns, rows, caption, [wrong], f"confused-{slugify(run.name)}")
