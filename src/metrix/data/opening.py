"""`data.open`: from a name or a path to a dataset; errors in the data are raised here, before training."""

from __future__ import annotations

import difflib
import os
import warnings
from pathlib import Path

from metrix.data import glyphs, layouts
from metrix.data.cache import KINDS, SHORT_SIDE, build_cache
from metrix.data.catalogue import UNSPLIT, Catalogue
from metrix.data.dataset import Dataset
from metrix.data.layouts import hub
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.shards import SUFFIX as SHARD
from metrix.data.survey import (
    Broken,
    decode_all,
    describe_broken,
    describe_emptied_classes,
    describe_missing,
    describe_too_many_broken,
    survey,
)
from metrix.errors import DataError, MetrixWarning, unknown_choice
from metrix.files import warn_not_cached
from metrix.messages import OnProgress

MAX_BAD = 0.01  # fraction of broken images that is tolerated


def check_named(spec: str) -> None:
    """Raise `DataError` for a specification without a name or a path: that would be the current folder.

    >>> check_named("hf:")
    Traceback (most recent call last):
    ...
    metrix.errors.DataError: data: expected a name or a path after 'hf:', got none; the current folder is 'hf:.'
    """
    prefix, colon, rest = spec.partition(":")
    if spec and (rest or not colon or prefix not in layouts.LAYOUTS):
        return
    after = f" after {spec!r}" if spec else ""
    raise DataError(f"data: expected a name or a path{after}, got none; the current folder is {f'{spec}.'!r}")


def read_catalogue(
    spec: str | os.PathLike[str],
    *,
    unseen: float = 0.5,
    seed: int = 0,
    layout: str | None = None,
    root: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
    progress: OnProgress | None = None,
) -> Catalogue:
    """The images, classes and parts of a dataset, without opening an image; arguments as those of `open_dataset`.

    Faults of the data are listed in `problems` of the catalogue, not raised.

    >>> read_catalogue("glyphs-mini", unseen=0.25).part_names
    ('train', 'test')
    """
    text = os.fspath(spec)
    check_named(text)
    columns = ColumnChoice(image_column, label_column)
    if text in glyphs.NAMES:
        columns.refuse(text)
        return glyphs.load(text).split(unseen, seed)
    prefix, colon, rest = text.partition(":")
    if colon and layout is None and prefix in layouts.LAYOUTS:
        layout, text = prefix, rest
    if layout == hub.NAME:
        if root is not None:
            raise DataError(f"root={root} with {hub.PREFIX}{text}: root (--root) is for manifests only; remove it")
        catalogue = hub.read(text, columns, progress)
    else:
        path = Path(text).expanduser()
        if not layouts.exists(path):
            raise DataError(_describe_unknown(text))
        base = None if root is None else Path(root).expanduser()
        if base is not None and not base.is_dir():
            raise DataError(f"root: expected a folder, got {base}")
        catalogue = layouts.read(path, layout, base, follow_links=follow_links, columns=columns, progress=progress)
    if unseen == 0 and not catalogue.problems:
        return catalogue.split(0)
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
    follow_links: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
    max_bad: int | float = MAX_BAD,
    cache: str = "none",
    short_side: int | None = None,
    verify: bool = True,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Dataset:
    """Open a dataset by its name or path.

    Args:
        spec: `glyphs` or `glyphs-mini` (built in), a folder in an official layout (CUB-200-2011, Cars196, Stanford
            Online Products, In-Shop), a folder of class folders, tar files of images (one, a folder of them, or a
            pattern such as `photos-*.tar`), Parquet files with a column of images (one, or a folder of them), a data
            set of Hugging Face (`hf:owner/name`), a CSV, TSV or Parquet manifest, or vectors (.npz, .npy, or .parquet
            with a column `vector`). The layout is recognised; `cub:PATH` names it.
        unseen: fraction of the classes kept for testing, where the layout has no split of its own; 0 puts everything
            into the training part, also where it has one.
        seed: seed of that split.
        layout: the layout, as in `cub:PATH`.
        root: the folder that the paths of a manifest are relative to; by default its own.
        follow_links: allow symbolic links that lead outside the folder of the data.
        image_column: the column of images in Parquet files and data of Hugging Face; found if there is only one.
        label_column: the column of labels there.
        max_bad: how many images may be broken: a number, or a fraction below 1 (rounded up). Broken images are
            listed in one warning and skipped.
        cache: `ram` or `disk` keeps decoded images, shrunk to a shorter side of `short_side` pixels (default 256);
            `none` decodes a file each time it is needed.
        short_side: also without a cache, shrink images to this length; the pixels are the same as with one.
        verify: decode every image once beforehand. The result is cached until a file changes.
        workers: threads for decoding; by default one for each processor.
        progress: called with (done, in all) while tar files are listed, and then while images are decoded.

    Raises:
        DataError: if the data cannot be used; the message lists what is wrong with it.

    >>> open_dataset("glyphs-mini").train.num_classes
    60
    """
    if cache not in KINDS:
        raise unknown_choice("cache", cache, KINDS)
    if short_side is not None and short_side < 1:
        raise DataError(f"short_side: expected a number of pixels ≥ 1, got {short_side}")
    catalogue = read_catalogue(
        spec,
        unseen=unseen,
        seed=seed,
        layout=layout,
        root=root,
        follow_links=follow_links,
        image_column=image_column,
        label_column=label_column,
        progress=progress,
    )
    return open_images(
        catalogue,
        max_bad=max_bad,
        cache=cache,
        short_side=short_side,
        verify=verify,
        workers=workers,
        progress=progress,
    )


def open_images(
    catalogue: Catalogue,
    *,
    max_bad: int | float = MAX_BAD,
    cache: str = "none",
    short_side: int | None = None,
    verify: bool = True,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> Dataset:
    """The dataset of a catalogue, whose images are checked; arguments as those of `open_dataset`."""
    catalogue.require_sound()
    if catalogue.in_memory:
        return Dataset(catalogue)
    found = survey(catalogue)
    _raise_if(describe_missing(catalogue, found))
    broken: tuple[Broken, ...] = ()
    pixels = None
    if cache != "none":
        short_side = short_side or SHORT_SIDE
        try:
            pixels = build_cache(
                catalogue, cache, found.stamp, short_side=short_side, workers=workers, progress=progress
            )
            broken = pixels.broken
        except OSError as error:
            warn_not_cached("decoded images", error)  # they have the same pixels without a cache
    if pixels is None and (verify or cache != "none"):
        broken = decode_all(catalogue, found.stamp, workers=workers, progress=progress).broken
    _raise_if(describe_too_many_broken(catalogue, broken, max_bad))
    _raise_if(describe_emptied_classes(catalogue, broken))
    if broken:
        warnings.warn(f"skipping images: {describe_broken(catalogue, broken)}", MetrixWarning, stacklevel=3)
    return Dataset(catalogue, broken, pixels, short_side)


def _raise_if(problem: str) -> None:
    if problem:
        raise DataError(problem)


def _describe_unknown(text: str) -> str:
    near = difflib.get_close_matches(text, glyphs.NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"no dataset {text!r}: neither a built-in one nor an existing file or folder; {hint}expected "
        f"{', '.join(map(repr, glyphs.NAMES))}, a folder, a manifest ({', '.join(layouts.manifest.SUFFIXES)}), "
        f"tar files ({SHARD}), Parquet files with images, {hub.PREFIX}owner/name, vectors "
        f"({', '.join(layouts.vectors.SUFFIXES)}), or LAYOUT:PATH with one of the layouts "
        f"{', '.join(layouts.LAYOUTS)}"
    )
