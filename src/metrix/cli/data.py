"""`metrix data check`: what a dataset contains, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.flags import DATA_HELP
from metrix.cli.reading import PANEL, FollowLinks, ImageColumn, LabelColumn, Root, parse_max_bad
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from metrix.data import CheckReport

LISTED = 20  # broken images, and leaks, to list; --json lists all


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    group = typer.Typer(no_args_is_help=True, help="Check data before training on it.")
    group.command("check")(check_command)
    group.callback()(lambda: None)  # typer would merge a group of one command into its parent
    app.add_typer(group, name="data", rich_help_panel="Train")


def check_command(
    spec: Annotated[
        str,
        typer.Argument(metavar="DATA", help=DATA_HELP),
    ],
    unseen: Annotated[float, typer.Option(help="share of a folder's classes kept for testing")] = 0.5,
    split_seed: Annotated[int, typer.Option(min=0, help="seed of the split into seen and unseen classes")] = 0,
    holdout: Annotated[
        float, typer.Option(min=0, max=1, help="share of the training classes held out for model selection")
    ] = 0.1,
    layout: Annotated[
        str | None,
        typer.Option(
            help="layout of the data, if it is not recognised: cub, cars, sop, inshop, folder, manifest, parquet, "
            "hf, vectors",
            show_default=False,
        ),
    ] = None,
    leaks: Annotated[
        bool, typer.Option("--leaks", help="find near-copies of training images among the test images")
    ] = False,
    flips: Annotated[bool, typer.Option("--flips", help="with --leaks: mirrored copies, too")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="with --leaks: write them to a table")] = None,
    max_bad: Annotated[
        float,
        typer.Option(min=0, help="unreadable images to tolerate: a share below 1, or a count", rich_help_panel=PANEL),
    ] = 0.01,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Check a dataset: classes and images, unreadable files, copies, and how training would split it.

    Reads every image. With --leaks, also finds test images that are near-copies of training images (re-encoded, or of
    another size), which make figures better than they are. The exit code is 0 if the data is ready for training, and 1
    if there are problems, of which leaks are one.

    Examples:
        metrix data check photos/
        metrix data check photos/ --leaks --csv leaks.csv
    """
    import json

    from rich.progress import Progress

    from metrix import data
    from metrix.cli.terminal.console import Console
    from metrix.runs.output import write_csv

    misplaced = [name for name, value in {"--flips": flips, "--csv": csv}.items() if value and not leaks]
    if misplaced:
        raise InvalidInput(f"{', '.join(misplaced)}: expected with --leaks, got none; give --leaks, too")
    with Progress(console=Console(stderr=True), transient=True, disable=json_output) as bars:
        task = bars.add_task("reading the data", total=None)
        report = data.check(
            spec,
            unseen=unseen,
            seed=split_seed,
            holdout=holdout,
            layout=layout,
            root=root,
            follow_links=follow_links,
            image_column=image_column,
            label_column=label_column,
            max_bad=parse_max_bad(max_bad) or 0,
            leaks=leaks,
            flips=flips,
            progress=lambda done, of: bars.update(task, completed=done, total=of),
        )
    if csv is not None:
        write_csv(csv, data.Leak._fields, report.leaks)
    if json_output:
        typer.echo(json.dumps(report.to_dict()))
    else:
        columns = {"--image-column": image_column, "--label-column": label_column}
        _print(report, csv, [word for flag, name in columns.items() if name for word in (flag, name)])
    raise typer.Exit(0 if report.ok else 1)


def _print(report: CheckReport, csv: Path | None, columns: list[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next

    console = Console(highlight=False, soft_wrap=True)
    if report.layout is not None:
        where = "" if report.root is None else f" in {escape(report.root)}"
        console.print(f"[bold]{escape(report.spec)}[/]: layout {report.layout}{where}")
    if report.parts:
        table = Table(title="Parts used in training and testing")
        table.add_column("part")
        examples = "images" if report.dim is None else "vectors"
        for heading in (examples, "classes", f"{examples} per class: fewest", "median", "most"):
            table.add_column(heading, justify="right")
        for name, part in report.parts.items():
            numbers = (part.images, part.classes, part.smallest_class, part.median_class, part.largest_class)
            table.add_row(name, *(f"{number:,g}" if number < 1e6 else f"{number:,}" for number in numbers))
        console.print(table)
    if report.sizes:
        smallest, median, largest = (f"{width}×{height}" for width, height in report.sizes)
        console.print(f"sizes in pixels: smallest {smallest}, median {median}, largest {largest}")
    if report.dim is not None:
        console.print(f"vectors of {report.dim:,} numbers")
    for broken in report.broken[:LISTED]:
        console.print(f"[yellow]broken[/] {escape(broken.path)}: {escape(broken.reason)}")
    if len(report.broken) > LISTED:
        console.print(f"[yellow]broken[/] … and {len(report.broken) - LISTED:,} more; --json lists all")
    if report.leaks:
        console.print(_tabulate_leaks(report))
    for note in report.notes:
        console.print(f"[cyan]note[/] {escape(note)}")
    for problem in report.problems:
        console.print(f"[red]problem[/] {escape(problem)}")
    console.print("[green]ready to train on[/]" if report.ok else "[red]not ready to train on[/]")
    if csv is not None:
        Console(stderr=True, soft_wrap=True).print(f"written: [cyan]{escape(str(csv))}[/]", highlight=False)
    if report.ok:
        print_next((command("metrix", "train", report.spec, *columns), "train on it"))


def _tabulate_leaks(report: CheckReport) -> Table:
    from rich.markup import escape
    from rich.table import Table

    more = len(report.leaks) - LISTED
    caption = f"… and {more:,} more; --json and --csv list all" if more > 0 else None
    table = Table(title="Test images that training has seen", caption=caption, caption_justify="left")
    for heading in ("test", "training", "kind"):
        table.add_column(heading, overflow="fold")
    table.add_column("similarity", justify="right")
    for leak in report.leaks[:LISTED]:
        table.add_row(escape(leak.test), escape(leak.train), leak.kind, f"{leak.similarity:.3f}")
    return table
