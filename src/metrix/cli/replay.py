"""`metrix replay`: repeat a training step whose loss or gradient was not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metrix.cli.device import with_device_flag


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("replay", rich_help_panel="Train")(with_device_flag(replay_command))


def replay_command(
    run: Annotated[Path, typer.Argument(help="folder of a run", show_default=False)],
    step: Annotated[int | None, typer.Option(help="which of the saved steps; the last one by default")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Repeat a training step whose loss or gradient was not finite, and show each of its terms.

    metrix train saves such a step in RUN/nonfinite: batch, weights, memory and random state. The data is not needed,
    and the run does not change. Under torchrun, with as many processes as the run had, each takes its own share.

    Examples:
        metrix replay runs/a
    """
    import json

    from metrix.cli.terminal.console import Console
    from metrix.cli.terminal.replay import build_items_table, build_terms_table
    from metrix.train.distributed import is_first
    from metrix.train.replay import replay

    found = replay(run, step)
    if not is_first():
        return
    if json_output:
        typer.echo(json.dumps(found.to_dict()))
        return
    console = Console(soft_wrap=True)
    saved = found.saved
    console.print(f"step {saved.step} (epoch {saved.epoch + 1}, batch {saved.batch + 1}): {saved.said}", markup=False)
    Console().print(build_terms_table(found))
    Console().print(build_items_table(found))
    same = "the same losses as in the run" if found.same else f"other losses than in the run: {saved.losses}"
    for line in (same, found.note):
        if line:
            console.print(line, markup=False, highlight=False)
