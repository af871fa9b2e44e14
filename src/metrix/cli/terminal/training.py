"""Draw the progress and the results of training runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from metrix.cli.terminal.console import Console
from metrix.data import Part
from metrix.evaluate.few_classes import describe_few_classes
from metrix.messages import count
from metrix.train import Interrupted
from metrix.train.checkpoint import Progress as RunProgress
from metrix.train.collapse import describe_collapse
from metrix.train.config import Config
from metrix.train.fit import describe_training_fit
from metrix.train.network import name_examples
from metrix.train.run_folder import RunFolder
from metrix.train.untrained import describe_harm
from metrix.train.watching import Watcher


def build_run_watcher(quiet: bool) -> Watcher:
    """Build a watcher that draws the run, or a silent one."""
    return Watcher() if quiet else DrawnWatcher()


class DrawnWatcher(Watcher):
    """Draws a bar for preparations, one for training, a row per validation and the results at the end."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.tasks: dict[str, TaskID] = {}
        self.began, self.images, self.validations = time.monotonic(), 0, 0
        self.examples, self.mixes = "images", True

    def preparing(self, what: str, done: int, of: int) -> None:
        """Draw a bar while images are checked or activations are computed."""
        if what not in self.tasks:
            self.bars.start()
            self.tasks[what] = self.bars.add_task(what, total=of, detail="")
        self.bars.update(self.tasks[what], completed=done, total=of)

    def note(self, text: str) -> None:
        """Print what the user should know before training starts."""
        alone = not self.console.is_terminal  # a file has notes in one line each
        self.console.print(f"[cyan]note[/] {escape(text)}", highlight=False, soft_wrap=alone)

    def warn(self, text: str) -> None:
        """Print a warning above the bar."""
        self.console.print(f"[bold yellow]warning[/] {escape(text)}", highlight=False, soft_wrap=True)

    def begin(self, run: RunFolder, config: Config, part: Part, steps: int, progress: RunProgress) -> None:
        """Say what is trained, and start the bar."""
        self.examples, self.mixes = name_examples(config), bool(config.mixing.mixup)
        self.console.print(
            f"[bold]{config.objective_name}[/], mixup {config.mixing.describe()}: {len(part):,} {self.examples} of "
            f"{count(part.num_classes, 'class')}; {escape(config.model.backbone)}, {escape(_describe_weights(config))}"
        )
        self.console.print(f"run [cyan]{escape(str(run.path))}[/]", highlight=False, soft_wrap=True)
        if progress.step:
            self.console.print(f"resuming from step {progress.step:,} (epoch {progress.epoch + 1})")
        self.bars.start()
        self.tasks["train"] = self.bars.add_task("training", total=steps, completed=progress.step, detail="")
        self.began = time.monotonic()

    def step(self, progress: RunProgress, losses: list[float], images: int) -> None:
        """Move the bar; show the clean and the mixed loss, and images per second."""
        self.images += images
        speed = self.images / max(1e-9, time.monotonic() - self.began)
        detail = f"{_describe_losses(losses, self.mixes)}  {speed:,.0f} {self.examples}/s"
        self.bars.update(self.tasks["train"], completed=progress.step, detail=detail)

    def skipped(self, progress: RunProgress, why: str) -> None:
        """Print which step was skipped, and why."""
        self.console.print(f"[yellow]skipped[/] {escape(why)}", highlight=False, soft_wrap=True)
        self.bars.update(self.tasks["train"], completed=progress.step)

    def untrained(self, found: dict[str, Any], part: str) -> None:
        """Print the row of epoch 0; of test classes, a sentence, because no other row is on them."""
        if part == "test":
            self.console.print(
                f"before training: Recall@1 {100 * found['recall']['1']:.1f} on "
                f"{count(found['classes'], 'unseen class')}; "
                "no classes are held out to select an epoch",
                highlight=False,
                soft_wrap=True,
            )
            return
        self._print_row(f"{0:>8}{0:>8}{'–':>8}{'–':>8}", found, "  untrained")

    def validated(self, progress: RunProgress, losses: list[float], found: dict[str, Any], better: bool) -> None:
        """Print a row for each validation."""
        mixed = f"{losses[2]:>8.3f}" if self.mixes else f"{'–':>8}"
        numbers = f"{progress.epoch:>8}{progress.step:>8}{losses[1]:>8.3f}{mixed}"
        self._print_row(numbers, found, "  [green]best[/]" if better else "")

    def _print_row(self, numbers: str, found: dict[str, Any], remark: str) -> None:
        """Print a validation, the first one below a heading."""
        if not self.validations:
            names = ("epoch", "step", "clean", "mixed", *(f"R@{k}" for k in found["recall"]))
            names += tuple(f"NDCG@{k}" for k in list(found.get("ndcg", {}))[-1:])
            heading = "".join(f"{name:>8}" for name in names)
            self.console.print(f"Recall@K in % on {count(found['classes'], 'validation class')}", highlight=False)
            self.console.print(f"[bold]{heading}[/]", highlight=False)
        self.validations += 1
        values = [*found["recall"].values(), *list(found.get("ndcg", {}).values())[-1:]]
        recall = "".join(f"{100 * value:>8.1f}" for value in values)
        self.console.print(numbers + recall + remark, highlight=False)

    def finished(self, run: RunFolder, results: dict[str, Any]) -> None:
        """Print Recall@K before and after training: on the validation classes, if there are any, and on unseen ones."""
        self.close()
        if results["test"] is None:
            self.console.print(escape(describe_unmeasured(run)), highlight=False, soft_wrap=True)
        if results["test"] is not None or results["best_epoch"] is not None:
            Console().print(build_results_table(run.metrics(), results, name_examples(run.config)))
        if fit := describe_training_fit(results):
            self.console.print(fit, highlight=False)
        if harm := describe_harm(results):
            self.console.print(f"[bold yellow]warning[/] {escape(harm)}", highlight=False, soft_wrap=True)
        if (peak := (results.get("peak_memory") or {}).get("bytes")) is not None:
            of = results["peak_memory"]["of"]
            self.console.print(f"peak memory of {of}: {peak / 2**30:.2f} GiB", highlight=False)
        if (collapse := results.get("collapse")) and not collapse["recovered"]:
            self.console.print(f"[bold yellow]warning[/] {escape(describe_collapse(collapse))}", soft_wrap=True)
        if skipped := results.get("skipped_steps"):
            self.console.print(f"[yellow]skipped[/] {skipped:,} of {results['steps']:,} steps, which were not finite")
        path = escape(str(run.path))
        self.console.print(
            f"run [cyan]{path}[/], its model in {path}/{run.model.name}", highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        """Release the terminal."""
        if self.tasks:  # stopping bars that were never drawn prints an empty line
            self.bars.stop()
            self.tasks.clear()


def describe_unmeasured(run: RunFolder) -> str:
    """Say that nothing can be measured on a run, and the figures of the one that was measured in its place."""
    said = "trained on all classes: nothing can be measured on this model"
    if (found := run.measured) is None:
        return said
    test = found["test"]
    return (
        f"{said}; {found['run']}, with the same settings, has Recall@1 {100 * test['recall']['1']:.1f} on "
        f"{count(test['classes'], 'class')} that it was not trained on"
    )


def build_results_table(metrics: list[dict[str, Any]], results: dict[str, Any], examples: str = "images") -> Table:
    """Build the table at the end of a run: Recall@K of the unseen classes, and of the validations that lead there.

    Where labels have degrees, NDCG@K stands beside it.

    Args:
        metrics: the lines of metrics.jsonl
        results: the content of results.json
        examples: what the data are, images or vectors
    """
    test, best = results["test"], results.get("best_epoch")
    known: dict[str, Any] = test or next((line["val"] for line in metrics if "val" in line), {"recall": {}})
    ks, degrees = list(known["recall"]), list(known.get("ndcg", {}))
    table = Table(title="Recall@K and NDCG@K in %" if degrees else "Recall@K in %")
    table.add_column(examples)
    for heading in ("epoch", *(f"R@{k}" for k in ks), *(f"NDCG@{k}" for k in degrees)):
        table.add_column(heading, justify="right")
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for line in metrics:
        if "val" in line and line["epoch"] in (0, best):
            what = "validation, untrained" if line["epoch"] == 0 else "validation, best"
            what += ", best" if best == 0 else ""
            rows.append((what, str(line["epoch"]), line["val"]))
    if (before := results.get("untrained_test")) is not None:
        rows.append(("unseen classes, untrained", "0", before))
    epoch = best if best is not None else results.get("epochs")
    if test is not None:
        rows.append(("[bold]unseen classes[/]", "" if epoch is None else str(epoch), test))
    if any(found.get("few_classes") for _, _, found in rows):
        table.caption = f"[bold yellow]caution[/]: figures {describe_few_classes(min(f['classes'] for *_, f in rows))}"
        table.caption_justify = "left"
    for what, number, found in rows:
        counted = f"{what} ({found['images']:,} of {count(found['classes'], 'class')})"
        values = [found["recall"].get(k) for k in ks] + [found.get("ndcg", {}).get(k) for k in degrees]
        table.add_row(counted, number, *("" if value is None else f"{100 * value:.1f}" for value in values))
    return table


def _describe_losses(losses: list[float], mixes: bool) -> str:
    return f"clean {losses[1]:.3f}" + (f"  mixed {losses[2]:.3f}" if mixes else "")


def _describe_weights(config: Config) -> str:
    weights = config.model.weights
    return "random weights" if weights is None else f"weights {weights}"


@contextmanager
def watch_series(of: int, quiet: bool) -> Iterator[dict[str, Any]]:
    """Draw a series of `of` runs.

    Yields:
        Keyword arguments for the function that trains the series. An interruption ends the command with its exit code.
    """
    series = None if quiet else SeriesWatcher(of)
    try:
        yield {} if series is None else {"watcher_of": series.run}
    except Interrupted as interruption:
        typer.echo("metrix: interrupted; run the same command again to resume", err=True)
        raise typer.Exit(interruption.exit_code) from None
    finally:
        if series is not None:
            series.end()


class SeriesWatcher:
    """Draws one bar for several runs, trained one after another."""

    def __init__(self, of: int) -> None:
        self.of = of
        self.bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.bars.start()
        self.task = self.bars.add_task("preparing", total=float(of), detail="")
        self.begun = 0
        self.noted: set[str] = set()  # runs of a series have the same data: its notes are printed once

    def run(self, side: str, seed: int) -> Watcher:
        """Return the watcher of the next run."""
        self.begun += 1
        return _OneOfSeries(self, f"{side}, seed {seed} ({self.begun} of {self.of})")

    def end(self) -> None:
        """Release the terminal."""
        self.bars.stop()


class _OneOfSeries(Watcher):
    def __init__(self, series: SeriesWatcher, name: str) -> None:
        self.series, self.name, self.before = series, name, series.begun - 1
        self.steps, self.began, self.images, self.mixes = 1, time.monotonic(), 0, True

    def note(self, text: str) -> None:
        if text not in self.series.noted:
            self.series.noted.add(text)
            self.series.bars.console.print(f"[cyan]note[/] {escape(text)}", highlight=False, soft_wrap=True)

    def begin(self, run: RunFolder, config: Config, part: Part, steps: int, progress: RunProgress) -> None:
        self.steps, self.began, self.mixes = steps, time.monotonic(), bool(config.mixing.mixup)
        self.series.bars.update(self.series.task, description=self.name)

    def step(self, progress: RunProgress, losses: list[float], images: int) -> None:
        self.images += images
        speed = self.images / max(1e-9, time.monotonic() - self.began)
        detail = f"{_describe_losses(losses, self.mixes)}  {speed:,.0f} images/s"
        completed = self.before + progress.step / self.steps
        self.series.bars.update(self.series.task, completed=completed, detail=detail)

    def finished(self, run: RunFolder, results: dict[str, Any]) -> None:
        test = results["test"]
        told = "not measured" if test is None else f"Recall@1 {100 * test['recall']['1']:.1f}"
        self.series.bars.update(self.series.task, completed=self.before + 1)
        self.series.bars.console.print(f"{self.name}: {told}", highlight=False)
