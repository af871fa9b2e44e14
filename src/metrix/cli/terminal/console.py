"""The console that every verb prints to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.markup import escape
from rich.segment import Segment

from metrix.messages import make_printable


class Console(rich.console.Console):
    """Rich's console, which shows control characters in texts (such as file names) instead of sending them on."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> Any:
        safe = [part if part.control else Segment(make_printable(part.text), part.style) for part in buffer]
        return super()._render_buffer(safe)


def print_message(text: str) -> None:
    """Print a sentence to standard error: broken between words on a terminal, in one line elsewhere."""
    console = Console(stderr=True)
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def print_warning(text: str) -> None:
    """Print a warning of metrix as `print_message` does."""
    print_message(f"[yellow]metrix:[/] {escape(text)}")
