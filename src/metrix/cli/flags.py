"""Flags from the configuration: every key of `metrix.train.config` becomes one, with its own help text.

Keys that are chosen from a table (loss, mixup type …) name its entries in their help.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from metrix.train import config as configuration
from metrix.train.choices import CHOICES
from metrix.train.sections import Distillation

_PANELS = {
    "data": "Data",
    "model": "Model",
    "loss": "Loss",
    "mixing": "Mixup",
    "distil": "Distillation",
    "train": "Training",
}
DATA_HELP = (
    "a folder of class folders, tar files, Parquet files with images, hf:owner/name, a manifest, vectors, glyphs, or "
    "LAYOUT:PATH such as cub:PATH"
)
# The data are an argument; what is about a teacher is given to metrix distil.
NOT_FLAGS = ("data", *Distillation.model_fields)


def with_config_flags(verb: Callable[..., None], without: Collection[str] = NOT_FLAGS) -> Callable[..., None]:
    """Add a flag for each key of the configuration to a verb.

    Args:
        verb: Its last parameter, `flags`, receives the values of the flags that were given, by key.
        without: Keys that get no flag.

    Returns:
        A function for `app.command(...)`.
    """
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[:-1]
    keys = [key for key in configuration.sections() if key not in without]
    options = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(k)) for k in keys]

    def command(**values: Any) -> None:
        flags = {key: _parse(key, values.pop(key)) for key in keys if values.get(key) is not None}
        verb(**{k: v for k, v in values.items() if k not in keys}, flags=flags)

    command.__doc__ = verb.__doc__
    command.__name__ = verb.__name__
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + options
    )
    command.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
    return command


def _option(key: str) -> Any:
    field = configuration.field(key)
    kind, values = _kind(field.annotation)
    values = values or list(CHOICES.get(key, ()))
    text = f"{field.description}: {', '.join(values)}" if values else field.description
    default = field.default
    shown = ",".join(str(x) for x in default) if isinstance(default, tuple) else "on" if default is True else default
    help_text = f"{text} [dim]\\[default: {shown}][/dim]" if shown not in (None, False, "") else text
    name = "--" + key.replace("_", "-")
    declaration = f"{name}/--no-{name[2:]}" if kind is bool else name
    panel = _PANELS[configuration.sections()[key]]
    option = typer.Option(
        declaration,
        help=help_text,
        rich_help_panel=panel,
        show_default=False,
        autocompletion=_completion(values) if values else None,
    )
    return Annotated[kind | None, option]


def _completion(values: list[str]) -> Callable[[str], list[str]]:
    """What a shell completes the value of a flag with; several values are separated by commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in values if name.startswith(last)]

    return complete


def _kind(annotation: Any) -> tuple[Any, list[str]]:
    """The type of a flag, and its values if they are a fixed few."""
    if get_origin(annotation) is Literal:
        return str, [str(x) for x in get_args(annotation)]
    for part in (annotation, *get_args(annotation)):
        if part in (bool, int, float, str):
            return part, []
    return str, []  # tuples are given as text with commas


def _parse(key: str, value: Any) -> Any:
    """Split comma-separated text into a list where the key takes several values; `none` is [], `all` is [None].

    >>> _parse("mixup", "input,embed"), _parse("mixup", "none"), _parse("hard_negatives", "3,all")
    (['input', 'embed'], [], ['3', None])
    """
    annotation = configuration.field(key).annotation
    is_tuple = any(get_origin(x) is tuple for x in (annotation, *typing.get_args(annotation)))
    if not is_tuple or not isinstance(value, str):
        return value
    if value == "none":
        return []
    return [None if x == "all" else x.strip() for x in value.split(",")]
