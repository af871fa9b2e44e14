"""Progress bars on standard error, so that standard output holds only results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metrix.train.batches import Report


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Report]:
    """Yield a function `report(what, done, of)` that draws a progress bar for each `what`; silent if `quiet`."""
    if quiet:
        yield lambda what, done, of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from metrix.cli.terminal.console import Console

    bars = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, of: int) -> None:
        if what not in tasks or bars.tasks[tasks[what]].finished:
            bars.start()
            tasks[what] = bars.add_task(what, total=of)
        bars.update(tasks[what], completed=done, total=of)

    try:
        yield report
    finally:
        if tasks:  # stopping bars that were never drawn prints an empty line
            bars.stop()
