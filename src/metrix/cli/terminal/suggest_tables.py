"""Build the table of `metrix suggest`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from metrix.messages import count
from metrix.retrieve.suggest import Suggestions
from metrix.search import LABEL

MOST = 50  # lines of a table; --json and files list all


def build_suggestions_table(found: Suggestions) -> Table:
    """Build a table of what to label next."""
    number = len(found.suggestions)
    more = f"the first {MOST} of {number:,}; --output and --json list all" if number > MOST else None
    title = f"{count(number, 'image')} to label next, of {found.candidates:,}"
    table = Table(title=title, caption=more, caption_justify="left")
    table.add_column("", justify="right")
    for name in ("id", "why", "nearest labelled"):
        table.add_column(name, overflow="fold")
    for one in found.suggestions[:MOST]:
        nearest = ", ".join(str(near.get(LABEL) or near["id"]) for near in one.neighbours[:1])
        table.add_row(str(one.rank), *(escape(text) for text in (one.id, one.reason, nearest)))
    return table


def describe_suggestions(found: Suggestions) -> list[str]:
    """What they were compared with, and what was left out, in sentences."""
    said = [
        f"strategy {found.strategy}; compared with {count(found.labelled, 'labelled item')}; near-copies from "
        f"similarity {found.threshold:.4f}"
    ]
    if len(found.suggestions) < found.wanted:
        said.append(f"{found.wanted:,} were asked for: all others are near-copies of labelled or suggested ones")
    if found.copies:
        said.append(f"{count(found.copies, 'image')} left out, near-copies of labelled items")
    return said
