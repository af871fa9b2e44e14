"""`metrix demo`: a small comparison of training with and without Metrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag

if TYPE_CHECKING:
    from metrix.experiments.demo import Contrast, Demonstration, DemoSearch
    from metrix.experiments.demo_classes import DemoClasses


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("demo", rich_help_panel="Train")(with_device_flag(demo_command))


def demo_command(
    seeds: Annotated[int, typer.Option(min=2, help="runs with and without Metrix, each with its own seed")] = 4,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="steps of each run; those of the preset glyphs by default", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the runs")] = Path("runs/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress, only the table")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Train a small model on glyphs with and without Metrix, compare the two, then search and classify with one.

    Needs neither data nor a network connection. Ends with two pages to look at: a report on the comparison, and a
    search with characters never seen in training. An interrupted demo resumes where it stopped; a finished one is only
    shown again.
    """
    import json

    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.training import watch_series
    from metrix.experiments.demo import run_demo, search_demo
    from metrix.experiments.demo_classes import classify_demo
    from metrix.extras import require_extra
    from metrix.report.demo_page import write_demo_pages

    require_extra("matplotlib", "faiss")
    with watch_series(2 * seeds, quiet or json_output) as watching:
        found = run_demo(output, seeds, steps, **watching)
    with show_progress(quiet or json_output) as report:
        searched, classified = search_demo(found), classify_demo(found)
        pages = write_demo_pages(found, searched, report)
    if json_output:
        content = {
            **found.to_dict(),
            "search": searched.to_dict(),
            "classes": classified.to_dict(),
            "pages": [str(page) for page in pages],
        }
        typer.echo(json.dumps(content))
    else:
        _print(found)
        _print_search(searched)
        _print_classes(classified)
        _print_next(found, searched, pages)


def _print(found: Demonstration) -> None:
    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.experiments.demo import MEASURES

    console = Console(highlight=False)
    mixup = ", ".join(found.config.mixing.mixup)
    table = Table(title=f"Characters never seen in training: mean ± standard deviation over {found.seeds} seeds")
    for heading in ("", "clean", f"Metrix ({mixup})", "difference", "significant?"):
        table.add_column(heading, justify="right" if heading else "left")
    for contrast in found.contrasts:
        metric = MEASURES[contrast.measure]
        name = f"{contrast.measure}{' ' + metric.unit if metric.unit else ''} {'↑' if metric.higher_is_better else '↓'}"
        digits = 1 if metric.unit == "%" else 3
        sides = (_format_spread(values, digits) for values in (contrast.clean, contrast.metrix))
        difference = f"{contrast.mean:+.{digits}f} ± {contrast.margin:.{digits}f}"
        table.add_row(name, *sides, difference, _verdict(contrast))
    console.print(table)
    console.print(found.conclusion)
    console.print(
        "Differences are between runs with the same seed, ± half the 95 % interval (Student's t); a difference is "
        f"significant if the interval excludes zero.\n{escape(found.conditions)}"
    )


def _print_search(searched: DemoSearch) -> None:
    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.search_tables import build_answer_table

    console, index, query = Console(highlight=False, soft_wrap=True), searched.index, searched.queries.names[0]
    console.print(f"\nA search with a character never seen in training, among {len(index):,}:")
    console.print(build_answer_table(query, searched.answers[0], list(index.columns), ranked=False))


def _print_classes(classified: DemoClasses) -> None:
    from rich.markup import escape

    from metrix.cli.terminal.classify_tables import build_class_table, describe_decision
    from metrix.cli.terminal.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        "\nWhich character is it, of those that are enrolled? Two images of characters never seen in training: one of "
        "an enrolled character, without its own vote, and one of a character that is not enrolled."
    )
    for one, truth in classified.shown:
        console.print(build_class_table(one))
        console.print(f"truth: {escape(truth)}{', which is not enrolled' if one.unknown else ''}")
    said = describe_decision(classified.classifier)
    console.print(f"{said[0].upper()}{said[1:]}, as measured on other characters. {classified.tally}")


def _print_next(found: Demonstration, searched: DemoSearch, pages: Sequence[Path]) -> None:
    """Say what there is to look at, and what to try."""
    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import find_program

    console, program = Console(highlight=False, soft_wrap=True), escape(find_program())
    report, search = (f"[cyan]{escape(str(page))}[/]" for page in pages)
    console.print(f"\nTo look at, in a browser:\n  {report}  curves, classes, retrieved images and maps of both sides")
    console.print(f"  {search}  {len(searched.answers)} searches with characters never seen in training")
    run, index = (escape(str(path)) for path in (found.runs / "metrix-seed-0", searched.index.folder))
    console.print(f"To try:\n  {program} explore {run}\n  {program} search {index} --id ID")
    console.print(f"  {program} classify {index} --id ID")
    console.print(f"  {program} tune glyphs --budget 20m  the best settings in a given time, and what mixup is worth")


def _format_spread(values: tuple[float, ...], digits: int) -> str:
    import statistics

    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def _verdict(contrast: Contrast) -> str:
    if not contrast.outside:
        return "no"
    return "[green]yes, better[/]" if contrast.better else "[red]yes, worse[/]"
