"""`metrix report`: a page about one or more runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.evaluate import BootstrapOver
from metrix.cli.reading import FollowLinks, ImageColumn, LabelColumn, MaxBad, Root, choose_reading


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("report", rich_help_panel="Measure")(with_device_flag(report_command))


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="one or more runs; the first is the baseline")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="HTML file; a Markdown version is written beside it")
    ] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option(help="folder for figures and tables as SVG, PNG and CSV; NAME-files beside the page by default"),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="names of the runs, separated by commas; those of their folders by default")
    ] = None,
    data: Annotated[str | None, typer.Option(help="measure all runs on this data instead of their own")] = None,
    ks: Annotated[
        str | None, typer.Option(help="values of K in Recall@K, separated by commas; those of the dataset by default")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="resamples for intervals and differences; 0 for neither")
    ] = 1000,
    bootstrap_over: BootstrapOver = "classes",
    classes: Annotated[int, typer.Option(min=1, help="classes on the embedding map")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="queries in each gallery of retrieved images")] = 6,
    leaderboard: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="show the rows of this file of metrix results --export beside the runs; may be repeated",
        ),
    ] = None,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="omit positivity and utilization, which need the training images")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed for drawing queries, classes and examples")] = 0,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the numbers as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show neither progress nor the files written")] = False,
) -> None:
    """Write a page about one or more runs: settings, curves, measures, classes, retrieved images, maps, geometry, cost.

    The page is a single HTML file that needs no network connection, with a Markdown version beside it. Unfinished runs
    are shown as far as they got.

    Examples:
        metrix report runs/a runs/b -o report.html
    """
    import json

    from rich.markup import escape

    from metrix.cli.evaluate import parse_integers
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.progress import show_progress
    from metrix.extras import require_extra
    from metrix.report.page import Page
    from metrix.report.report import ReportOptions, compose_report

    require_extra("matplotlib")
    Page.check_path(output)
    options = ReportOptions(
        data=data,
        names=None if names is None else tuple(name.strip() for name in names.split(",")),
        ks=parse_integers("--ks", ks),
        resamples=bootstrap,
        over=bootstrap_over,
        classes=classes,
        queries=queries,
        test_only=test_only,
        seed=seed,
        leaderboards=tuple(leaderboard or ()),
        reading=choose_reading(max_bad, root, follow_links, image_column, label_column),
    )
    with show_progress(quiet or json_output) as told:
        made = compose_report(runs, options, told)
        written = made.page.write(output, figures)
    if json_output:
        typer.echo(json.dumps({**made.content, "written": [str(path) for path in written]}))
    elif not quiet:
        console = Console(stderr=True, soft_wrap=True)
        for place, paths in _group_by_folder(written, output.parent).items():
            text = escape(str(paths[0])) if len(paths) == 1 else f"{len(paths)} files in {escape(str(place))}"
            console.print(f"written: [cyan]{text}[/]", highlight=False)
        print_next((command("metrix", "explore", *runs), "look at the test data of the runs on a web page"))


def _group_by_folder(written: list[Path], pages: Path) -> dict[Path, list[Path]]:
    """The pages one by one, the other files by their folder."""
    found: dict[Path, list[Path]] = {}
    for path in written:
        found.setdefault(path if path.parent == pages else path.parent, []).append(path)
    return found
