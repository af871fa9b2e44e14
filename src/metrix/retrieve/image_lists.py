"""Images to embed, index or search with: folders, files, tar files, manifests, lists of paths, or embedded data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data import Broken, Catalogue, Dataset, Part, glyphs, layouts
from metrix.data.catalogue import UNSPLIT, Box, ImageRow
from metrix.data.images import HEIC_SUFFIXES, readable_suffixes
from metrix.data.layouts import shards
from metrix.data.layouts.folder import PART_FOLDERS, walk_files
from metrix.data.layouts.manifest import BOX, infer_types, parse_box, read_columns, read_path
from metrix.data.layouts.manifest import SUFFIXES as MANIFESTS
from metrix.data.paths import is_unicode, leaves_root
from metrix.data.shards import SUFFIX as SHARD
from metrix.data.shards import find_member
from metrix.data.survey import bad_limit, decode_all, survey
from metrix.errors import DataError, InvalidInput
from metrix.messages import first_few
from metrix.search import LABEL
from metrix.search.items import RESERVED

LISTS = (".txt", ".lst")
_CROP = re.compile(r"(.+)#(-?\d+),(-?\d+),(-?\d+),(-?\d+)", re.DOTALL)
EXPECTED = (
    f"a folder, an image, a tar file of images (.tar), a manifest ({', '.join(MANIFESTS)}), a list of paths (.txt), or "
    "glyphs, glyphs-mini"
)


@dataclass(frozen=True)
class _Image:
    path: Path  # absolute
    label: str | None = None
    box: Box | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it cannot be read, if that is known


@dataclass(frozen=True, eq=False)
class ImageList:
    """Images with their ids and columns; `skipped` are those that cannot be read, as far as that is known."""

    dataset: Dataset
    part: Part
    ids: tuple[str, ...]
    columns: dict[str, Any]  # name to a pyarrow.Array
    skipped: tuple[Broken, ...]
    root: Path | None  # the folder that ids are paths below
    data: str | None  # the embedded dataset, if the images are not files
    given: tuple[str, ...] = ()  # what the user named

    def __len__(self) -> int:
        return len(self.ids)

    def check(self, workers: int | None = None, progress: Callable[[int, int], None] | None = None) -> ImageList:
        """Decode every image, and leave out those that cannot be read."""
        catalogue = self.dataset.catalogue
        found = decode_all(catalogue, survey(catalogue).stamp, workers=workers, progress=progress).broken
        reasons = {one.position: one.reason for one in found}
        rows = enumerate(self.part.indices.tolist())
        return self.without({row: reasons[position] for row, position in rows if position in reasons})

    def without(self, broken: Mapping[int, str]) -> ImageList:
        """Leave out the images in these rows, which cannot be read for these reasons.

        Raises:
            DataError: none is left.
        """
        if not broken:
            return self
        kept = np.array([row for row in range(len(self)) if row not in broken], dtype=np.int64)
        positions, paths = self.part.indices, self.part.paths
        left_out = tuple(Broken(int(positions[row]), paths[row], broken[row]) for row in sorted(broken))
        if not len(kept):
            listed = first_few([one.path for one in left_out])
            raise DataError(f"{self.root}: expected images, got none that can be read: {listed}")
        dataset = replace(self.dataset, broken=(*self.dataset.broken, *left_out))
        return replace(
            self,
            dataset=dataset,
            part=Part(dataset, positions[kept], np.unique(dataset.catalogue.labels)),
            ids=tuple(self.ids[row] for row in kept.tolist()),
            columns={name: values.take(kept) for name, values in self.columns.items()},
            skipped=(*self.skipped, *left_out),
        )

    def most_broken(self, max_bad: int | float | None) -> int | None:
        """How many images may be missing or broken; None for any number."""
        return None if max_bad is None else bad_limit(max_bad, len(self) + len(self.skipped))

    def require_few(self, max_bad: int | float | None) -> None:
        """Raise a DataError if more images are missing or broken than may be."""
        limit, skipped = self.most_broken(max_bad), len(self.skipped)
        if max_bad is None or limit is None or skipped <= limit:
            return
        listed = first_few([f"{one.path} ({one.reason})" for one in self.skipped], limit=10)
        raise DataError(
            f"{skipped:,} of {len(self) + skipped:,} images cannot be read: {listed}; max_bad={max_bad:g} allows "
            f"{limit}: repair or remove them, or allow more (--max-bad {skipped})"
        )


def list_images(
    given: Sequence[str | os.PathLike[str]],
    root: Path | None = None,
    *,
    max_bad: int | float | None = None,
    follow_links: bool = False,
    check: bool = True,
    short_side: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ImageList:
    """Find and check the images that a user named.

    An id is the path of an image relative to the root, with forward slashes. In a folder of class folders, the
    folder's name is the column `label`; a manifest gives `label` and every other column that it has.

    Args:
        given: folders, images, tar files, manifests and lists of paths, or one embedded dataset.
        root: the folder that ids are relative to, and that contains all images; by default the smallest one that does.
            Relative paths of a manifest or a list that are not beside it are looked for below this folder.
        max_bad: how many images may be missing or broken: a number, or a fraction below 1; any number by default.
        follow_links: allow symbolic links that lead outside the root.
        check: decode every image. Otherwise broken ones are found by whoever reads the images (`ImageList.without`),
            unless more than `max_bad` are missing already: then all are checked, for an error that names all.
        short_side: shrink decoded images to this length of the shorter side, as the run's cache does.
        workers: threads that check images.
        progress: called with (images done, images in all) meanwhile.
    """
    texts = [os.fspath(one) for one in given]
    if len(texts) == 1 and texts[0] in glyphs.NAMES and not Path(texts[0]).exists():
        return replace(_embedded(texts[0]), given=tuple(texts))
    images: list[_Image] = []
    folders: list[Path] = []
    for text in texts:
        here, folder = _find(Path(text).expanduser(), root, follow_links, progress)
        images += here
        folders.append(folder)
    base = _root(root, folders)
    rows: dict[str, _Image] = {}
    outside: list[str] = []
    unnamed: list[Broken] = []
    for image in images:
        relative = os.path.relpath(image.path, base).replace(os.sep, "/")
        if leaves_root(relative):
            outside.append(str(image.path))
        elif not is_unicode(relative):  # an id is text
            unnamed.append(Broken(-1, ascii(relative), "its name is not text in UTF-8"))
        elif image.reason:
            unnamed.append(Broken(-1, relative, image.reason))
        else:
            rows.setdefault(join_id(relative, image.box), image)
    if outside:
        raise InvalidInput(f"images: expected paths below {base}, got {first_few(outside)}; give --root, or copy them")
    if not rows:
        heic = "; HEIC needs pip install metrix[heic]" if any(map(_has_heic, texts)) else ""
        raise DataError(
            f"{first_few(texts)}: expected images ({', '.join(sorted(readable_suffixes()))}), got none{heic}"
        )
    found = _present(base, rows, follow_links, short_side)
    found = replace(found, skipped=(*unnamed, *found.skipped), given=tuple(texts))
    most = found.most_broken(max_bad)
    if check or (most is not None and len(found.skipped) > most):
        found = found.check(workers, progress)
    found.require_few(max_bad)
    return found


def _has_heic(text: str) -> bool:
    path = Path(text).expanduser()
    files = walk_files(path) if path.is_dir() else [path]
    return any(file.suffix.lower() in HEIC_SUFFIXES - readable_suffixes() for file in files)


def _present(base: Path, rows: dict[str, _Image], follow_links: bool, short_side: int | None) -> ImageList:
    """Leave out what is missing."""
    names = list(rows)
    catalogue = _catalogue(base, [rows[name] for name in names], names, follow_links)
    missing = set(survey(catalogue).missing)
    skipped = [Broken(-1, path, "there is no such file") for path in sorted(missing)]
    if missing:
        names = [name for name in names if split_id(name)[0] not in missing]
        if not names:
            raise DataError(f"{base}: expected images, got only missing files: {first_few(sorted(missing))}")
        catalogue = _catalogue(base, [rows[name] for name in names], names, follow_links)
    dataset = Dataset(catalogue, (), None, short_side)
    part = Part(dataset, np.arange(len(names)), np.unique(catalogue.labels))
    columns = _columns([rows[name] for name in names])
    return ImageList(dataset, part, tuple(names), columns, tuple(skipped), base, None)


def _catalogue(base: Path, images: Sequence[_Image], names: Sequence[str], follow_links: bool) -> Catalogue:
    rows = [
        ImageRow(split_id(name)[0] if image.box else name, image.label or "", UNSPLIT, image.box)
        for name, image in zip(names, images, strict=True)
    ]
    return replace(Catalogue.from_rows("folder", base, rows), follow_links=follow_links)


def _columns(images: Sequence[_Image]) -> dict[str, Any]:
    import pyarrow as pa

    names = dict.fromkeys(name for image in images for name in image.columns)
    columns: dict[str, list[Any]] = {name: [image.columns.get(name) for image in images] for name in names}
    if any(image.label is not None for image in images):
        columns = {LABEL: [image.label for image in images], **columns}
    try:
        return {name: pa.array(values) for name, values in columns.items()}
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"columns: expected values of one kind in each, got a mixture ({error})") from error


def join_id(relative: str, box: Box | None) -> str:
    """The id of an image, or of the part of it in a crop box; `split_id` takes it apart."""
    return relative if box is None else f"{relative}#{','.join(map(str, box))}"


def split_id(one: str) -> tuple[str, Box | None]:
    """The path of an item relative to the root, and its crop box if it is a part of an image.

    >>> split_id("a/b.jpg#10,20,30,40"), split_id("a/b#1.jpg")
    (('a/b.jpg', (10, 20, 30, 40)), ('a/b#1.jpg', None))
    """
    found = _CROP.fullmatch(one)
    if found is None:
        return one, None
    left, upper, right, lower = (int(number) for number in found.groups()[1:])
    return found[1], (left, upper, right, lower)


def _root(root: Path | None, folders: Sequence[Path]) -> Path:
    if root is not None:
        if not root.is_dir():
            raise InvalidInput(f"root: expected a folder, got {root}")
        return root.resolve()
    return Path(os.path.commonpath(folders))


def _find(
    path: Path, root: Path | None, follow_links: bool, progress: Callable[[int, int], None] | None
) -> tuple[list[_Image], Path]:
    """The images at a path, and the folder that they are in."""
    if shards.is_pattern(path) or (path.suffix.lower() == SHARD and path.is_file()):
        return _in_shards(path, follow_links, progress)
    if (member := find_member(path)) is not None:
        shard, name = member
        return [_Image(Path(shard.path).resolve() / name)], Path(shard.path).resolve().parent
    if not path.exists():
        raise DataError(f"{path} does not exist; expected {EXPECTED}")
    path = path.resolve()
    if path.is_dir():
        if shards.recognises(path):
            return _in_shards(path, follow_links, progress)
        return list(_in_folder(path, follow_links)), path
    kind = path.suffix.lower()
    if kind in readable_suffixes():
        return [_Image(path)], path.parent
    if kind in LISTS:
        return list(_in_list(path, root)), path.parent
    if kind in MANIFESTS:
        return list(_in_manifest(path, root)), path.parent
    if kind in HEIC_SUFFIXES:
        raise InvalidInput(f"{path.name}: HEIC images cannot be read without pip install metrix[heic]")
    raise InvalidInput(f"{path.name}: expected {EXPECTED}, got a file of another kind")


def _in_folder(folder: Path, follow_links: bool) -> Iterator[_Image]:
    if any(layout.official and layout.recognises(folder) for layout in layouts.LAYOUTS.values()):
        catalogue = layouts.read(folder, follow_links=follow_links)
        for n in range(len(catalogue)):
            yield _Image(catalogue.file(n), catalogue.class_names[catalogue.labels[n]], catalogue.box(n))
        return
    suffixes = readable_suffixes()
    found = (file.relative_to(folder) for file in walk_files(folder, follow_links))
    files = sorted(file for file in found if file.suffix.lower() in suffixes and _visible(file))
    tops = {file.parts[0] for file in files if len(file.parts) > 1}
    labelled = all(len(file.parts) > 1 for file in files)  # images beside the folders: these are no classes
    depth = 1 if tops and {top.lower() for top in tops} <= PART_FOLDERS.keys() else 0
    for file in files:
        label = file.parts[depth] if labelled and len(file.parts) > depth + 1 else None
        yield _Image(folder / file, label)


def _in_shards(
    path: Path, follow_links: bool, progress: Callable[[int, int], None] | None
) -> tuple[list[_Image], Path]:
    found = shards.list_images_in(path, follow_links, progress)
    return [_Image(found.root / one.path, one.label, reason=one.reason) for one in found.images], found.root


def _visible(file: Path) -> bool:
    return not any(part.startswith(".") for part in file.parts)


def _in_list(path: Path, root: Path | None) -> Iterator[_Image]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a path on each line in UTF-8, got {error.reason}") from error
    for line in lines:
        if line.strip() and not line.startswith("#"):
            yield _Image(_absolute(path.parent, root, line.strip()))


def _in_manifest(path: Path, root: Path | None) -> Iterator[_Image]:
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
        yield _Image(_absolute(path.parent, root, text), _read_label(label), box, columns)


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


def _embedded(name: str) -> ImageList:
    import pyarrow as pa

    catalogue = glyphs.load(name)
    dataset = Dataset(catalogue)
    part = Part(dataset, np.arange(len(catalogue)), np.unique(catalogue.labels))
    labels = [catalogue.class_names[k] for k in catalogue.labels.tolist()]
    return ImageList(dataset, part, catalogue.paths, {LABEL: pa.array(labels)}, (), None, name)
