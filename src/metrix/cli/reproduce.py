"""`metrix reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.flags import with_config_flags

if TYPE_CHECKING:
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.page import Reproduced

FOLDER = Path("runs/reproduce")
# What the rows of the tables differ in, and what has a flag of its own here.
FIXED = ("data", "loss", "mixup", "mixup_method", "pairs", "hard_negatives", "strength", "scheme", "seed")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("reproduce", rich_help_panel="Measure")(with_config_flags(reproduce, without=FIXED))


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="tables and figures, or all; none: list them", show_default=False)
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="NAME=PATH, repeated: cub, cars, sop, inshop or your own; glyphs by default"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="runs of each cell; 3, or 2 with --quick")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="in small: glyphs, a small network, 100 steps")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="cells to train side by side")] = 1,
    shard: Annotated[
        str | None, typer.Option(help="i/n: train only this share of the cells, for several machines")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of cells and report")] = FOLDER,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """The tables and figures of the paper again, on your data, with the paper's numbers beside them.

    Finished cells are reused, interrupted ones go on. Cells of several machines (--shard) are put together
    by copying their folders into one, and giving the command again without --shard. Settings are the paper's on
    its datasets, small ones on glyphs; the flags below change those of all cells.
    """
    from metrix.cli.terminal.grid import quiet_or_drawn
    from metrix.cli.terminal.progress import progress
    from metrix.reproduce import items as catalogue
    from metrix.reproduce import page
    from metrix.reproduce.cells import Store, parse_shard, share
    from metrix.reproduce.datasets import QUICK, QUICK_SEEDS, chosen
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.running import run_cells

    items = catalogue.chosen(names or ())
    part = (1, 1) if shard is None else parse_shard(shard)
    wanted_seeds = seeds if seeds is not None else QUICK_SEEDS if quick else 3
    grid = Grid(
        tuple(chosen(data or ())),
        tuple(range(wanted_seeds)),
        {**(QUICK if quick else {}), **flags},
        Store(output),
        quick,
    )
    grid.check()
    if not items:
        _list(grid, jobs, json_output)
        return
    wanted = [one for item in items for dataset in grid.datasets for one in item.wanted(grid, dataset)]
    cells = share(grid.every_cell(wanted), part)
    state = run_cells(cells, grid.store, jobs, quiet_or_drawn(quiet or json_output, grid.store, jobs))
    failed = {one.name: error for one, error in state.failed.values()}
    if shard is not None:
        _end_of_shard(output, part, len(cells), failed, json_output)
    else:
        with progress(quiet or json_output) as report:
            found = page.reproduced(items, grid, report)
        written = page.write(found, grid, _command(names or [], data or [], wanted_seeds, quick, flags))
        _show(found, written, failed, quiet, json_output)
    if failed:
        raise typer.Exit(1)


def _list(grid: Grid, jobs: int, json_output: bool) -> None:
    """What can be reproduced, what it needs and how long it takes here."""
    import json

    from rich.console import Console
    from rich.table import Table

    from metrix.cli.terminal.grid import duration
    from metrix.reproduce.listing import listed

    rows, source = listed(grid, jobs)
    if json_output:
        typer.echo(json.dumps({"items": [row.to_dict() for row in rows], "time_from": source}))
        return
    table = Table(title=f"Tables and figures of the paper, on {', '.join(data.title for data in grid.datasets)}")
    for name in ("name", "what", "in the paper"):
        table.add_column(name)
    for name in ("runs", "of these done", "time here"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.name, row.title, row.paper, str(row.cells), str(row.done), duration(row.seconds))
    console = Console()
    console.print(table)
    console.print(
        f"Runs that tables share are trained once. Times are for --jobs {jobs}, {source}.\n"
        "metrix reproduce NAME … or all; --quick for the whole paper in small; --data cars=PATH for your data."
    )


def _show(found: list[Reproduced], written: list[Path], failed: dict[str, str], quiet: bool, json_output: bool) -> None:
    import json

    from rich.console import Console

    from metrix.cli.terminal.page_tables import terminal_table

    if json_output:
        content = {
            "tables": [result.to_dict() for one in found for result in one.results],
            "failed": failed,
            "written": [str(path) for path in written],
        }
        typer.echo(json.dumps(content))
        return
    console, notes = Console(), Console(stderr=True, soft_wrap=True)
    for one in found if not quiet else ():
        for result in one.results:
            console.print(terminal_table(result.block()))
    for name, error in failed.items():
        notes.print(f"[red]failed[/] {name}: ", end="", highlight=False)
        notes.print(error, markup=False, highlight=False)
    for path in written:
        notes.print(f"written: [cyan]{path}[/]", highlight=False)


def _end_of_shard(folder: Path, part: tuple[int, int], cells: int, failed: dict[str, str], json_output: bool) -> None:
    import json

    from rich.console import Console

    if json_output:
        typer.echo(json.dumps({"shard": "/".join(map(str, part)), "cells": cells, "failed": failed}))
        return
    Console(stderr=True, soft_wrap=True).print(
        f"shard {part[0]} of {part[1]}: {cells - len(failed)} of {cells} cells are finished. Copy {folder / 'cells'} "
        "of all machines into one folder and give the command there without --shard.",
        highlight=False,
    )


def _command(names: list[str], data: list[str], seeds: int, quick: bool, flags: dict[str, Any]) -> str:
    import shlex

    words = ["metrix", "reproduce", *names, *(f"--data={one}" for one in data), f"--seeds={seeds}"]
    words += ["--quick"] if quick else []
    for key, value in flags.items():
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        words.append(f"--{key.replace('_', '-')}={text}")
    return shlex.join(words)
