"""Flags from the configuration: every key of `metrix.train.config` is one, with its own help text.

pydantic and the configuration take a moment to import, which `--help` of other verbs should not pay;
verbs that need these flags import this module when they are registered, nothing else does.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from metrix.train import config as configuration

_PANELS = {"data": "Data", "model": "Model", "loss": "Loss", "mixing": "Mixup", "train": "Training"}


def with_config_flags(verb: Callable[..., None], without: Collection[str] = ("data",)) -> Callable[..., None]:
    """A verb whose last parameter `flags` becomes one option for each key; only given ones are passed."""
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[:-1]
    keys = [key for key in configuration.sections() if key not in without]
    options = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(k)) for k in keys]

    def command(**values: Any) -> None:
        flags = {key: _value(key, values.pop(key)) for key in keys if values.get(key) is not None}
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
    kind, choices = _kind(field.annotation)
    text = field.description + (f" ({', '.join(choices)})" if choices and "," not in field.description else "")
    default = field.default
    shown = ",".join(str(x) for x in default) if isinstance(default, tuple) else default
    help_text = text if shown is None else f"{text} [dim]\\[default: {shown}][/dim]"
    name = "--" + key.replace("_", "-")
    declaration = f"{name}/--no-{name[2:]}" if kind is bool else name
    panel = _PANELS[configuration.sections()[key]]
    option = typer.Option(declaration, help=help_text, rich_help_panel=panel, show_default=False)
    return Annotated[kind | None, option]


def _kind(annotation: Any) -> tuple[Any, list[str]]:
    """The type of a flag, and the values it takes if they are few."""
    if get_origin(annotation) is Literal:
        return str, [str(x) for x in get_args(annotation)]
    for part in (annotation, *get_args(annotation)):
        if part in (bool, int, float, str):
            return part, []
    return str, []  # tuples are given with commas


def _value(key: str, value: Any) -> Any:
    """Comma-separated text as the list that a tuple key takes; `none` is an empty one, `all` is None."""
    annotation = configuration.field(key).annotation
    is_tuple = any(get_origin(x) is tuple for x in (annotation, *typing.get_args(annotation)))
    if not is_tuple or not isinstance(value, str):
        return value
    if value == "none":
        return []
    return [None if x == "all" else x.strip() for x in value.split(",")]
