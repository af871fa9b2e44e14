"""`data.open`: from a name or a path to a dataset, with every error before training starts."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import numpy as np

from metrix.data import glyphs, layouts
from metrix.data.cache import KINDS, SHORT_SIDE, build_cache
from metrix.data.catalogue import UNSPLIT, Catalogue
from metrix.data.dataset import Dataset
from metrix.data.survey import Broken, Progress, decode_all, require_files, tolerate
from metrix.errors import DataError, unknown_choice
from metrix.messages import first_few

MAX_BAD = 0.01


def read_catalogue(
    spec: str | os.PathLike[str],
    *,
    unseen: float = 0.5,
    seed: int = 0,
    layout: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Catalogue:
    """The catalogue of a spec, split; its problems are not yet errors. See `open_dataset`."""
    text = os.fspath(spec)
    if text in glyphs.NAMES:
        return glyphs.load(text).split(unseen, seed)
    prefix, colon, rest = text.partition(":")
    if colon and layout is None and prefix in layouts.NAMES:
        layout, text = prefix, rest
    path = Path(text).expanduser()
    if not path.exists():
        raise DataError(_unknown(text))
    catalogue = layouts.read(path, layout, None if root is None else Path(root).expanduser())
    if UNSPLIT not in catalogue.part_names or (catalogue.problems and len(catalogue.class_names) < 2):
        return catalogue
    return catalogue.split(unseen, seed)


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    unseen: float = 0.5,
    seed: int = 0,
    layout: str | None = None,
    root: str | os.PathLike[str] | None = None,
    max_bad: int | float = MAX_BAD,
    cache: str = "none",
    short_side: int | None = None,
    verify: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A dataset by its name or place.

    `spec` is `glyphs` or `glyphs-mini` (embedded), a folder in an official layout (CUB-200-2011, Cars196,
    Stanford Online Products, In-Shop), a folder of class folders, or a CSV or Parquet manifest. The layout is
    recognised; `cub:PATH` or `layout="cub"` names it.

    unseen, seed: where the layout has no split, the share of classes for the test, and its seed.
    root: where a manifest's images are, if not beside it.
    max_bad: how many images may be broken (a whole number, or a share rounded up). They are listed in one
        warning and left out; more is an error.
    cache: `ram` or `disk` keep decoded images with a shorter side of `short_side` (256); `none` decodes each
        time, from full size unless `short_side` is given. The same `short_side` gives the same pixels.
    verify: decode every image once beforehand. The result is remembered until a file changes.
    progress: called with (images done, images in all) meanwhile.

    >>> open_dataset("glyphs-mini").train  # doctest: +SKIP
    Part(732 images, 60 classes)
    """
    if cache not in KINDS:
        raise unknown_choice("cache", cache, KINDS)
    if short_side is not None and short_side < 1:
        raise DataError(f"short_side is a number of pixels, at least 1; got {short_side}")
    catalogue = read_catalogue(spec, unseen=unseen, seed=seed, layout=layout, root=root)
    if catalogue.pixels is not None:
        return Dataset(catalogue)
    catalogue.require_sound()
    stamp = require_files(catalogue).stamp
    broken: tuple[Broken, ...] = ()
    pixels = None
    if cache != "none":
        short_side = short_side or SHORT_SIDE
        pixels = build_cache(catalogue, cache, stamp, short_side=short_side, workers=workers, progress=progress)
        broken = pixels.broken
    elif verify:
        broken = decode_all(catalogue, stamp, workers=workers, progress=progress).broken
    tolerate(broken, len(catalogue), max_bad)
    emptied = classes_emptied(catalogue, broken)
    if emptied:
        raise DataError(emptied)
    return Dataset(catalogue, broken, pixels, short_side)


def classes_emptied(catalogue: Catalogue, broken: tuple[Broken, ...]) -> str:
    """The message about classes that have only broken images; empty if there are none."""
    left = np.delete(catalogue.labels, [b.position for b in broken])
    counts = np.bincount(left, minlength=len(catalogue.class_names))
    lost = [name for name, number in zip(catalogue.class_names, counts.tolist(), strict=True) if number == 0]
    return f"every image of these classes is broken: {first_few(lost)}; repair them or remove the class" if lost else ""


def _unknown(text: str) -> str:
    near = difflib.get_close_matches(text, glyphs.NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return (
        f"{text!r} is neither an embedded dataset nor a file or folder that exists{hint}; accepted: "
        f"{', '.join(map(repr, glyphs.NAMES))}, a folder, a .csv or .parquet manifest, or <layout>:<path> "
        f"with a layout of {', '.join(layouts.NAMES)}"
    )
