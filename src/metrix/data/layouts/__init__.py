"""The layouts in which datasets are stored: one module each, all reading into a `Catalogue`.

A new layout is a module with `NAME`, `recognises(root)` and `read(root)`, and an entry of `LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from metrix.core.choices import Choice, by_name
from metrix.data.catalogue import Catalogue
from metrix.data.layouts import cars, cub, folder, hub, inshop, manifest, products, shards, tables, vectors
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.shards import SUFFIX as SHARD
from metrix.errors import DataError, unknown_choice
from metrix.messages import OnProgress


@dataclass(frozen=True)
class Layout(Choice):
    """A layout by name.

    recognises   whether the path has the files of the layout
    read         makes the catalogue
    official     that of a published dataset, which is also recognised one folder below the given path
    """

    recognises: Callable[[Path], bool]
    read: Callable[..., Catalogue]
    official: bool = True


LAYOUTS: dict[str, Layout] = by_name(
    Layout(
        cub.NAME,
        "CUB-200-2011, with images.txt and image_class_labels.txt",
        "Wah et al., 2011",
        cub.recognises,
        cub.read,
    ),
    Layout(
        cars.NAME,
        "Cars196, with cars_annos.mat or the devkit",
        "Krause et al., 3DRR 2013",
        cars.recognises,
        cars.read,
    ),
    Layout(
        products.NAME,
        "Stanford Online Products, with Ebay_train.txt and Ebay_test.txt",
        "Oh Song et al., CVPR 2016",
        products.recognises,
        products.read,
    ),
    Layout(
        inshop.NAME,
        "In-Shop Clothes Retrieval, with list_eval_partition.txt",
        "Liu et al., CVPR 2016",
        inshop.recognises,
        inshop.read,
    ),
    Layout(folder.NAME, "a folder for each class", "", folder.recognises, folder.read, official=False),
    Layout(shards.NAME, "tar files of images", "", shards.recognises, shards.read, official=False),
    Layout(tables.NAME, "Parquet files with a column of images", "", tables.recognises, tables.read, official=False),
    Layout(
        hub.NAME,
        "a data set of Hugging Face: hf:owner/name, or a folder of save_to_disk",
        "",
        hub.recognises,
        hub.read,
        official=False,
    ),
    Layout(manifest.NAME, "a CSV, TSV or Parquet table", "", manifest.recognises, manifest.read, official=False),
    Layout(
        vectors.NAME,
        "precomputed vectors: a Parquet table with a column vector, or NumPy arrays",
        "",
        vectors.recognises,
        vectors.read,
        official=False,
    ),
)


def read(
    path: Path,
    layout: str | None = None,
    root: Path | None = None,
    *,
    follow_links: bool = False,
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    progress: OnProgress | None = None,
) -> Catalogue:
    """The catalogue of the dataset at a path.

    Args:
        path: a folder, a manifest, a Parquet file, a tar file, or a pattern of tar files.
        layout: a name of `LAYOUTS`; recognised if None.
        root: the folder that the paths of a manifest are relative to; by default the manifest's own.
        follow_links: allow symbolic links that lead outside the root, and look into folders behind links.
        columns: those of images and labels in Parquet files, if they are not to be found.
        progress: called with (files done, files in all) while images in tar files or Parquet files are listed.
    """
    found = _read(path, layout, root, follow_links, columns, progress)
    if found.layout not in (tables.NAME, hub.NAME):
        columns.refuse(f"the layout {found.layout}")
    return replace(found, follow_links=follow_links or found.follow_links)


def exists(path: Path) -> bool:
    """Whether there is something at a path, or tar files that a pattern such as `photos-*.tar` names."""
    return path.exists() or shards.is_pattern(path)


def _read(
    path: Path,
    layout: str | None,
    root: Path | None,
    follow_links: bool,
    columns: ColumnChoice,
    progress: OnProgress | None,
) -> Catalogue:
    if layout is not None and layout not in LAYOUTS:
        raise unknown_choice("layout", layout, LAYOUTS)
    if not exists(path):
        raise DataError(f"no such file or folder: {path}")
    if layout == vectors.NAME or (layout is None and vectors.recognises(path)):
        if root is not None:
            raise DataError(f"root={root} with the vectors {path}: root is for manifests only; remove it")
        return vectors.read(path)
    if layout == shards.NAME or (layout is None and not path.is_dir() and shards.recognises(path)):
        if root is not None:
            raise DataError(f"root={root} with the tar files {path}: root (--root) is for manifests only; remove it")
        return shards.read(path, follow_links, progress)
    if layout == tables.NAME or (layout is None and path.is_file() and tables.recognises(path)):
        if root is not None:
            raise DataError(f"root={root} with the images of {path}: root (--root) is for manifests only; remove it")
        return tables.read(path, columns, progress)
    if layout == hub.NAME or (layout is None and hub.recognises(path)):
        return hub.read(str(path), columns, progress)
    if layout == manifest.NAME or (layout is None and path.is_file()):
        if not manifest.recognises(path):
            raise DataError(
                f"{path} is not a manifest; expected a folder, a {', '.join(manifest.SUFFIXES)} file, an uncompressed "
                f"tar file ({SHARD}), or vectors ({', '.join(vectors.SUFFIXES)})"
            )
        return manifest.read(path, root)
    if root is not None:
        raise DataError(f"root={root} with the folder {path}: root (--root) is for manifests only; remove it")
    if not path.is_dir():
        raise DataError(f"layout {layout!r}: expected a folder, got the file {path}")
    path = path.resolve()
    if layout == folder.NAME:
        return folder.read(path, follow_links)
    found = _read_official(path, layout)
    if found is not None:
        return found
    if layout is not None:
        raise DataError(
            f"{path} does not have the files of the layout {layout!r} ({LAYOUTS[layout].line}); "
            "check the path, or remove the layout to have it recognised"
        )
    if tables.recognises(path):
        return tables.read(path, columns, progress)
    return shards.read(path, follow_links, progress) if shards.recognises(path) else folder.read(path, follow_links)


def _read_official(path: Path, layout: str | None) -> Catalogue | None:
    candidates = [entry for entry in LAYOUTS.values() if entry.official and layout in (None, entry.name)]
    below = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    for places in ([path], below):
        hits = [(place, entry) for place in places for entry in candidates if entry.recognises(place)]
        if len(hits) > 1:
            raise DataError(
                f"{path} contains more than one dataset: {', '.join(place.name for place, _ in hits)}; "
                "give the folder of one of them"
            )
        if hits:
            place, entry = hits[0]
            return entry.read(place)
    return None
