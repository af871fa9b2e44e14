"""What a verb found, printed in one place: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from metrix.cli.terminal.console import Console
from metrix.cli.terminal.next_steps import print_next


@dataclass(frozen=True)
class Outcome:
    """What a verb found.

    Args:
        content: for scripts (`--json`): plain values.
        tables: for people.
        notes: sentences that belong to the results, below the tables.
        remarks: sentences about how they came about, such as what was skipped.
        written: files.
        next: commands that may follow, each with what it does.
    """

    content: Mapping[str, Any]
    tables: Sequence[Any] = ()
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()
    written: Sequence[Path] = ()
    next: Sequence[tuple[str, str]] = ()

    def print(self, as_json: bool) -> None:
        """Print it for scripts, or for people."""
        if as_json:
            typer.echo(json.dumps(self.content))
            return
        for table in self.tables:
            Console().print(_describe_empty(table) or table)
        for note in self.notes:
            Console(soft_wrap=True).print(note, markup=False, highlight=False)
        errors = Console(stderr=True, soft_wrap=True)
        for remark in self.remarks:
            errors.print(remark, markup=False, highlight=False)
        if self.next:
            print_next(*self.next)
        for path in self.written:
            errors.print(f"written: [cyan]{escape(str(path))}[/]", highlight=False)


def _describe_empty(table: Any) -> str:
    """The title and the caption of a table without rows, which has nothing else to show; "" for others."""
    if getattr(table, "row_count", 1):
        return ""
    return ": ".join(text for text in (table.title, table.caption) if text)
