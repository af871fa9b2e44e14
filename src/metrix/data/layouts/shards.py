"""Tar files of images, "shards": one, all of a folder, or all that match a pattern such as `photos-*.tar`.

The class of an image is the folder that it is in, within its tar file, or what `KEY.cls` or `KEY.json` beside it says,
as in shards of WebDataset. If the first folder of all, above or in the tar files, is `train`, `test` and so on, it is
the part.
"""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from metrix.data.catalogue import UNSPLIT, Catalogue, ImageRow
from metrix.data.images import HEIC_SUFFIXES, readable_suffixes
from metrix.data.layouts.folder import parts_of, walk_files
from metrix.data.shards import SUFFIX, open_shard
from metrix.errors import DataError
from metrix.messages import OnProgress, count, first_few

NAME = "shards"


class ShardImage(NamedTuple):
    """An image in a tar file: its path below the root, its label, and why it cannot be read (empty if it can)."""

    path: str  # with forward slashes
    label: str | None
    reason: str = ""


class ShardImages(NamedTuple):
    """The images in tar files, and remarks on the files."""

    images: list[ShardImage]
    notes: list[str]


def recognises(path: Path) -> bool:
    """Whether the path is a tar file, a pattern of tar files, or a folder with tar files and no images."""
    if is_pattern(path) or (path.suffix.lower() == SUFFIX and path.is_file()):
        return True
    if not path.is_dir():
        return False
    found, suffixes = False, readable_suffixes()
    for file in walk_files(path):
        suffix = file.suffix.lower()
        if suffix in suffixes:
            return False
        found = found or (suffix == SUFFIX and not file.name.startswith("."))
    return found


def is_pattern(path: Path) -> bool:
    """Whether a path is not a file but a pattern of names of tar files, such as `photos-*.tar`."""
    return path.suffix.lower() == SUFFIX and glob.has_magic(str(path)) and not os.path.lexists(path)


def list_images_in(root: Path, files: Sequence[Path], progress: OnProgress | None = None) -> ShardImages:
    """The images in tar files, by file and name, without those that are hidden.

    Args:
        root: a folder that all the files are in, or below.
        files: the tar files.
        progress: called with (tar files done, tar files in all) while their members are listed.

    Raises:
        DataError: a file is damaged.
    """
    suffixes, images, notes = readable_suffixes(), list[ShardImage](), list[str]()
    unread = 0
    for done, file in enumerate(files, start=1):
        below = file.relative_to(root).as_posix()
        listing = open_shard(file).list()
        for member in listing.members:
            suffix = posixpath.splitext(member.name)[1].lower()
            if suffix in suffixes:
                images.append(ShardImage(f"{below}/{member.name}", member.label))
            unread += suffix in HEIC_SUFFIXES - suffixes
        for name, reason in listing.skipped:
            if posixpath.splitext(name)[1].lower() in suffixes:
                images.append(ShardImage(f"{below}/{name}", None, reason))
        notes += [f"{below} {note}" for note in listing.notes]
        if progress is not None:
            progress(done, len(files))
    if unread:
        notes.append(f"{count(unread, 'HEIC image')} cannot be read without pip install metrix[heic]")
    return ShardImages(images, notes)


def read(path: Path, follow_links: bool = False, progress: OnProgress | None = None) -> Catalogue:
    """The catalogue; its images are not split into parts unless their first folders are those of parts."""
    root, files = find_shards(path, follow_links)
    found = list_images_in(root, files, progress)
    images = [image for image in found.images if not image.reason]
    skipped = [f"{image.path} ({image.reason})" for image in found.images if image.reason]
    nameless = [image.path for image in images if image.label is None]
    if nameless:
        raise DataError(
            f"{count(len(nameless), 'image')} of the tar files have no class: {first_few(nameless)}; expected a folder "
            "for each class in the tar file (cats/1.jpg), or a label beside each image (1.cls or 1.json)"
        )
    notes = [*found.notes]
    if skipped:
        notes.append(f"{count(len(skipped), 'image')} skipped: {first_few(skipped)}")
    parts = split_parts([image.path for image in images], path)
    rows = [ImageRow(image.path, str(image.label), part) for image, part in zip(images, parts, strict=True)]
    return Catalogue.from_rows(NAME, root, rows, class_names=sorted({row.class_name for row in rows}), notes=notes)


def split_parts(paths: Sequence[str], given: Path) -> Iterator[str]:
    """The part of each image by the first folder of its path, if these are all folders of parts."""
    tops = [next((p for p in path.split("/")[:-1] if not p.lower().endswith(SUFFIX)), "") for path in paths]
    names = sorted(set(tops))
    parts = parts_of(given, names) if names else None
    return (UNSPLIT if parts is None else parts[top] for top in tops)


def find_shards(path: Path, follow_links: bool = False) -> tuple[Path, list[Path]]:
    """The folder of the tar files at a path, and the files in order.

    Args:
        path: a tar file, a pattern, or a folder.
        follow_links: look into folders behind symbolic links.

    Raises:
        DataError: there is none.
    """
    if is_pattern(path):
        files = sorted(Path(name).parent.resolve() / Path(name).name for name in glob.glob(str(path)))
        if not files:
            raise DataError(f"{path}: expected tar files, got none with such a name")
        return Path(os.path.commonpath([file.parent for file in files])), files
    path = path.resolve()
    if path.is_file():
        return path.parent, [path]
    found = sorted(file for file in walk_files(path, follow_links) if file.suffix.lower() == SUFFIX)
    files = [file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise DataError(f"{path}: expected tar files (NAME{SUFFIX}), got none")
    return path, files
