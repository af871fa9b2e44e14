"""The `metrix` command: its verbs, and how errors, warnings and interruptions are reported.

Exit codes: 0 success, 1 a check found problems or a run failed, 2 invalid input, 3 another process of the run was lost,
130 and 143 interrupted by SIGINT and SIGTERM. Verbs import what they need when they run, which keeps `--help` fast.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from metrix.cli import (
    analyze,
    cache,
    classify,
    compare,
    data,
    demo,
    distil,
    doctor,
    embed,
    evaluate,
    explore,
    export,
    index,
    label,
    methods,
    replay,
    report,
    reproduce,
    results,
    search,
    serve,
    suggest,
    threshold,
    train,
    tune,
    upgrade,
)
from metrix.cli.help import Command, Group
from metrix.cli.terminal.console import Console, print_message, print_warning
from metrix.errors import MetrixError, MetrixWarning
from metrix.files import describe_failure

# of a disk: they can happen at any write
STORAGE_FAILURES = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="metrix",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train image embeddings with mixup and measure how well they retrieve classes never seen in training.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from metrix import __version__

        typer.echo(f"metrix {__version__}")
        raise typer.Exit


@app.callback()
def metrix(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options shared by all verbs."""


def _unwrap_help(group: typer.Typer) -> None:
    """Let help texts be narrow, and break where the terminal needs it, not where lines of the docstrings end."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(
            text if text.startswith("Examples:") else " ".join(text.split()) for text in paragraphs
        )
        if command.cls is None or not issubclass(command.cls, Command):
            command.cls = Command
    for subgroup in group.registered_groups:
        if subgroup.typer_instance is not None:
            subgroup.cls = Group
            _unwrap_help(subgroup.typer_instance)


for verb in (
    demo,
    data,
    train,
    distil,
    tune,
    replay,
    methods,
    evaluate,
    compare,
    analyze,
    report,
    results,
    embed,
    index,
    search,
    classify,
    threshold,
    label,
    suggest,
    upgrade,
    serve,
    export,
    explore,
    reproduce,
    doctor,
    cache,
):
    verb.add_to(app)
_unwrap_help(app)


def main() -> None:
    """Run the command; the entry point of `metrix`."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_plainly(warnings.showwarning)
            app(prog_name="metrix")
    except MetrixError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0" or getattr(error, "on_every_rank", True):
            who = "metrix" if rank == "0" else f"metrix, rank {rank}"
            print_message(f"[bold red]{who}:[/] {escape(str(error))}")
        sys.exit(int(getattr(error, "exit_code", 2)))
    except OSError as error:
        if error.errno not in STORAGE_FAILURES:
            raise
        where = f"{error.filename}: " if error.filename else ""
        said = escape(f"{where}{describe_failure(error)}; make room or choose another place, then repeat the command")
        Console(stderr=True, soft_wrap=True).print(f"[bold red]metrix:[/] {said}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("[bold red]metrix:[/] interrupted")
        sys.exit(130)


def _show_plainly(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Show warnings of metrix as one line, without the source line that they come from."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, MetrixWarning):
            print_warning(str(message))
        else:
            otherwise(message, category, *where, **more)

    return show
