"""Where the images are that a user named: in folders, files, tar files, manifests or lists of paths."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from metrix.data import layouts
from metrix.data.catalogue import Box
from metrix.data.images import HEIC_SUFFIXES, readable_suffixes
from metrix.data.layouts import hub, shards, tables
from metrix.data.layouts.folder import PART_FOLDERS, walk_files
from metrix.data.layouts.manifest import BOX, infer_types, parse_box, read_columns, read_path
from metrix.data.layouts.manifest import SUFFIXES as MANIFESTS
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.shards import SUFFIX as SHARD
from metrix.data.shards import find_member, image_status
from metrix.errors import DataError, InvalidInput
from metrix.messages import first_few
from metrix.search import LABEL
from metrix.search.items import RESERVED

Cut = TypeVar("Cut")

LISTS = (".txt", ".lst")
EXPECTED = (
    f"a folder, an image, a tar file of images (.tar), a Parquet file with images, {hub.PREFIX}owner/name, a manifest "
    f"({', '.join(MANIFESTS)}), a list of paths (.txt), or glyphs, glyphs-mini"
)


@dataclass(frozen=True)
class NamedImage:
    """An image that a user named."""

    path: Path  # absolute
    label: str | None = None
    box: Box | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it cannot be read, if that is known


def find_share(
    given: Sequence[str],
    root: Path | None,
    follow_links: bool,
    columns: ColumnChoice,
    progress: Callable[[int, int], None] | None,
    share: tuple[int, int],
) -> tuple[list[NamedImage], list[Path], str]:
    """The images of a process, the folders that all are in, and a hash of all of them if there are other processes."""
    rank, world = share
    places = [Path(one).expanduser() for one in given]
    if world > 1 and all(map(shards.recognises, places)):
        found = [shards.find_shards(place, follow_links) for place in places]
        files = [file for _, here in found for file in here]
        if len(files) >= world:
            base = Path(os.path.commonpath([folder for folder, _ in found]))
            listed = shards.list_images_in(base, _cut(files, rank, world), progress).images
            mine = [NamedImage(base / one.path, one.label, reason=one.reason) for one in listed]
            return mine, [base], _hash_files(files)
    images: list[NamedImage] = []
    folders: list[Path] = []
    for one, place in zip(given, places, strict=True):
        tabular = _in_tables(one, place, columns, progress)
        here, folder = _find(place, root, follow_links, progress) if tabular is None else tabular
        images += here
        folders.append(folder)
    if world == 1:
        return images, folders, ""
    if len(images) < world:
        raise InvalidInput(f"WORLD_SIZE: expected at most {len(images)}, as there are images, got {world}")
    return _cut(images, rank, world), folders, _hash_files([image.path for image in images])


def _in_tables(
    given: str, path: Path, columns: ColumnChoice, progress: Callable[[int, int], None] | None
) -> tuple[list[NamedImage], Path] | None:
    """The images in tables at a place, and the folder that they are in; None if there are no tables with images."""
    prefix, _, rest = given.partition(":")
    if not path.exists() and prefix == hub.NAME:
        root, found = hub.list_images_at(rest, columns, progress, None)
    elif path.is_dir() and hub.recognises(path):
        root, found = hub.list_images_at(str(path), columns, progress, None)
    elif (not path.exists() and prefix == tables.NAME) or tables.recognises(path):
        root, files = tables.find_tables(Path(rest).expanduser() if prefix == tables.NAME else path)
        found = tables.list_images_in(files, columns, progress, None)
    else:
        columns.refuse(given)
        return None
    images = [
        NamedImage(
            Path(one.path),
            one.label or None,
            None,
            {k: v for k, v in one.columns.items() if k not in (*RESERVED, LABEL)},
        )
        for one in found.images
    ]
    return images, root


def _cut(items: list[Cut], rank: int, world: int) -> list[Cut]:
    """The share of a process: the shares of all, one after another, are everything."""
    return items[len(items) * rank // world : len(items) * (rank + 1) // world]


def _hash_files(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            status: tuple[int, ...] = image_status(file)
        except OSError:
            status = ()
        digest.update(repr((os.fspath(file), *status)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _find(
    path: Path, root: Path | None, follow_links: bool, progress: Callable[[int, int], None] | None
) -> tuple[list[NamedImage], Path]:
    """The images at a path, and the folder that they are in."""
    if shards.is_pattern(path) or (path.suffix.lower() == SHARD and path.is_file()):
        return _in_shards(path, follow_links, progress)
    if (member := find_member(path)) is not None:
        shard, name = member
        return [NamedImage(Path(shard.path).resolve() / name)], Path(shard.path).resolve().parent
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {EXPECTED}")
    path = path.resolve()
    if path.is_dir():
        if shards.recognises(path):
            return _in_shards(path, follow_links, progress)
        return list(_in_folder(path, follow_links)), path
    kind = path.suffix.lower()
    if kind in readable_suffixes():
        return [NamedImage(path)], path.parent
    if kind in LISTS:
        return list(_in_list(path, root)), path.parent
    if kind in MANIFESTS:
        return list(_in_manifest(path, root)), path.parent
    if kind in HEIC_SUFFIXES:
        raise InvalidInput(f"{path.name}: HEIC images cannot be read without pip install metrix[heic]")
    raise InvalidInput(f"{path.name}: expected {EXPECTED}, got a file of another kind")


def _in_folder(folder: Path, follow_links: bool) -> Iterator[NamedImage]:
    if any(layout.official and layout.recognises(folder) for layout in layouts.LAYOUTS.values()):
        catalogue = layouts.read(folder, follow_links=follow_links)
        for n in range(len(catalogue)):
            yield NamedImage(catalogue.file(n), catalogue.class_names[catalogue.labels[n]], catalogue.box(n))
        return
    suffixes = readable_suffixes()
    found = (file.relative_to(folder) for file in walk_files(folder, follow_links))
    files = sorted(file for file in found if file.suffix.lower() in suffixes and _visible(file))
    tops = {file.parts[0] for file in files if len(file.parts) > 1}
    labelled = all(len(file.parts) > 1 for file in files)  # images beside the folders: these are no classes
    depth = 1 if tops and {top.lower() for top in tops} <= PART_FOLDERS.keys() else 0
    for file in files:
        label = file.parts[depth] if labelled and len(file.parts) > depth + 1 else None
        yield NamedImage(folder / file, label)


def _in_shards(
    path: Path, follow_links: bool, progress: Callable[[int, int], None] | None
) -> tuple[list[NamedImage], Path]:
    root, files = shards.find_shards(path, follow_links)
    found = shards.list_images_in(root, files, progress)
    return [NamedImage(root / one.path, one.label, reason=one.reason) for one in found.images], root


def _visible(file: Path) -> bool:
    return not any(part.startswith(".") for part in file.parts)


def _in_list(path: Path, root: Path | None) -> Iterator[NamedImage]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a path on each line in UTF-8, got {error.reason}") from error
    for line in lines:
        if line.strip() and not line.startswith("#"):
            yield NamedImage(_absolute(path.parent, root, line.strip()))


def _in_manifest(path: Path, root: Path | None) -> Iterator[NamedImage]:
    table = read_columns(path)
    if "path" not in table:
        raise DataError(f"{path}: expected a column 'path', got {first_few(list(table), 10)}")
    reserved = [name for name in table if name in RESERVED]
    if reserved:
        raise DataError(f"{path}: expected columns other than {', '.join(RESERVED)}, got {first_few(reserved)}")
    other = {name: infer_types(values) for name, values in table.items() if name not in ("path", LABEL, *BOX)}
    for row, given in enumerate(table["path"]):
        text = "" if given is None else str(given).strip()
        where = f"{path}, row {row + 1}"
        if not text:
            raise DataError(f"{where}: expected a path, got none")
        label = None if LABEL not in table else table[LABEL][row]
        box = parse_box(where, {name: table[name][row] for name in BOX if name in table})
        columns = {name: values[row] for name, values in other.items()}
        yield NamedImage(_absolute(path.parent, root, text), _read_label(label), box, columns)


def _read_label(label: Any) -> str | None:
    return None if label is None or not str(label).strip() else str(label).strip()


def _absolute(folder: Path, root: Path | None, text: str) -> Path:
    """A path in a list, relative to the list's folder or, if nothing is there, to the root.

    Links are not followed: where those lead is checked against the root later.
    """
    here = Path(os.path.normpath(folder / Path(read_path(text, folder)).expanduser()))
    if root is None or os.path.lexists(here):
        return here
    below = Path(os.path.normpath(root.resolve() / read_path(text, root)))
    return below if os.path.lexists(below) else here
