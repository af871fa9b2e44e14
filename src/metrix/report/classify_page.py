"""A page of classified images: each with its class and probability, and the images that voted."""

from __future__ import annotations

from collections.abc import Sequence

from metrix.messages import count
from metrix.report.page import Block, Cell, Column, Gallery, Page, Query, Section, Table, Text, Value
from metrix.report.search_page import MOST, find_hit, find_label, find_query_picture
from metrix.retrieve.classify import Classifier, Prediction
from metrix.retrieve.queries import Queries
from metrix.search import LABEL


def compose_classify_page(
    classifier: Classifier, queries: Queries, answers: Sequence[Prediction], about: str = ""
) -> Page:
    """A gallery of queries with the images that voted, and a table of the answers."""
    index = classifier.index
    shown = []
    for n, one in enumerate(answers[:MOST]):
        label = find_label(index, queries, n)
        picture = find_query_picture(index, queries, n, label)
        hits = [find_hit(index, near["id"], near.get(LABEL), label, near["similarity"]) for near in one.neighbours]
        shown.append(Query(picture, {_answer(one): hits}))
    unknown = sum(one.unknown for one in answers)
    more = f"The first {MOST} of {len(answers):,}." if len(answers) > MOST else ""
    said = (
        f"An image is unknown below a probability of {100 * classifier.threshold:.1f} % to be of one of the "
        f"{count(len(classifier.classes), 'class')} of the index. Beside each image are those that voted."
    )
    blocks: list[Block] = [Text(said), Gallery(shown, more, "classified"), _tabulate(answers)]
    title = f"{count(len(answers), 'image')}, {unknown:,} unknown"
    return Page("Classes", [Section(title, blocks)], about)


def _answer(one: Prediction) -> str:
    if one.unknown:
        guess = "" if one.best is None else f" (most like {one.best})"
        return f"unknown, {100 * (1 - one.known):.1f} %{guess}"
    return f"{one.label}, {100 * one.probability:.1f} %"


def _tabulate(answers: Sequence[Prediction]) -> Table:
    names = ("query", "class", "most likely")
    columns = [Column(name, text=True) for name in names] + [Column("probability, %"), Column("known, %")]
    rows: list[list[Cell]] = [
        [
            one.query,
            "unknown" if one.unknown else str(one.label),
            str(one.best or ""),
            Value(100 * one.probability, digits=1),
            Value(100 * one.known, digits=1),
        ]
        for one in answers[:MOST]
    ]
    return Table(columns, rows, "Answers", (), "answers")
