"""Build the tables of single classes that `metrix evaluate` prints."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from metrix.evaluate.metrics import metric_name
from metrix.messages import count, make_printable
from metrix.runs.class_table import list_measures, summarise_classes
from metrix.runs.evaluation import Evaluation

SHOWN = 5  # lines of the worst classes, of the best classes and of the confused pairs; files have more


def build_class_tables(result: Evaluation) -> list[Table]:
    """Build a table of the worst and the best classes, and one of the pairs that are confused most, if any are."""
    found = result.retrieval
    summary = summarise_classes(found, SHOWN)
    names = list_measures(found)
    whole = len(summary.worst) + len(summary.best) == summary.classes
    caption = "" if whole else "--per-class FILE.csv lists all classes"
    classes = Table(title=_title(summary.classes, whole), caption=caption or None, caption_justify="left")
    classes.add_column("class", overflow="fold")
    for heading in (result.examples, *map(metric_name, names)):
        classes.add_column(heading, justify="right")
    classes.add_column("most confused with", overflow="fold")
    for rows in (summary.worst, list(reversed(summary.best))):
        for row in rows:
            shares = (f"{100 * row.measures[name]:.1f}" for name in names)
            other = (
                "-" if row.confused_with is None else f"{_show(row.confused_with)} ({row.confused} of {row.queries})"
            )
            classes.add_row(_show(row.label), f"{row.images:,}", *shares, other)
        classes.add_section()
    if not summary.confused:
        return [classes]
    pairs = Table(
        title="Classes that are confused most",
        caption=f"another class is found first by {summary.wrong:,} of {count(found.queries, 'query')}",
        caption_justify="left",
    )
    for heading in ("class", "finds first"):
        pairs.add_column(heading, overflow="fold")
    for heading in ("queries", "the reverse"):
        pairs.add_column(heading, justify="right")
    for pair in summary.confused:
        pairs.add_row(_show(pair.label), _show(pair.other), f"{pair.queries:,}", f"{pair.reverse:,}")
    return [classes, pairs]


def _title(classes: int, whole: bool) -> str:
    if whole:
        return "The only class" if classes == 1 else f"All {classes:,} classes, worst first"
    return f"The worst and the best of {classes:,} classes"


def _show(label: object) -> str:
    return escape(make_printable(str(label)))
