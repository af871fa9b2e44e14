"""A table of a page, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

if TYPE_CHECKING:
    from rich.table import Table as Drawn

    from metrix.report.page import Table


def terminal_table(table: Table) -> Drawn:
    """Columns with their groups as second lines of headings, the best value bold, footnotes below."""
    from rich.table import Table as Drawn

    from metrix.report.page import Value

    notes = "\n".join(escape(note) for note in table.footnotes)
    drawn = Drawn(title=escape(table.caption), caption=notes, caption_justify="left")
    for column in table.columns:
        heading = "\n".join(word for word in (column.group, column.name) if word)
        drawn.add_column(escape(heading), justify="left" if column.text else "right")
    best = table.best
    for n, row in enumerate(table.rows):
        if isinstance(row, str):
            drawn.add_section()
            drawn.add_row(f"[italic]{escape(row)}[/]")
            continue
        texts = [escape(cell.text if isinstance(cell, Value) else "" if cell is None else str(cell)) for cell in row]
        drawn.add_row(*(f"[bold]{text}[/]" if (n, c) in best else text for c, text in enumerate(texts)))
    return drawn
