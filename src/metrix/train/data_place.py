"""Where the data of a run is: the path within a data specification such as `cub:PATH`, and the root of a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from metrix.data import glyphs, layouts
from metrix.data.layouts import LAYOUTS
from metrix.train.config import Config


def path_of(spec: str) -> Path | None:
    """The path of a specification; None for built-in data.

    >>> path_of("cub:data/birds"), path_of("glyphs")
    (PosixPath('data/birds'), None)
    """
    if spec in glyphs.NAMES:
        return None
    return Path(spec[len(_prefix(spec)) :]).expanduser()


def replace_path(spec: str, path: str | os.PathLike[str]) -> str:
    """The specification with another path.

    >>> replace_path("cub:data/birds", "/data/birds")
    'cub:/data/birds'
    """
    return f"{_prefix(spec)}{os.fspath(path)}"


def with_absolute_paths(config: Config) -> Config:
    """The configuration with absolute paths of its data, valid in every working directory.

    >>> with_absolute_paths(Config()).data.data
    'glyphs'
    """
    spec, root = config.data.data, config.data.root
    path = path_of(spec)
    values = {} if path is None else {"data": replace_path(spec, os.path.abspath(path))}
    return config.with_values(values if root is None else {**values, "root": os.path.abspath(Path(root).expanduser())})


def exists(spec: str) -> bool:
    """Whether the data is built in, or there is something at its path."""
    path = path_of(spec)
    return path is None or layouts.exists(path)


def _prefix(spec: str) -> str:
    name, colon, _ = spec.partition(":")
    return f"{name}:" if colon and name in LAYOUTS else ""
