"""A folder for each class, all in one folder or in a folder for each part (`train`, `test` …)."""

from __future__ import annotations

import os
from pathlib import Path

from metrix.data.catalogue import UNSPLIT, Catalogue, ImageRow
from metrix.data.images import HEIC_SUFFIXES, SUFFIXES, reads_heic
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


def read(root: Path) -> Catalogue:
    """The catalogue; its images are not split into parts unless there is a folder for each part."""
    folders = _folders(root)
    if not folders:
        raise DataError(f"{root} has no folders; expected one for each class: {root.name}/<class>/<image>")
    rows: list[ImageRow] = []
    classes: list[str] = []
    ignored: list[str] = []
    suffixes = SUFFIXES | HEIC_SUFFIXES if reads_heic() else SUFFIXES
    for part, folder in _parts(root, folders):
        for class_folder in _folders(folder):
            classes.append(class_folder.name)
            for path in _files(class_folder):
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
    if ignored:
        notes.append(f"{count(len(ignored), 'file')} that are not images in a class folder: {first_few(ignored)}")
    return Catalogue.from_rows(NAME, root, rows, class_names=sorted(set(classes)), notes=notes)


def _parts(root: Path, folders: list[Path]) -> list[tuple[str, Path]]:
    """Each part with its folder; the root as the only one if its folders are classes."""
    names = [folder.name.lower() for folder in folders]
    if not set(names) <= PART_FOLDERS.keys():
        return [(UNSPLIT, root)]
    parts = {PART_FOLDERS[name] for name in names}
    if parts - {"val"} not in ({"train", "test"}, {"train", "query", "gallery"}) or len(parts) < len(names):
        raise DataError(
            f"{root}: expected the folders 'train' and 'test', or 'train', 'query' and 'gallery', each with or without "
            f"'val' (training classes for model selection), or a folder for each class; got {first_few(names)}"
        )
    return [(PART_FOLDERS[name], folder) for name, folder in zip(names, folders, strict=True)]


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and _visible(p))


def _files(folder: Path) -> list[Path]:
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if _visible(path))


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")
