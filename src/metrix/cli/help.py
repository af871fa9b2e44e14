"""Help texts that fit a terminal of 80 columns: short names for the kinds of values, and one column for a switch."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

# by the beginning of what typer would show; a switch has no value
_VALUES = {"bool": "", "int": "N", "float": "X", "path": "PATH", "str": "TEXT"}


class Command(TyperCommand):
    """A command with a narrow help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        for parameter in self.get_params(ctx):
            if getattr(parameter, "param_type_name", "") == "argument":
                name = re.sub(r"[\[\].]", "", parameter.metavar or parameter.name or "")
                parameter.metavar = name.upper()
            else:
                _shorten(parameter, ctx)
        super().format_help(ctx, formatter)


def _shorten(option: Any, ctx: Any) -> None:
    if option.metavar is None and hasattr(option, "display_type_rich"):
        kind = (option.display_type_rich(ctx) or "").strip("<>")
        option.metavar = next((short for name, short in _VALUES.items() if kind.startswith(name)), None)
    if len(option.opts) == len(option.secondary_opts) == 1:
        option.opts, option.secondary_opts = [f"--[no-]{option.opts[0].removeprefix('--')}"], []
