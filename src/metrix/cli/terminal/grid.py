"""A grid of runs, drawn in the terminal: cells done, running and waiting, and the time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metrix.reproduce.running import State, Watcher

if TYPE_CHECKING:
    from metrix.reproduce.cells import Store

LINE_EVERY = 30.0  # seconds between two lines where there is no terminal


def quiet_or_drawn(quiet: bool, store: Store, jobs: int) -> Watcher:
    """A watcher for a script, or for a person."""
    return Watcher() if quiet else DrawnGrid(store, jobs)


class DrawnGrid(Watcher):
    """A bar for the grid and one for each cell that runs; without a terminal, a line now and then."""

    def __init__(self, store: Store, jobs: int) -> None:
        self.store, self.jobs = store, jobs
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.lines = 0.0

    def begin(self, state: State) -> None:
        """Say what is there already, and start to draw."""
        if not state.waiting:
            self.console.print(f"all {state.total} cells are finished", highlight=False)
            return
        self.console.print(f"{state.total} cells, {state.reused} of them finished before", highlight=False)
        if self.console.is_terminal:
            self.live = Live(self._drawn(state), console=self.console, refresh_per_second=4)
            self.live.start()

    def look(self, state: State) -> None:
        """Draw anew."""
        if self.live is not None:
            self.live.update(self._drawn(state))
        elif time.monotonic() - self.lines > LINE_EVERY:
            self.lines = time.monotonic()
            self.console.print(self._summary(state), highlight=False)

    def end(self, state: State) -> None:
        """Give the terminal back."""
        if self.live is not None:
            self.live.update(self._drawn(state))
            self.live.stop()

    def _summary(self, state: State) -> str:
        done = state.reused + len(state.done)
        parts = [
            f"{done} of {state.total} cells done",
            f"{len(state.running)} running",
            f"{len(state.waiting)} waiting",
        ]
        parts += [f"{len(state.failed)} failed"] if state.failed else []
        left = self.seconds_left(state) if state.running or state.waiting else None
        return ", ".join(parts) + ("" if left is None else f"; about {duration(left)} left")

    def _drawn(self, state: State) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        ended = state.reused + len(state.done) + len(state.failed)
        rows.add_row(Text("grid", style="bold"), ProgressBar(state.total, ended, width=40), self._summary(state))
        for one, share in list(state.running.values()):
            rows.add_row(Text(f"  {one.kind}"), ProgressBar(1.0, share, width=40), Text(one.name))
        return Group(rows)

    def seconds_left(self, state: State) -> float | None:
        """From the mean of the cells of each kind that were trained meanwhile; None before the first."""
        taken: dict[str, list[float]] = {}
        for one in list(state.done):
            taken.setdefault(one.kind, []).append(float((self.store.results(one.key) or {}).get("seconds", 0.0)))
        if not taken:
            return None
        means = {kind: sum(values) / len(values) for kind, values in taken.items()}
        usual = sum(means.values()) / len(means)
        left = sum(means.get(one.kind, usual) for one in list(state.waiting))
        left += sum((1.0 - share) * means.get(one.kind, usual) for one, share in list(state.running.values()))
        # Start of processes and evaluation are not in a run's seconds: what the clock says counts.
        trained = sum(sum(values) for values in taken.values())
        pace = (time.monotonic() - state.began) * self.jobs / max(1e-9, trained)
        return left * max(1.0, min(pace, 3.0)) / self.jobs


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(50), duration(1500), duration(9000), duration(400000)
    ('50 s', '25 min', '2.5 h', '4.6 days')
    """
    for size, unit in ((86400, "days"), (3600, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
