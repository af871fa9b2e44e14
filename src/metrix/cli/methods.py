"""`metrix methods`: everything that can be trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrix.cli.device import with_device_flag

if TYPE_CHECKING:
    from metrix.experiments.all_methods import AllMethodsResult
    from metrix.experiments.methods import ListedMethod


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("methods", rich_help_panel="Train")(with_device_flag(methods_command))


def methods_command(
    train: Annotated[bool, typer.Option("--train", help="train each of them at a small scale, and compare")] = False,
    data: Annotated[str | None, typer.Option(help="with --train: the dataset; glyphs by default")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="with --train: steps of each run", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="with --train: runs of each; 1 by default", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="with --train: folder of the runs; runs/methods by default")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress, only the table")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the list, or the results, as JSON")] = False,
) -> None:
    """List all losses, mixing methods, mixup types, mixing pairs, poolings and schemes, and what each goes with.

    With --train, each of them is trained at a small scale on the same data and compared with nearest neighbours in
    pixels. An interrupted series resumes where it stopped; a finished one is only printed.
    """
    import json

    from metrix.errors import InvalidInput

    given: dict[str, Any] = {"data": data, "steps": steps, "seeds": seeds, "folder": output}
    given = {key: value for key, value in given.items() if value is not None}
    if train:
        found = _train_all(given, quiet or json_output)
        if json_output:
            typer.echo(json.dumps(found.to_dict()))
        else:
            _print_results(found)
        return
    if given:
        names = ", ".join("--" + key.replace("folder", "output") for key in given)
        raise InvalidInput(f"{names} without --train: nothing is trained; add --train, or leave {names} out")
    from metrix.experiments.methods import list_methods

    listed = list_methods()
    if json_output:
        typer.echo(json.dumps([row.to_dict() for row in listed]))
    else:
        _print_list(listed)


def _train_all(given: dict[str, Any], quiet: bool) -> AllMethodsResult:
    from metrix.cli.terminal.training import watch_series
    from metrix.experiments.all_methods import STEPS, count_runs, train_all_methods

    of = count_runs(given.get("data", "glyphs"), given.get("steps", STEPS), given.get("seeds", 1))
    with watch_series(of, quiet) as watching:
        return train_all_methods(**given, **watching)


def _print_list(listed: list[ListedMethod]) -> None:
    from rich.table import Table

    from metrix.cli.terminal.console import Console

    console = Console(highlight=False)
    table = Table("name", "what it is", "reference", "goes with", title="What can be trained")
    group = ""
    for row in listed:
        if row.group != group:
            group = row.group
            table.add_section()
            table.add_row(f"[bold]{group}[/]")
        table.add_row(row.name, row.line, row.reference, row.goes_with)
    console.print(table)
    console.print(
        "The names are values of --loss, --mixup-method, --mixup, --pairs, --pool and --scheme of metrix train; "
        "distillation losses are those of metrix distil. "
        "metrix methods --train trains all of them at a small scale."
    )


def _print_results(found: AllMethodsResult) -> None:
    import statistics

    from rich.table import Table

    from metrix.cli.terminal.console import Console

    console = Console(highlight=False)
    table = Table(title=f"Recall@1 on unseen classes of {found.data} after {found.steps} steps")
    for name in ("", "name", "trained as"):
        table.add_column(name)
    for name in ("Recall@1 %", "against pixels", "seconds"):
        table.add_column(name, justify="right")
    table.add_row("", "nearest neighbour in pixels", "", f"{found.pixels:.1f}", "", "")
    group = ""
    for row in found.rows:
        if row.entry.group != group:
            table.add_section()
        spread = f" ± {statistics.stdev(row.recalls):.1f}" if found.seeds > 1 else ""
        difference = row.mean - found.pixels
        colour = "green" if difference > 0 else "red"
        table.add_row(
            row.entry.group if row.entry.group != group else "",
            row.entry.name,
            row.settings,
            f"{row.mean:.1f}{spread}",
            f"[{colour}]{difference:+.1f}[/]",
            f"{row.seconds:.0f}",
        )
        group = row.entry.group
    console.print(table)
    for entry in found.left_out:
        console.print(f"{entry.group} {entry.name} is left out: {entry.left_out}.")
    console.print(
        "Training is short and settings are not tuned: the table shows that everything trains, not which is best. "
        f"The runs are in {found.folder}."
    )
