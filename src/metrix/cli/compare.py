"""`metrix compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("compare", rich_help_panel="Measure")(compare)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="two or more runs; the first is the baseline")],
    data: Annotated[str | None, typer.Option(help="measure all runs on this data")] = None,
    ks: Annotated[
        str | None, typer.Option(help="the K of Recall@K, with commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=1, help="resamples of the paired bootstrap")] = 1000,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Put runs side by side: settings that differ, Recall@K, and whether the difference is more than chance.

    All runs answer the same queries, so differences are taken query by query.
    """
    import json

    from rich.console import Console

    from metrix.cli.evaluate import whole_numbers
    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tables import build_comparison_tables
    from metrix.runs.comparison import compared

    with show_progress(json_output) as report:
        result = compared(runs, data, whole_numbers("--ks", ks), resamples=bootstrap, report=report)
    if json_output:
        typer.echo(json.dumps(result.to_dict()))
        return
    for table in build_comparison_tables(result):
        Console().print(table)
