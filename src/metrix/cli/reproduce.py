"""`metrix reproduce`: the tables and figures of the paper, trained again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.flags import with_config_flags

if TYPE_CHECKING:
    from metrix.experiments.cells import Cell
    from metrix.reproduce.budget import Plan
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.items import Item
    from metrix.reproduce.page import Reproduced

FOLDER = Path("runs/reproduce")
# Settings in which the rows of the tables differ, or that have a flag of their own here.
FIXED = ("data", "loss", "mixup", "mixup_method", "pairs", "hard_negatives", "strength", "scheme", "seed")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    command = with_config_flags(reproduce_command, without=FIXED)
    app.command("reproduce", rich_help_panel="Measure")(command)


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="tables and figures to reproduce, or all; without any, list them", show_default=False),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=PATH",
            help="dataset, may be repeated: cub, cars, sop, inshop or a name of your own; glyphs by default",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="runs of each method, with seeds 0, 1 …; 3 by default, 2 with --quick")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="small scale: 30 training classes, 100 steps")] = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="choose scale and seeds so that the runs take about this long: 8h, 90m, 2d"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs to train in parallel")] = 1,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="train only share I of N, to divide the work between machines")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the runs and the report")] = FOLDER,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show neither progress nor tables")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Reproduce tables and figures of the paper, with its numbers beside the measured ones.

    Finished runs are reused and interrupted ones resumed. To divide the work between machines, run the command with
    --shard on each, copy their "cells" folders into one and run it there without --shard. The paper's datasets are
    trained with the paper's settings, glyphs with small ones; the flags below change the settings of all runs.
    """
    from metrix.cli.terminal.grid import build_grid_watcher
    from metrix.cli.terminal.progress import show_progress
    from metrix.errors import check_share
    from metrix.experiments.cells import take_shard
    from metrix.extras import require_extra
    from metrix.reproduce.duration import read_times, write_times
    from metrix.reproduce.grid import build_grid
    from metrix.reproduce.items import cells_of_items, choose_items
    from metrix.reproduce.page import render_items, write_page
    from metrix.reproduce.running import run_cells

    items = choose_items(names or ())
    part = (1, 1) if shard is None else check_share("--shard", shard)
    quiet = quiet or json_output
    changes, scale = flags, ""
    if budget is not None:
        plan = _plan(budget, items, data or [], seeds, quick, flags, output, jobs, quiet)
        changes, seeds, scale = dict(plan.scale.changes), plan.seeds, plan.describe()
    grid = build_grid(data or (), seeds, changes, output, quick, scale)
    if not items:
        _print_items(grid, jobs, quiet, json_output)
        return
    require_extra("matplotlib")
    cells = take_shard(cells_of_items(items, grid), part)
    announced, expected = _announce(cells, grid, jobs, quiet)
    state = run_cells(cells, grid.store, jobs, build_grid_watcher(quiet, expected, jobs))
    write_times(output, announced, state)
    failed = {one.name: error for one, error in state.failed.values()}
    if shard is not None:
        _print_shard(output, part, len(cells), failed, json_output)
    else:
        with show_progress(quiet) as report:
            found = render_items(items, grid, report)
        count = None if budget is not None else len(grid.seeds)
        command = _command(names or [], data or [], count, quick, budget, flags)
        written = write_page(found, grid, command)
        _print_results(found, written, failed, read_times(output), quiet, json_output)
    if failed:
        raise typer.Exit(1)


def _announce(cells: list[Cell], grid: Grid, jobs: int, quiet: bool) -> tuple[float, dict[str, float]]:
    """Print how long the unfinished cells will take; return it in seconds, and that of each by its key."""
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.progress import show_progress
    from metrix.messages import count, format_duration
    from metrix.reproduce.duration import DurationEstimate

    left = [one for one in cells if grid.store.results(one.key) is None]
    with show_progress(quiet) as report:
        estimate = DurationEstimate(left, grid.store, jobs, report)
        expected = {one.key: estimate.seconds(one) for one in left}
        announced = estimate.total(left)
    if left and not quiet:
        Console(stderr=True, soft_wrap=True).print(
            f"{count(len(left), 'run')} to train: about {format_duration(announced)} with --jobs {jobs}, estimated "
            f"{estimate.source}; tables and figures come on top",
            highlight=False,
        )
    return announced, expected


def _print_items(grid: Grid, jobs: int, quiet: bool, json_output: bool) -> None:
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
        "Next: metrix reproduce NAME …, or all; --quick for a small scale; --data cars=PATH for your data."
    )


def _print_results(
    found: list[Reproduced],
    written: list[Path],
    failed: dict[str, str],
    times: dict[str, float] | None,
    quiet: bool,
    json_output: bool,
) -> None:
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


def _print_shard(folder: Path, part: tuple[int, int], cells: int, failed: dict[str, str], json_output: bool) -> None:
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


def _plan(
    budget: str,
    items: list[Item],
    data: list[str],
    seeds: int | None,
    quick: bool,
    flags: dict[str, Any],
    output: Path,
    jobs: int,
    quiet: bool,
) -> Plan:
    """Plan what fits into the budget, and print it."""
    from metrix.cli.terminal.console import Console
    from metrix.errors import InvalidInput
    from metrix.messages import format_duration
    from metrix.reproduce.budget import plan_budget

    if quick or seeds is not None:
        given = "--quick" if quick else "--seeds"
        raise InvalidInput(f"--budget with {given}: expected one of them; a budget chooses scale and seeds itself")
    if not items:
        raise InvalidInput("--budget: expected the names of tables and figures to reproduce, or all, got none")
    plan = plan_budget(budget, items, data, flags, output, jobs)
    if not quiet:
        Console(stderr=True, soft_wrap=True).print(
            f"budget {budget}: {plan.describe()}; about {format_duration(plan.seconds)} with --jobs {jobs}, estimated "
            f"{plan.source}",
            highlight=False,
        )
    return plan


def _command(
    names: list[str], data: list[str], seeds: int | None, quick: bool, budget: str | None, flags: dict[str, Any]
) -> str:
    """The command line that makes the same page again."""
    import shlex

    words = ["metrix", "reproduce", *names, *(f"--data={one}" for one in data)]
    words += [] if seeds is None else [f"--seeds={seeds}"]
    words += ["--quick"] if quick else []
    words += [] if budget is None else [f"--budget={budget}"]
    words += [_flag(key.replace("_", "-"), value) for key, value in flags.items()]
    return shlex.join(words)


def _flag(name: str, value: Any) -> str:
    """A flag as it is written on the command line.

    >>> _flag("ks", [1, 2]), _flag("hidden", []), _flag("follow-links", True), _flag("sync-bn", False)
    ('--ks=1,2', '--hidden=none', '--follow-links', '--no-sync-bn')
    """
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    text = ",".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
    return f"--{name}={text}"
