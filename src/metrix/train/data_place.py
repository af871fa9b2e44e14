"""Where the data of a run is: the path within a data specification such as `cub:PATH`, and the root of a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from metrix.data import glyphs, layouts
from metrix.data.layouts import LAYOUTS, hub
from metrix.data.layouts.hub import find_folder, is_named
from metrix.data.opening import check_named
from metrix.train.config import Config


def path_of(spec: str) -> Path | None:
    """The path of a specification; None for built-in data, and for data of Hugging Face that are named.

    >>> path_of("cub:data/birds"), path_of("glyphs"), path_of("hf:owner/birds")
    (PosixPath('data/birds'), None, None)

    Raises:
        DataError: it names neither data nor a path.
    """
    check_named(spec)
    if spec in glyphs.NAMES:
        return None
    rest = spec[len(_prefix(spec)) :]
    if _prefix(spec) == hub.PREFIX and is_named(rest):
        return None
    return Path(rest).expanduser()


def for_commands(config: Config) -> list[str]:
    """The data of a configuration as the words of a command that reads all of them, such as `metrix index`.

    >>> for_commands(Config().with_values({"data": "hf:owner/cars", "label_column": "make"}))
    ['hf:owner/cars', '--label-column', 'make']
    """
    spec, choice = config.data.data, config.data
    place = spec if _prefix(spec) == hub.PREFIX else str(path_of(spec) or spec)
    flags = {"--image-column": choice.image_column, "--label-column": choice.label_column}
    return [place, *(word for flag, name in flags.items() if name is not None for word in (flag, name))]


def replace_path(spec: str, path: str | os.PathLike[str]) -> str:
    """The specification with another path.

    >>> replace_path("cub:data/birds", "/data/birds")
    'cub:/data/birds'
    """
    return f"{_prefix(spec)}{os.fspath(path)}"


def with_absolute_paths(config: Config) -> Config:
    """The configuration with absolute paths of its data, teacher and old run, valid in every working directory.

    >>> with_absolute_paths(Config()).data.data
    'glyphs'
    """
    spec, root = config.data.data, config.data.root
    path = path_of(spec)
    values: dict[str, Any] = {} if path is None else {"data": replace_path(spec, os.path.abspath(path))}
    if root is not None:
        values["root"] = _absolute(root)
    if config.distil.teacher is not None:
        values["teacher"] = _absolute(config.distil.teacher)
    if config.distil.unlabelled:
        values["unlabelled"] = [_absolute(folder) for folder in config.distil.unlabelled]
    if config.train.compatible_with is not None:
        values["compatible_with"] = _absolute(config.train.compatible_with)
    return config.with_values(values)


def _absolute(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())


def exists(spec: str) -> bool:
    """Whether the data is built in, or there is something at its path."""
    path = path_of(spec)
    if path is None or layouts.exists(path):
        return True
    return _prefix(spec) == hub.PREFIX and find_folder(str(path)) is not None


def _prefix(spec: str) -> str:
    name, colon, _ = spec.partition(":")
    return f"{name}:" if colon and name in LAYOUTS else ""
