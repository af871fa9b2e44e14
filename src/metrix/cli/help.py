"""Help texts that fit a terminal of 80 columns: short names for the kinds of values, and one column for a switch."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

# by the beginning of what typer would show; a switch has no value
_VALUES = {"bool": "", "int": "N", "float": "X", "path": "PATH", "str": "TEXT"}


class Command(TyperCommand):
    """A command with a narrow help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage as manuals write it: `RUN [DATA]...`."""
        _shorten_all(self.get_params(ctx), ctx)
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if _is_argument(parameter):
                name = str(parameter.metavar) if parameter.required else f"[{parameter.metavar}]"
                pieces.append(name if parameter.nargs == 1 else f"{name}...")
        return pieces

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _shorten_all(self.get_params(ctx), ctx)
        super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands with a narrow help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _shorten_all(self.get_params(ctx), ctx)
        super().format_help(ctx, formatter)


def _is_argument(parameter: Any) -> bool:
    return getattr(parameter, "param_type_name", "") == "argument"


def _shorten_all(parameters: list[Any], ctx: Any) -> None:
    for parameter in parameters:
        if _is_argument(parameter):
            name = re.sub(r"[\[\].]", "", parameter.metavar or parameter.name or "")
            parameter.metavar = name.upper()
            parameter.display_type_rich = lambda ctx: None  # its name and its help say what it is
        else:
            _shorten(parameter, ctx)


def _shorten(option: Any, ctx: Any) -> None:
    if option.metavar is None and hasattr(option, "display_type_rich"):
        kind = (option.display_type_rich(ctx) or "").strip("<>")
        option.metavar = next((short for name, short in _VALUES.items() if kind.startswith(name)), None)
    if len(option.opts) == len(option.secondary_opts) == 1:
        option.opts, option.secondary_opts = [f"--[no-]{option.opts[0].removeprefix('--')}"], []
