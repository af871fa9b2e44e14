"""`metrix reproduce`: the tables and figures of the paper, trained again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli import reality_check
from metrix.cli.flags import NOT_FLAGS, with_config_flags

if TYPE_CHECKING:
    from metrix.experiments.cells import Cell
    from metrix.reproduce.budget import Plan
    from metrix.reproduce.grid import Grid
    from metrix.reproduce.items import Item

FOLDER = Path("runs/reproduce")
CHECK_PANEL = "Options of reality-check"
# Settings in which the rows of the tables differ, or that have a flag of their own here.
FIXED = (*NOT_FLAGS, "loss", "mixup", "mixup_method", "pairs", "hard_negatives", "strength", "scheme", "seed")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    command = with_config_flags(reproduce_command, without=FIXED)
    app.command("reproduce", rich_help_panel="Measure")(command)


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="tables and figures to reproduce, or all; or reality-check; without any, list them", show_default=False
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=PATH",
            help="dataset, may be repeated: cub, cars, sop, inshop or a name of your own; glyphs by default. For the "
            "reality check, PATH may be a YAML file of settings that names its data",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="runs of each method, with seeds 0, 1 …; 3 by default, 2 with --quick"),
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
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="LOSS[+MIXUP]",
            help="what to compare, may be repeated, as for metrix tune; by default seven losses without and with "
            "feature mixup, and the other mixing methods",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="trials of each method on each dataset, instead of or within a budget",
            show_default=False,
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="folds of the training classes; by default 4, or 2 in a small budget",
            show_default=False,
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None,
    dry: Annotated[
        bool,
        typer.Option("--list", help="only say what would be trained, and how long", rich_help_panel=CHECK_PANEL),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="folder of the runs and the report; runs/reproduce or runs/reality-check by default",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show neither progress nor tables")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Reproduce tables and figures of the paper, or check what losses and mixup are worth when tuned equally.

    Tables and figures have the paper's numbers beside the measured ones. Finished runs are reused and interrupted ones
    resumed. To divide the work between machines, run the command with --shard on each, copy their "cells" folders into
    one and run it there without --shard. The paper's datasets are trained with the paper's settings, glyphs with small
    ones; the flags below change the settings of all runs.

    metrix reproduce reality-check --budget 8h tunes every method with equal trials on folds of each dataset, measures
    the winners on the test classes once, and ranks them. The same command continues it, or helps in another process.

    Examples:
        metrix reproduce
        metrix reproduce all --quick
        metrix reproduce reality-check --budget 8h
    """
    from metrix.cli.terminal.grid import build_grid_watcher
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.reproduction import print_items, print_results, print_shard
    from metrix.errors import InvalidInput, check_share
    from metrix.experiments.cells import take_shard
    from metrix.extras import require_extra
    from metrix.reproduce.duration import read_times, write_times
    from metrix.reproduce.grid import build_grid
    from metrix.reproduce.items import cells_of_items, choose_items
    from metrix.reproduce.page import render_items, write_page
    from metrix.reproduce.reality.plan import CheckRequest
    from metrix.reproduce.running import run_cells

    if reality_check.NAME in (names or ()):
        given = {"--quick": quick, "--jobs": jobs > 1, "--shard": shard}
        reality_check.refuse(names or [], [flag for flag, value in given.items() if value])
        request = CheckRequest(tuple(data or ()), tuple(method or ()), budget, trials, folds, seeds, flags)
        reality_check.run_check(request, output or reality_check.FOLDER, dry, quiet, json_output)
        return
    only = {"--method": method, "--trials": trials, "--folds": folds, "--list": dry}
    if any(only.values()):
        raise InvalidInput(
            f"{', '.join(flag for flag, value in only.items() if value)}: expected with reality-check only; give "
            f"metrix reproduce {reality_check.NAME}, or leave it out"
        )
    output = output or FOLDER
    items = choose_items(names or (), also=(reality_check.NAME,))
    part = (1, 1) if shard is None else check_share("--shard", shard)
    quiet = quiet or json_output
    changes, scale = flags, ""
    if budget is not None:
        plan = _plan(budget, items, data or [], seeds, quick, flags, output, jobs, quiet)
        changes, seeds, scale = dict(plan.scale.changes), plan.seeds, plan.describe()
    grid = build_grid(data or (), seeds, changes, output, quick, scale)
    if not items:
        print_items(grid, jobs, quiet, json_output)
        return
    require_extra("matplotlib")
    cells = take_shard(cells_of_items(items, grid), part)
    announced, expected = _announce(cells, grid, jobs, quiet)
    state = run_cells(cells, grid.store, jobs, build_grid_watcher(quiet, expected, jobs))
    write_times(output, announced, state)
    failed = {one.name: error for one, error in state.failed.values()}
    if shard is not None:
        print_shard(output, part, len(cells), failed, json_output)
    else:
        with show_progress(quiet) as report:
            found = render_items(items, grid, report)
        count = None if budget is not None else len(grid.seeds)
        command = _command(names or [], data or [], count, quick, budget, flags)
        written = write_page(found, grid, command)
        print_results(found, written, failed, read_times(output), quiet, json_output)
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
