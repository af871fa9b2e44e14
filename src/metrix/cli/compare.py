"""`metrix compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.evaluate import BootstrapOver
from metrix.cli.reading import FollowLinks, ImageColumn, LabelColumn, MaxBad, Root, choose_reading


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("compare", rich_help_panel="Measure")(with_device_flag(compare_command))


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="two or more runs; the first is the baseline")],
    data: Annotated[str | None, typer.Option(help="measure all runs on this data instead of their own")] = None,
    ks: Annotated[
        str | None, typer.Option(help="values of K in Recall@K, separated by commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=1, help="resamples of the paired bootstrap")] = 1000,
    bootstrap_over: BootstrapOver = "classes",
    advise: Annotated[
        bool,
        typer.Option(
            "--advise", help="runs are clean and mixed ones of several seeds: say whether mixup helped, and how surely"
        ),
    ] = False,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Compare runs: settings that differ, Recall@K, and whether the differences are significant.

    All runs answer the same queries, so they are compared query by query; the bootstrap draws classes, each with all
    its queries. With --advise, runs are paired by seed instead, and the Recall@1 that each measured at its end is
    compared.

    Examples:
        metrix compare runs/clean runs/mixed
        metrix compare --advise runs/clean-* runs/mixed-*
    """
    import json

    if advise:
        _advise(runs, json_output)
        return

    from metrix.cli.evaluate import parse_integers
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_comparison_tables
    from metrix.runs.comparison import compare_runs

    reading = choose_reading(max_bad, root, follow_links, image_column, label_column)
    with show_progress(json_output) as report:
        result = compare_runs(
            runs,
            data,
            parse_integers("--ks", ks),
            resamples=bootstrap,
            over=bootstrap_over,
            report=report,
            reading=reading,
        )
    if json_output:
        typer.echo(json.dumps(result.to_dict()))
        return
    for table in build_comparison_tables(result):
        Console().print(table)
    print_next((command("metrix", "report", *runs), "a page about them"))


def _advise(runs: list[Path], json_output: bool) -> None:
    import json

    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.runs.advice import advise

    found = advise(runs)
    if json_output:
        typer.echo(json.dumps([one.to_dict() for one in found]))
        return
    console = Console()
    for one in found:
        table = Table(title="Recall@1 of unseen classes")
        for heading in ("seed", "clean", one.mixup, "difference"):
            table.add_column(heading, justify="right")
        for seed, clean, mixed in zip(one.seeds, one.clean, one.mixed, strict=True):
            table.add_row(str(seed), f"{clean:.1f}", f"{mixed:.1f}", f"{mixed - clean:+.1f}")
        console.print(table)
        for sentence in one.sentences():
            console.print(sentence, highlight=False)
        if one.unpaired:
            console.print(f"Without a partner of the same seed, and left out: {escape(', '.join(one.unpaired))}")
