"""`metrix reproduce reality-check`: what losses and mixup are worth when all are tuned equally."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from metrix.reproduce.reality.plan import CheckPlan, CheckRequest
    from metrix.reproduce.reality.summary import CheckResult

NAME = "reality-check"
FOLDER = Path("runs/reality-check")


def refuse(names: Sequence[str], flags: Sequence[str]) -> None:
    """Raise `InvalidInput` for names and flags of tables and figures beside a reality check."""
    from metrix.errors import InvalidInput

    others = [name for name in names if name != NAME]
    if others or len(names) > 1:
        raise InvalidInput(
            f"{NAME} with {', '.join(others) or NAME}: expected it alone, because it trains runs of its own"
        )
    if flags:
        raise InvalidInput(
            f"{NAME} with {', '.join(flags)}: expected without; to use more cores or machines, run the same command "
            "again in another terminal, with the same --output"
        )


def run_check(request: CheckRequest, folder: Path, dry: bool, quiet: bool, json_output: bool) -> None:
    """Plan the check, run or continue it, and print its table and answer; with `dry`, print the plan only."""
    import json

    from metrix.cli.terminal.progress import show_progress
    from metrix.cli.terminal.tuning import build_study_watcher
    from metrix.extras import require_extra
    from metrix.reproduce.reality.answer import conclude_check
    from metrix.reproduce.reality.page import write_check
    from metrix.reproduce.reality.studies import plan_check, run_studies
    from metrix.reproduce.reality.summary import CheckResult

    require_extra("optuna", "matplotlib")
    quiet = quiet or json_output
    with show_progress(quiet) as report:
        plan = plan_check(request, folder, report, keep=not dry)
    if dry:
        _print_plan(plan, folder, json_output)
        return
    notes = build_study_watcher(quiet)
    notes.note(f"plan: {plan.describe()}")
    outcomes = run_studies(plan, folder, lambda: build_study_watcher(quiet))
    found = CheckResult(plan.methods, plan.trials, plan.folds, plan.seeds, tuple(outcomes))
    written = write_check(found, folder)
    if json_output:
        said = conclude_check(found)
        content = {"conclusion": list(said.sentences), "cautions": list(said.cautions), **found.to_dict()}
        typer.echo(json.dumps({**content, "written": [str(path) for path in written]}))
    else:
        _print_result(found, folder, written)


def _print_plan(plan: CheckPlan, folder: Path, json_output: bool) -> None:
    """Print what would be trained on each dataset, how long that takes, and the smallest budget."""
    import json

    from rich.table import Table

    from metrix.cli.terminal.console import Console
    from metrix.messages import format_duration

    lines = plan.list_methods()
    if json_output:
        described = {"plan": plan.describe(), "seconds": plan.seconds, "smallest_budget": plan.least_seconds}
        typer.echo(json.dumps({**described, "methods": [line.to_dict() for line in lines]}))
        return
    table = Table(title=f"What metrix reproduce {NAME} would train")
    table.add_column("dataset")
    table.add_column("method")
    for heading in ("a run", "trials", "search", "final runs", "all"):
        table.add_column(heading, justify="right")
    for line in lines:
        times = [
            format_duration(seconds) for seconds in (line.run, line.search, line.winners, line.search + line.winners)
        ]
        table.add_row(
            line.data, line.method, times[0], str(line.trials), times[1], f"{line.seeds} in {times[2]}", times[3]
        )
    console = Console()
    console.print(table)
    console.print(
        f"{plan.describe()}. Times are of this machine as it is now, from a few steps of each method. The smallest "
        f"budget in which something can be concluded: {format_duration(plan.least_seconds)}.",
        highlight=False,
        soft_wrap=True,
    )


def _print_result(found: CheckResult, folder: Path, written: Sequence[Path]) -> None:
    from rich.markup import escape

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.next_steps import command, print_next
    from metrix.cli.terminal.tables import build_page_tables
    from metrix.reproduce.reality.answer import conclude_check
    from metrix.reproduce.reality.blocks import build_main_table

    console = Console(highlight=False)
    for part in build_page_tables(build_main_table(found), console.width):
        console.print(part)
    said = conclude_check(found)
    for text in (*said.sentences, *said.cautions):
        console.print(escape(text), soft_wrap=True)
    best = folder / found.outcomes[0].name / "best.yaml"
    print_next(
        (str(written[0]), "the page, in a browser"),
        (command("metrix", "train", "--config", best), f"a model with the best settings of {found.outcomes[0].name}"),
    )
