"""Print what can be reproduced, and what was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.page import Reproduced


def print_items(grid: Grid, jobs: int, quiet: bool, json_output: bool) -> None:
    """Print what can be reproduced, what it needs and how long it takes on this machine."""
    import json

    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.progress import show_progress
    from metrix.messages import format_duration
    from metrix.reproduce.listing import list_items

    with show_progress(quiet) as report:
        rows, source = list_items(grid, jobs, report)
    if json_output:
        typer.echo(json.dumps({"items": [row.to_dict() for row in rows], "time_from": source}))
        return
    table = Table(title=f"Tables and figures of the paper, on {', '.join(data.title for data in grid.datasets)}")
    for name in ("name", "content", "dataset in the paper"):
        table.add_column(name)
    for name in ("runs", "finished", "time left"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.name, row.title, row.paper, str(row.cells), str(row.done), format_duration(row.seconds))
    console = Console()
    console.print(table)
    console.print(
        f"Runs shared by several tables are trained once. Times are estimated for --jobs {jobs}, {source}.\n"
        "Next: metrix reproduce NAME …, or all; --quick for a small scale; --data cars=PATH for your data. metrix "
        "reproduce reality-check --list: what losses and mixup are worth when tuned equally."
    )


def print_results(
    found: list[Reproduced],
    written: list[Path],
    failed: dict[str, str],
    times: dict[str, float] | None,
    quiet: bool,
    json_output: bool,
) -> None:
    """Print the tables, what failed, and the files that were written."""
    import json

    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.tables import build_page_tables
    from metrix.reproduce.duration import describe_times

    if json_output:
        content = {
            "tables": [table.to_dict() for one in found for table in one.tables],
            "failed": failed,
            "seconds": times,
            "written": [str(path) for path in written],
        }
        typer.echo(json.dumps(content))
        return
    console, notes = Console(), Console(stderr=True, soft_wrap=True)
    for one in found if not quiet else ():
        for table in one.tables:
            for part in build_page_tables(table.to_block(), console.width):
                console.print(part)
    for name, error in failed.items():
        notes.print(f"[red]failed[/] {name}: ", end="", highlight=False)
        notes.print(error, markup=False, highlight=False)
    if times is not None and not quiet:
        notes.print(describe_times(times), highlight=False)
    for path in written:
        notes.print(f"written: [cyan]{escape(str(path))}[/]", highlight=False)


def print_shard(folder: Path, part: tuple[int, int], cells: int, failed: dict[str, str], json_output: bool) -> None:
    """Print how many cells of a share are finished, and how to put the shares together."""
    import json

    from rich.markup import escape

    from metrix.cli.terminal.console import Console

    if json_output:
        typer.echo(json.dumps({"shard": "/".join(map(str, part)), "cells": cells, "failed": failed}))
        return
    Console(stderr=True, soft_wrap=True).print(
        f"shard {part[0]} of {part[1]}: {cells - len(failed)} of {cells} cells are finished. Copy "
        f"{escape(str(folder / 'cells'))} of all machines into one folder and run the command there without --shard.",
        highlight=False,
    )
