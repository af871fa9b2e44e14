"""A page of the images to label next: each with why it was chosen, and the labelled images that are nearest."""

from __future__ import annotations

from metrix.messages import count
from metrix.report.page import Block, Cell, Column, Gallery, Page, Query, Section, Table, Text
from metrix.report.search_page import MOST, find_hit, find_picture
from metrix.retrieve.suggest import Suggestions
from metrix.search import LABEL, Index


def compose_suggest_page(index: Index, found: Suggestions, about: str = "") -> Page:
    """A gallery of suggestions with the labelled images that are nearest, and a table of all."""
    shown = []
    for one in found.suggestions[:MOST]:
        hits = [find_hit(index, near["id"], near.get(LABEL), None, near["similarity"]) for near in one.neighbours]
        shown.append(Query(find_picture(found.pool, one.id, None), {f"{one.rank}. {one.reason}": hits}))
    said = (
        f"Chosen of {count(found.candidates, 'unlabelled image')} by the strategy {found.strategy}, given "
        f"{count(found.labelled, 'labelled item')}. No two have a similarity of {found.threshold:.4f} or more, "
        "nor has one of them with a labelled image. Beside each are the labelled images that are nearest."
    )
    more = f"The first {MOST} of {len(found.suggestions):,}." if len(found.suggestions) > MOST else ""
    blocks: list[Block] = [Text(said)]
    blocks += [Gallery(shown, more, "suggested"), _tabulate(found)] if shown else [Text("None were found.")]
    return Page("Label next", [Section(count(len(found.suggestions), "image"), blocks)], about)


def _tabulate(found: Suggestions) -> Table:
    columns = [Column(""), Column("id", text=True), Column("why", text=True)]
    rows: list[list[Cell]] = [[one.rank, one.id, one.reason] for one in found.suggestions[:MOST]]
    return Table(columns, rows, "Suggestions", (), "suggestions")
