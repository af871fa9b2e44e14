"""`metrix report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("report", rich_help_panel="Measure")(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="one or more runs; the first is the baseline")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="the page; a Markdown twin is written beside it")
    ] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option(help="folder for figures and tables as SVG, PNG and CSV; NAME-files beside the page by default"),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="what to call the runs, with commas; their folders' names by default")
    ] = None,
    data: Annotated[str | None, typer.Option(help="measure all runs on this data")] = None,
    ks: Annotated[
        str | None, typer.Option(help="the K of Recall@K, with commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="resamples for intervals and differences; 0: neither")] = 1000,
    classes: Annotated[int, typer.Option(min=1, help="classes on the embedding map, as 10, 15 or 20")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="queries in a gallery")] = 6,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="leave out what needs the training images: positivity, utilization")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of the queries, classes and examples that are drawn")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, and no list of files")] = False,
) -> None:
    """Put runs on one page: settings, curves, measures, what they find, maps, geometry, cost.

    The page is one HTML file that needs no network, for screen, phone and print, light and dark; the same
    is written as Markdown. Runs that are not finished are shown as far as they are known.
    """
    import json

    from rich.console import Console

    from metrix.cli.evaluate import whole_numbers
    from metrix.cli.terminal.progress import show_progress
    from metrix.report.page import Page
    from metrix.report.report import Choices, composed

    Page.check_path(output)
    choices = Choices(
        data=data,
        names=None if names is None else tuple(name.strip() for name in names.split(",")),
        ks=whole_numbers("--ks", ks),
        resamples=bootstrap,
        classes=classes,
        queries=queries,
        test_only=test_only,
        seed=seed,
    )
    with show_progress(quiet or json_output) as told:
        made = composed(runs, choices, told)
        written = made.page.write(output, figures)
    if json_output:
        typer.echo(json.dumps({**made.content, "written": [str(path) for path in written]}))
    elif not quiet:
        for path in written:
            Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{path}[/]", highlight=False)
