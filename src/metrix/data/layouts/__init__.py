"""The layouts that datasets come in: one file for each, all giving a `Catalogue`.

A new layout is a module with `NAME`, `recognises(root)` and `read(root)`, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from metrix.data.catalogue import Catalogue
from metrix.data.layouts import cars, cub, folder, inshop, manifest, products
from metrix.errors import DataError, unknown_choice


class Layout(NamedTuple):
    """How to recognise and read one layout."""

    recognises: Callable[[Path], bool]
    read: Callable[[Path], Catalogue]


OFFICIAL = {module.NAME: Layout(module.recognises, module.read) for module in (cub, cars, products, inshop)}
NAMES = (*OFFICIAL, folder.NAME, manifest.NAME)


def read(path: Path, layout: str | None = None, root: Path | None = None) -> Catalogue:
    """The catalogue at a path, of the layout given or recognised.

    An official layout is also found one folder below, as in `datasets/CUB_200_2011`. `root` is the folder
    that a manifest's paths are relative to.
    """
    if layout is not None and layout not in NAMES:
        raise unknown_choice("layout", layout, NAMES)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if layout == manifest.NAME or (layout is None and path.is_file()):
        if not manifest.recognises(path):
            raise DataError(f"{path} is no manifest; accepted: a folder, or a {' or '.join(manifest.SUFFIXES)} file")
        return manifest.read(path, root)
    if root is not None:
        raise DataError("root is for manifests, whose images may be elsewhere; a folder is its own root")
    if not path.is_dir():
        raise DataError(f"the layout {layout!r} is a folder; {path} is a file")
    path = path.resolve()
    if layout == folder.NAME:
        return folder.read(path)
    found = _official(path, layout)
    if found is not None:
        return found
    if layout is not None:
        raise DataError(f"{path} does not hold the files of the layout {layout!r}; leave it out to have it recognised")
    return folder.read(path)


def _official(path: Path, layout: str | None) -> Catalogue | None:
    candidates = {layout: OFFICIAL[layout]} if layout is not None else OFFICIAL
    below = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    for places in ([path], below):
        hits = [(place, kind) for place in places for kind in candidates.values() if kind.recognises(place)]
        if len(hits) > 1:
            raise DataError(
                f"{path} holds more than one dataset: {', '.join(place.name for place, _ in hits)}; name one"
            )
        if hits:
            place, kind = hits[0]
            return kind.read(place)
    return None
