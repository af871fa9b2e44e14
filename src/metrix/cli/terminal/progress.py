"""A bar for long work, on standard error, so that standard output is only results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metrix.train.batches import Report


@contextmanager
def progress(quiet: bool = False) -> Iterator[Report]:
    """A function to report (what, done, of) to; each new `what` is a bar of its own."""
    if quiet:
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

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
        if tasks:  # a bar that was never drawn would leave an empty line
            bars.stop()
