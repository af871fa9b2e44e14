"""What a user may want to do next: a line or two below the results, on standard error."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import suppress
from os import PathLike
from pathlib import Path

from rich.markup import escape

from metrix.cli.terminal.console import Console


def command(*words: str | PathLike[str]) -> str:
    """A command as it is typed in a shell: words with blanks or signs in quotes, placeholders in capitals as they are.

    >>> command("metrix", "evaluate", "runs/my cats")
    "metrix evaluate 'runs/my cats'"
    """
    return " ".join(shlex.quote(str(word)) for word in words)


def find_program() -> str:
    """How `metrix` is called here: by its name if a shell finds it, else by the path of this program."""
    if shutil.which("metrix") is not None:
        return "metrix"
    program = Path(sys.argv[0])
    if program.name != "metrix":
        return f"{shlex.quote(sys.executable)} -m metrix"
    with suppress(ValueError):
        program = program.absolute().relative_to(Path.cwd())
    return shlex.quote(str(program))


def print_next(*commands: tuple[str, str]) -> None:
    """Print commands that may follow, each with what it does as a comment, above it if the line would be too long."""
    console = Console(stderr=True, soft_wrap=True)
    lead, program = "next: ", find_program()
    for one, what in commands:
        one = program + one.removeprefix("metrix") if one.startswith("metrix ") else one
        shown, comment = f"[cyan]{escape(one)}[/]", f"[dim]# {escape(what)}[/]"
        if len(lead) + len(one) + len(what) + 4 <= console.width:
            console.print(f"{lead}{shown}  {comment}", highlight=False)
        else:
            console.print(f"{lead}{comment}\n{' ' * len(lead)}{shown}", highlight=False)
        lead = " " * len(lead)
