"""Draw the progress of a grid of runs: cells done, running and waiting, and the time left."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metrix.cli.terminal.console import Console
from metrix.messages import count, format_duration
from metrix.reproduce.duration import estimate_time_left
from metrix.reproduce.running import GridState, GridWatcher

LINE_EVERY = 30.0  # seconds between two lines if the output is not a terminal


def build_grid_watcher(quiet: bool, expected: Mapping[str, float], jobs: int) -> GridWatcher:
    """Build a watcher that draws the grid, or a silent one; `expected` are seconds by key of the cell."""
    return GridWatcher() if quiet else DrawnGrid(expected, jobs)


class DrawnGrid(GridWatcher):
    """Draws a bar for the grid and one for each running cell; without a terminal, prints a line every 30 seconds."""

    def __init__(self, expected: Mapping[str, float], jobs: int) -> None:
        self.expected, self.jobs = expected, jobs
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.lines = 0.0

    def begin(self, state: GridState) -> None:
        """Say how many cells are finished already, and start drawing."""
        if not state.waiting:
            self.console.print(f"all {state.total} cells are finished", highlight=False)
            return
        self.console.print(f"{count(state.total, 'cell')}, {state.reused} already finished", highlight=False)
        if self.console.is_terminal:
            self.live = Live(self._draw(state), console=self.console, refresh_per_second=4)
            self.live.start()

    def update(self, state: GridState) -> None:
        """Redraw."""
        if self.live is not None:
            self.live.update(self._draw(state))
        elif time.monotonic() - self.lines > LINE_EVERY:
            self.lines = time.monotonic()
            self.console.print(self._summary(state), highlight=False)

    def end(self, state: GridState) -> None:
        """Draw the final state and release the terminal."""
        if self.live is not None:
            self.live.update(self._draw(state))
            self.live.stop()

    def _summary(self, state: GridState) -> str:
        done = state.reused + len(state.done)
        parts = [
            f"{done} of {state.total} cells done",
            f"{len(state.running)} running",
            f"{len(state.waiting)} waiting",
        ]
        parts += [f"{len(state.failed)} failed"] if state.failed else []
        left = estimate_time_left(state, self.expected, self.jobs) if state.running or state.waiting else None
        return ", ".join(parts) + ("" if left is None else f"; about {format_duration(left)} left")

    def _draw(self, state: GridState) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        ended = state.reused + len(state.done) + len(state.failed)
        rows.add_row(Text("grid", style="bold"), ProgressBar(state.total, ended, width=40), self._summary(state))
        for one, share in list(state.running.values()):
            rows.add_row(Text(f"  {one.kind}"), ProgressBar(1.0, share, width=40), Text(one.name))
        return Group(rows)
