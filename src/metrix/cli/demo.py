"""`metrix demo`: a small comparison of training with and without Metrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from metrix.experiments.demo import Contrast, Demonstration, DemoSearch


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("demo", rich_help_panel="Train")(demo_command)


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
    """Train a small model on glyphs with and without Metrix, compare the two, and search with one of them.

    Needs neither data nor a network connection. An interrupted demo resumes where it stopped; a finished one is only
    printed.
    """
    import json

    from metrix.cli.terminal.training import watch_series
    from metrix.experiments.demo import run_demo, search_demo

    with watch_series(2 * seeds, quiet or json_output) as watching:
        found = run_demo(output, seeds, steps, **watching)
    searched = search_demo(found)
    if json_output:
        typer.echo(json.dumps({**found.to_dict(), "search": searched.to_dict()}))
    else:
        _print(found)
        _print_search(searched, output / "search.html")


def _print(found: Demonstration) -> None:
    from rich.markup import escape
    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.experiments.demo import MEASURES

    console, data = Console(highlight=False), found.config.data
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
    first = found.contrasts[0]
    if first.outside:
        effect = "helps" if first.better else "harms"
        low, high = first.mean - first.margin, first.mean + first.margin
        console.print(
            f"Metrix {effect} here: {first.measure} {first.mean:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}."
        )
    else:
        console.print(
            f"No conclusion: {first.measure} {first.mean:+.1f} points is within the spread of {found.seeds} seeds; "
            "more seeds (--seeds) would narrow the interval."
        )
    console.print(
        "Differences are between runs with the same seed, ± half the 95 % interval (Student's t); a difference is "
        "significant if the interval excludes zero.\n"
        f"Trained on {data.train_classes} characters {'without' if data.augment == 'none' else 'with'} augmentation, "
        f"{found.config.train.max_steps} steps, loss {found.config.loss.loss}; its parameters, learning rate and steps "
        "are the best found for the clean loss on held-out characters, where the weight of the mixed loss was chosen, "
        "too. Mixup is a regulariser: with more classes the gain shrinks. Other data and losses were not measured.\n"
        f"The runs are in {escape(str(found.folder))}."
    )


def _print_search(searched: DemoSearch, page: Path) -> None:
    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.search_tables import build_answer_table
    from metrix.report.search_page import compose_search_page
    from metrix.runs.output import write_output

    console, index, query = Console(highlight=False, soft_wrap=True), searched.index, searched.queries.names[0]
    text = compose_search_page(index, searched.queries, [searched.neighbours]).to_html()
    write_output(page, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    console.print(f"\nA search with a character never seen in training, among {len(index):,}:")
    console.print(build_answer_table(query, searched.neighbours, list(index.columns), ranked=False))
    others = f"metrix search {escape(str(index.folder))} --id ID"
    console.print(f"See the characters in [cyan]{escape(str(page))}[/]; search with others: {others}")


def _format_spread(values: tuple[float, ...], digits: int) -> str:
    import statistics

    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def _verdict(contrast: Contrast) -> str:
    if not contrast.outside:
        return "no"
    return "[green]yes, better[/]" if contrast.better else "[red]yes, worse[/]"
