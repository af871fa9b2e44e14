"""Build the tables of `metrix classify` and `metrix threshold --open-set`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from metrix.messages import count
from metrix.retrieve.classify import Classifier, Prediction

MOST = 50  # queries in a table; --json and --csv list all
UNKNOWN = "[yellow]unknown[/]"


def build_class_table(one: Prediction) -> Table:
    """Build a table of the classes that a query may be of."""
    answer = f"unknown, {_percent(1 - one.known)}" if one.unknown else f"{one.label}, {_percent(one.probability)}"
    table = Table(title=escape(f"{one.query}: {answer}"))
    table.add_column("class", overflow="fold")
    for name in ("probability", "votes", "centroid"):
        table.add_column(name, justify="right")
    for each in one.classes:
        figures = (_percent(each.probability), _percent(each.votes), f"{each.similarity:.4f}")
        table.add_row(escape(str(each.label)), *figures)
    table.add_row("[yellow]none of the index[/]", _percent(1 - one.known), "", "")
    if one.neighbours:
        nearest = one.neighbours[0]
        table.caption = escape(f"nearest: {nearest['id']} at similarity {nearest['similarity']:.4f}")
        table.caption_justify = "left"
    return table


def build_prediction_table(answers: Sequence[Prediction]) -> Table:
    """Build a table with a line for each query."""
    unknown = sum(one.unknown for one in answers)
    more = f"the first {MOST} of {len(answers):,}; --json and --csv list all" if len(answers) > MOST else None
    title = f"{len(answers):,} queries, {unknown:,} unknown"
    table = Table(title=title, caption=more, caption_justify="left")
    for name in ("query", "class"):
        table.add_column(name, overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("known", justify="right")
    table.add_column("most likely", overflow="fold")
    for one in answers[:MOST]:
        label = UNKNOWN if one.unknown else escape(str(one.label))
        best = "" if one.best is None else escape(str(one.best))
        table.add_row(
            escape(one.query), label, _percent(one.probability), _percent(one.known), best if one.unknown else ""
        )
    return table


def describe_decision(classifier: Classifier) -> str:
    """From which probability on a query is known, and where that comes from, in a sentence."""
    chosen = classifier.measured
    of = f"of {count(len(classifier.classes), 'class')}"
    if chosen is None or chosen.probability != classifier.threshold:
        how = "metrix threshold INDEX --open-set --false-accept 0.01 chooses it for a wanted share of mistakes"
        return f"unknown below a probability of {_percent(classifier.threshold)} to be {of}; {how}"
    passing, failing = describe_mistakes(chosen.false_accept), describe_mistakes(chosen.false_reject)
    return (
        f"unknown below a probability of {_percent(chosen.probability)} to be {of}: {passing} of unknown images pass, "
        f"{failing} of known ones do not"
    )


def describe_mistakes(share: float) -> str:
    """A share of mistakes as text."""
    return f"{100 * share:.2g} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
