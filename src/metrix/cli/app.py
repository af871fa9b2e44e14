"""`metrix`: verbs, and how mistakes and interruptions end.

Exit codes: 0 done, 1 a check found something, 2 a mistake in what was given, 130 and 143 interrupted.
Verbs import what they need when they run, so that `--help` is instant.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from metrix.cli import analyze, compare, data, demo, embed, evaluate, methods, report, reproduce, train
from metrix.errors import MetrixError, MetrixWarning

app = typer.Typer(
    name="metrix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train, measure and search image embeddings for classes never seen in training, with mixup.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from metrix import __version__

        typer.echo(f"metrix {__version__}")
        raise typer.Exit


@app.callback()
def metrix(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    """What all verbs share."""


for verb in (
    demo,
    data,
    train,
    methods,
    evaluate,
    compare,
    analyze,
    report,
    embed,
    reproduce,
):
    verb.add_to(app)


def main() -> None:
    """The entry point of the command."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _shown_plainly(warnings.showwarning)
            app()
    except MetrixError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or getattr(error, "said_by_all", True):
            who = "metrix" if rank == "0" else f"metrix, rank {rank}"
            Console(stderr=True, soft_wrap=True).print(f"[bold red]{who}:[/] {escape(str(error))}", highlight=False)
        sys.exit(int(getattr(error, "exit_code", 2)))
    except KeyboardInterrupt:
        Console(stderr=True).print("[bold red]metrix:[/] interrupted")
        sys.exit(130)


def _shown_plainly(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Warnings of metrix as a line for a person, without the line of code that they come from."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, MetrixWarning):
            Console(stderr=True, soft_wrap=True).print(f"[yellow]metrix:[/] {escape(str(message))}", highlight=False)
        else:
            otherwise(message, category, *where, **more)

    return show
