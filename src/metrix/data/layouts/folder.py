"""A folder for each class, all in one folder or in a folder for each part (`train`, `test` …)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from metrix.data.catalogue import UNSPLIT, Catalogue, ImageRow
from metrix.data.images import HEIC_SUFFIXES, readable_suffixes
from metrix.errors import DataError
from metrix.messages import count, first_few

NAME = "folder"
PART_FOLDERS = {
    "train": "train",
    "val": "val",
    "validation": "val",
    "test": "test",
    "query": "query",
    "gallery": "gallery",
}


def recognises(root: Path) -> bool:
    """Whether there are folders in the folder."""
    return bool(_folders(root))


def read(root: Path, follow_links: bool = False) -> Catalogue:
    """The catalogue; its images are not split into parts unless there is a folder for each part.

    `follow_links` also looks into folders behind symbolic links, each of them once on a way down.
    """
    folders = _folders(root)
    if not folders:
        raise DataError(f"{root} has no folders; expected one for each class: {root.name}/<class>/<image>")
    rows: list[ImageRow] = []
    classes: list[str] = []
    ignored: list[str] = []
    suffixes = readable_suffixes()
    for part, folder in _parts(root, folders):
        for class_folder in _folders(folder):
            classes.append(class_folder.name)
            for path in _files(class_folder, follow_links):
                relative = path.relative_to(root).as_posix()
                if path.suffix.lower() in suffixes and (path.is_file() or not path.exists()):
                    rows.append(ImageRow(relative, class_folder.name, part))
                else:
                    ignored.append(relative)
        ignored += [p.relative_to(root).as_posix() for p in sorted(folder.iterdir()) if p.is_file() and _visible(p)]
    heic = sum(Path(name).suffix.lower() in HEIC_SUFFIXES for name in ignored)
    hint = f"{count(heic, 'HEIC image')} cannot be read without pip install metrix[heic]" if heic else ""
    if not rows:
        raise DataError(f"{root} has {count(len(folders), 'folder')} without any images{f'; {hint}' if hint else ''}")
    notes = [hint] if hint else []
    empty = sorted(set(classes) - {row.class_name for row in rows})
    if empty:
        verb = "has" if len(empty) == 1 else "have"
        notes.append(
            f"{count(len(empty), 'folder')} {verb} no images and {'is' if verb == 'has' else 'are'} no class: "
            f"{first_few(empty)}"
        )
    if ignored:
        verb = "is not an image" if len(ignored) == 1 else "are not images"
        notes.append(f"{count(len(ignored), 'file')} that {verb} in a class folder: {first_few(ignored)}")
    return Catalogue.from_rows(NAME, root, rows, class_names=sorted({row.class_name for row in rows}), notes=notes)


def _parts(root: Path, folders: list[Path]) -> list[tuple[str, Path]]:
    """Each part with its folder; the root as the only one if its folders are classes."""
    parts = parts_of(root, [folder.name for folder in folders])
    return [(UNSPLIT, root)] if parts is None else [(parts[folder.name], folder) for folder in folders]


def parts_of(root: Path, names: list[str]) -> dict[str, str] | None:
    """The part that each folder is of, by its name; None if the folders are not those of parts.

    Raises:
        DataError: some parts are missing, or there twice.
    """
    parts = {name: PART_FOLDERS.get(name.lower(), "") for name in names}
    if "" in parts.values():
        return None
    given = set(parts.values())
    if given - {"val"} not in ({"train", "test"}, {"train", "query", "gallery"}) or len(given) < len(names):
        raise DataError(
            f"{root}: expected the folders 'train' and 'test', or 'train', 'query' and 'gallery', each with or without "
            f"'val' (training classes for model selection), or a folder for each class; got {first_few(names)}"
        )
    return parts


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and _visible(p))


def _files(folder: Path, follow_links: bool) -> list[Path]:
    return sorted(path for path in walk_files(folder, follow_links) if _visible(path))


def walk_files(folder: Path, follow_links: bool = False) -> Iterator[Path]:
    """All files below a folder; with `follow_links` also those in folders behind symbolic links.

    A link to a folder that the way down to it came through is left out: it would never end.
    """
    above = {str(folder): {os.path.realpath(folder)}}  # the real folders on the way down to each folder
    for place, folders, names in os.walk(folder, followlinks=follow_links):
        if follow_links:
            on_the_way = above.pop(place)
            real = {name: os.path.realpath(os.path.join(place, name)) for name in folders}
            folders[:] = [name for name in folders if real[name] not in on_the_way]
            above |= {os.path.join(place, name): {*on_the_way, real[name]} for name in folders}
        yield from (Path(place) / name for name in names)


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")
