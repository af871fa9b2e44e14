"""Draw the progress of a study: a row for each method, the run that is being trained, what is left of the budget."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metrix.cli.terminal.console import Console
from metrix.experiments.tuning.result import StudyResult
from metrix.experiments.tuning.running import Standing, StudyWatcher
from metrix.experiments.tuning.trials import FinishedTrial
from metrix.messages import count, format_duration
from metrix.train.watching import Watcher

LINE_EVERY = 30.0  # seconds between two lines on a run if the output is not a terminal


def build_study_watcher(quiet: bool) -> StudyWatcher:
    """Build a watcher that draws the study, or a silent one."""
    return StudyWatcher() if quiet else DrawnStudy()


class DrawnStudy(StudyWatcher):
    """Draws a table that changes; without a terminal, prints a line for each trial."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live: Live | None = None
        self.standing: Standing | None = None
        self.words, self.share = "", 0.0
        self.told: set[int] = set()
        self.drawn = 0.0

    def note(self, text: str) -> None:
        """Print what the user should know."""
        self.console.print(f"[cyan]note[/] {escape(text)}", highlight=False, soft_wrap=not self.console.is_terminal)

    def report(self, what: str, done: int, of: int) -> None:
        """Print what is being prepared."""
        if done < of:
            self.console.print(f"{what} ({done + 1} of up to {of})", highlight=False)

    def update(self, standing: Standing) -> None:
        """Redraw, or print the trials that ended since the last time."""
        changed = self.standing is None or standing.phase != self.standing.phase
        self.standing = standing
        if self.console.is_terminal:
            self._draw()
            return
        for trial in standing.trials:
            if trial.state != "running" and trial.number not in self.told:
                self.told.add(trial.number)
                self.console.print(self._line(trial), highlight=False, soft_wrap=True)
        if changed:
            self.console.print(f"{standing.phase}{_left(standing)}", highlight=False, soft_wrap=True)

    def watch_run(self, words: str) -> Watcher:
        """Show a run and its share of steps."""
        self.words, self.share = words, 0.0
        return _RunShare(self)

    def set_share(self, share: float) -> None:
        """Show how far the run is."""
        self.share = share
        if time.monotonic() - self.drawn < (0.25 if self.console.is_terminal else LINE_EVERY):
            return
        self.drawn = time.monotonic()
        if self.console.is_terminal:
            self._draw()
        elif self.standing is not None:
            left = _left(self.standing)
            self.console.print(f"  {self.words}: {100 * share:.0f} %{left}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Release the terminal."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _line(self, trial: FinishedTrial) -> str:
        score = f"{trial.latest:.1f} %" if trial.latest is not None else trial.error
        after = (
            "" if trial.state == "finished" else f" after {count(len(trial.scores), 'fold')}" if trial.scores else ""
        )
        usual = ", the settings to begin with" if trial.usual else ""
        return f"trial {trial.number} {trial.method}: {score}, {trial.state}{after}{usual} ({trial.seconds:.0f} s)"

    def _draw(self) -> None:
        if self.standing is None:
            return
        if self.live is None:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        self.live.update(self._compose(self.standing))

    def _compose(self, standing: Standing) -> RenderableType:
        table = Table(title=f"{standing.phase}{_left(standing)}", title_justify="left")
        table.add_column("method")
        for heading in ("trials", "stopped early", "failed", "first settings", "best so far"):
            table.add_column(heading, justify="right")
        for name in standing.methods:
            table.add_row(name, *_count(standing, name))
        if standing.untrained is not None:
            table.add_row("untrained", "", "", "", f"{standing.untrained:.1f} %", "")
        run = Table.grid(padding=(0, 1))
        run.add_row(Text("  " + self.words), ProgressBar(1.0, self.share, width=30))
        return Group(table, run)


class _RunShare(Watcher):
    def __init__(self, study: DrawnStudy) -> None:
        self.study, self.of = study, 1

    def begin(self, run: Any, config: Any, part: Any, steps: int, progress: Any) -> None:
        self.of = steps

    def step(self, progress: Any, losses: list[float], images: int) -> None:
        self.study.set_share(progress.step / max(1, self.of))


def _count(standing: Standing, name: str) -> list[str]:
    of = [trial for trial in standing.trials if trial.method == name]
    done = [trial for trial in of if trial.state != "running"]
    scores = [trial.score for trial in done if trial.score is not None]
    usual = next((trial.score for trial in done if trial.usual and trial.score is not None), None)
    wanted = "" if standing.plan.trials is None else f" of {standing.plan.trials}"
    stopped, failed = (sum(trial.state == state for trial in done) for state in ("stopped", "failed"))
    return [
        f"{len(done)}{wanted}",
        str(stopped),
        str(failed),
        "" if usual is None else f"{usual:.1f} %",
        f"{max(scores):.1f} %" if scores else "",
    ]


def _left(standing: Standing) -> str:
    left = standing.plan.left
    if left is None:
        return ""
    return f"; {format_duration(left)} left" if left > 0 else f"; {format_duration(-left)} over the budget"


def build_final_table(found: StudyResult) -> Table:
    """Build the table at the end of a study: each winner on the folds and on the test classes."""
    table = Table(
        title=f"The best of each method: {found.protocol.metric} on the folds, Recall@1 on {found.table.classes:,} "
        f"test classes ({found.table.queries:,} queries)"
    )
    for n, heading in enumerate(("", "folds", "test", "against untrained", "against")):
        table.add_column(heading, justify="right" if n else "left", overflow="fold")
    mean = sum(found.untrained) / len(found.untrained) if found.untrained else None
    table.add_row("untrained", "" if mean is None else f"{mean:.1f}", f"{found.table.untrained.mean:.1f}", "", "")
    by_method = {one.method: one for one in found.table.results}
    for winner in found.winners:
        name, result = winner.method.name, by_method[winner.method.name]
        contrasts = [one for one in found.table.contrasts if one.name == name]
        first, *others = [
            f"{one.difference:+.1f} ({one.low:+.1f} to {one.high:+.1f}){_MARKS[one.verdict]}"
            + ("" if one.against == "untrained" else f" {one.against}")
            for one in contrasts
        ]
        table.add_row(name, f"{winner.score:.1f}", f"{result.mean:.1f}", first, *(others or [""]))
    table.caption = (
        f"Intervals: over test classes, 95 % for all {found.table.comparisons} comparisons together. ✓ helps, ✗ harms: "
        "the interval and that over seeds exclude zero; ? cannot be told."
    )
    return table


_MARKS = {"helps": " [green]✓[/]", "harms": " [red]✗[/]", "open": " ?"}
