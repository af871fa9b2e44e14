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
    """Print commands that may follow, each with what it does as a comment, above it if the line would be too long."""
    console = Console(stderr=True, soft_wrap=True)
    lead = "next: "
    for one, what in commands:
        shown, comment = f"[cyan]{escape(one)}[/]", f"[dim]# {escape(what)}[/]"
        if len(lead) + len(one) + len(what) + 4 <= console.width:
            console.print(f"{lead}{shown}  {comment}", highlight=False)
        else:
            console.print(f"{lead}{comment}\n{' ' * len(lead)}{shown}", highlight=False)
        lead = " " * len(lead)
