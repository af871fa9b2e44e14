"""`metrix`: verbs, and how mistakes and interruptions end.

Exit codes: 0 done, 1 a check found something, 2 a mistake in what was given, 130 and 143 interrupted.
Verbs import what they need when they run, so that `--help` is instant.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from metrix.cli import verbs
from metrix.errors import MetrixError

app = typer.Typer(
    name="metrix",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train, measure and search image embeddings for classes never seen in training, with mixup.",
)
verbs.add_to(app)


def main() -> None:
    """The entry point of the command."""
    try:
        app()
    except MetrixError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]metrix:[/] {_escaped(str(error))}", highlight=False)
        sys.exit(int(getattr(error, "exit_code", 2)))
    except KeyboardInterrupt:
        Console(stderr=True).print("[bold red]metrix:[/] interrupted")
        sys.exit(130)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
