"""Build the table of `metrix label`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from metrix.messages import count
from metrix.retrieve.label_queue import Question

MOST = 50  # lines of a table; --json lists all


def build_questions_table(waiting: Sequence[Question], decided: int) -> Table:
    """Build a table of labels to look at."""
    more = f"the first {MOST} of {len(waiting):,}; --json lists all" if len(waiting) > MOST else None
    title = f"{count(len(waiting), 'label')} to look at, {decided:,} decided"
    table = Table(title=title, caption=more, caption_justify="left")
    for name in ("id", "label", "proposed", "why"):
        table.add_column(name, overflow="fold")
    for one in waiting[:MOST]:
        table.add_row(
            *(escape(text) for text in (one.id, one.label or "", one.proposed or "", f"{one.reason}: {one.said}"))
        )
    return table
