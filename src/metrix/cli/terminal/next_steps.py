"""What a user may want to do next: a line or two below the results, on standard error."""

from __future__ import annotations

import shlex
from os import PathLike

from rich.markup import escape

from metrix.cli.terminal.console import Console


def command(*words: str | PathLike[str]) -> str:
    """A command as it is typed in a shell: words with blanks or signs in quotes, placeholders in capitals as they are.

    >>> command("metrix", "evaluate", "runs/my cats")
    "metrix evaluate 'runs/my cats'"
    """
    return " ".join(shlex.quote(str(word)) for word in words)


def print_next(*commands: tuple[str, str]) -> None:
    """Print commands that may follow, each with what it does."""
    console = Console(stderr=True, soft_wrap=True)
    width = max(len(what) for _, what in commands)
    for number, (one, what) in enumerate(commands):
        lead = "next:" if number == 0 else "     "
        console.print(f"{lead} {what:<{width}}  [cyan]{escape(one)}[/]", highlight=False)
