"""`metrix compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("compare", rich_help_panel="Measure")(compare_command)


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="two or more runs; the first is the baseline")],
    data: Annotated[str | None, typer.Option(help="measure all runs on this data instead of their own")] = None,
    ks: Annotated[
        str | None, typer.Option(help="values of K in Recall@K, separated by commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=1, help="resamples of the paired bootstrap")] = 1000,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Compare runs: settings that differ, Recall@K, and whether the differences are significant.

    All runs answer the same queries, so the bootstrap is paired by query.
    """
    import json

    from metrix.cli.evaluate import parse_integers
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_comparison_tables
    from metrix.runs.comparison import compare_runs

    with show_progress(json_output) as report:
        result = compare_runs(runs, data, parse_integers("--ks", ks), resamples=bootstrap, report=report)
    if json_output:
        typer.echo(json.dumps(result.to_dict()))
        return
    for table in build_comparison_tables(result):
        Console().print(table)
