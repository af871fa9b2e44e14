"""Where the data of a run is: the path within a data specification such as `cub:PATH`."""

from __future__ import annotations

import os
from pathlib import Path

from metrix.data import glyphs
from metrix.data.layouts import LAYOUTS


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


def make_absolute(spec: str) -> str:
    """The specification with an absolute path, valid in every working directory.

    >>> make_absolute("glyphs")
    'glyphs'
    """
    path = path_of(spec)
    return spec if path is None else replace_path(spec, os.path.abspath(path))


def exists(spec: str) -> bool:
    """Whether the data is built in, or there is something at its path."""
    path = path_of(spec)
    return path is None or path.exists()


def _prefix(spec: str) -> str:
    name, colon, _ = spec.partition(":")
    return f"{name}:" if colon and name in LAYOUTS else ""
