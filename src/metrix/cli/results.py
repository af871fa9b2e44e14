"""`metrix results`: what runs measured as rows of a leaderboard, to print, to append to a file, or to check one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrix.cli.device import with_device_flag
from metrix.cli.reading import FollowLinks, ImageColumn, LabelColumn, MaxBad, Root, choose_reading
from metrix.errors import InvalidInput

if TYPE_CHECKING:
    from metrix.cli.terminal.outcome import Outcome
    from metrix.runs.leaderboard import LeaderboardRow


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("results", rich_help_panel="Measure")(with_device_flag(results))


def results(
    runs: Annotated[list[Path] | None, typer.Argument(help="folders of finished runs", show_default=False)] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="append the rows to a leaderboard, a file of JSON lines (.jsonl)"),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="show and check the rows of a leaderboard instead")
    ] = None,
    data: Annotated[str | None, typer.Option(help="measure all runs on this data instead of their own")] = None,
    names: Annotated[
        str | None, typer.Option(help="names of the rows, separated by commas; those of the folders by default")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="who or what reports the rows, such as an address; stored in them")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="resamples for the interval of a single run; 0 for none")
    ] = 1000,
    max_bad: MaxBad = None,
    root: Root = None,
    follow_links: FollowLinks = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    json_output: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """Measure runs on their unseen classes, and append the results to a leaderboard that others append to.

    Runs that differ only in their seed are one row: the mean over the seeds, with its interval. A row names loss,
    mixup, backbone, data with a digest, measures with intervals, seeds and the command. metrix report --leaderboard
    FILE shows rows beside your runs where data and protocol agree. A row that is there is not written again.

    Examples:
        metrix results runs/a runs/b --names ours,baseline --export board.jsonl
        metrix results --check board.jsonl
    """
    from metrix.cli.terminal.progress import show_progress
    from metrix.runs.leaderboard import SUFFIX, append_to_leaderboard, read_leaderboard
    from metrix.runs.leaderboard_rows import measure_rows

    if check is not None:
        given = {"RUNS": runs, "--export": export, "--data": data, "--names": names, "--source": source}
        if others := [name for name, value in given.items() if value]:
            raise InvalidInput(f"--check: expected nothing else, got {', '.join(others)}; leave it out")
        _report(read_leaderboard(check), None, None).print(json_output)
        return
    if not runs:
        raise InvalidInput("results: expected folders of runs, or --check FILE, got neither")
    if export is not None:
        if export.suffix.lower() != SUFFIX:
            raise InvalidInput(f"--export: expected a file NAME{SUFFIX}, got {export.name}")
        if export.exists():
            read_leaderboard(export)  # a damaged file is an error before the runs are measured
    with show_progress(json_output) as report:
        rows = measure_rows(
            runs,
            data,
            names=None if names is None else [name.strip() for name in names.split(",")],
            resamples=bootstrap,
            report=report,
            reading=choose_reading(max_bad, root, follow_links, image_column, label_column),
        )
    if source is not None:
        rows = [row.model_copy(update={"source": source}) for row in rows]
    new = None if export is None else append_to_leaderboard(export, rows)
    _report(rows, export, new).print(json_output)


def _report(rows: list[LeaderboardRow], export: Path | None, new: int | None) -> Outcome:
    import json

    from metrix.cli.terminal.leaderboard_table import build_leaderboard_table
    from metrix.cli.terminal.next_steps import command
    from metrix.cli.terminal.outcome import Outcome

    remarks = []
    if new is not None and new < len(rows):
        remarks.append(f"{len(rows) - new} of {len(rows)} rows are in {export} already, and were not written again")
    following = []
    if export is not None:
        shown = f"{command('metrix', 'report', '--leaderboard', export)} RUN"
        following = [(shown, "a page that shows the rows beside runs on the same data")]
    content = {"rows": [json.loads(row.to_line()) for row in rows], "written": new}
    return Outcome(
        content, [build_leaderboard_table(rows)], remarks=remarks, written=[export] if export else [], next=following
    )
