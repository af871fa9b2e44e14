"""Images to embed, index or search with: folders, files, tar files, manifests, lists of paths, or embedded data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrix.data import Broken, Catalogue, Dataset, Part, glyphs
from metrix.data.catalogue import UNSPLIT, Box, ImageRow
from metrix.data.images import HEIC_SUFFIXES, readable_suffixes
from metrix.data.layouts.folder import walk_files
from metrix.data.layouts.table_columns import ColumnChoice
from metrix.data.paths import is_unicode, leaves_root
from metrix.data.survey import bad_limit, decode_all, survey
from metrix.errors import DataError, InvalidInput
from metrix.messages import first_few
from metrix.retrieve.image_sources import NamedImage, find_share
from metrix.search import LABEL
from metrix.search.items import read_column

_CROP = re.compile(r"(.+)#(-?\d+),(-?\d+),(-?\d+),(-?\d+)", re.DOTALL)


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
    all_images: str = ""  # for a share of the images: a hash that changes when any of them all does

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
    columns: ColumnChoice = ColumnChoice(),  # noqa: B008 - it cannot change
    check: bool = True,
    short_side: int | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    share: tuple[int, int] = (0, 1),
) -> ImageList:
    """Find and check the images that a user named.

    An id is the path of an image relative to the root, with forward slashes. In a folder of class folders, the
    folder's name is the column `label`; a manifest gives `label` and every other column that it has.

    Args:
        given: folders, images, tar files, Parquet files with images, data of Hugging Face (`hf:owner/name`), manifests
            and lists of paths, or one embedded dataset.
        root: the folder that ids are relative to, and that contains all images; by default the smallest one that does.
            Relative paths of a manifest or a list that are not beside it are looked for below this folder.
        max_bad: how many images may be missing or broken: a number, or a fraction below 1; any number by default.
        follow_links: allow symbolic links that lead outside the root.
        columns: those of images and labels in Parquet files, if they are not to be found; other columns of texts and
            numbers are columns of the list, as those of a manifest are.
        check: decode every image. Otherwise broken ones are found by whoever reads the images (`ImageList.without`),
            unless more than `max_bad` are missing already: then all are checked, for an error that names all.
        short_side: shrink decoded images to this length of the shorter side, as the run's cache does.
        workers: threads that check images.
        progress: called with (images done, images in all) meanwhile.
        share: (rank, world size): only the images of that process, which follow one another. Of tar files, if there are
            enough of them, each process lists its own.
    """
    texts = name_all(given)
    if len(texts) == 1 and texts[0] in glyphs.NAMES and not Path(texts[0]).exists():
        if share[1] > 1:
            raise InvalidInput(f"WORLD_SIZE: expected 1 for the embedded data {texts[0]}, got {share[1]}")
        columns.refuse(texts[0])
        return replace(_embedded(texts[0]), given=tuple(texts))
    images, folders, everything = find_share(texts, root, follow_links, columns, progress, share)
    base = _root(root, folders)
    rows: dict[str, NamedImage] = {}
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
    found = replace(found, skipped=(*unnamed, *found.skipped), given=tuple(texts), all_images=everything)
    most = found.most_broken(max_bad)
    if check or (most is not None and len(found.skipped) > most):
        found = found.check(workers, progress)
    found.require_few(max_bad)
    return found


def name_all(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """What a user named, one or several, as text.

    >>> name_all("query.jpg"), name_all([Path("a.jpg"), "b.jpg"])
    (['query.jpg'], ['a.jpg', 'b.jpg'])

    Raises:
        InvalidInput: nothing was named, or an empty name, which would be the current folder.
    """
    texts = [os.fspath(one) for one in ([given] if isinstance(given, str | os.PathLike) else given)]
    if not texts:
        raise InvalidInput("images: expected at least one image, folder or list of paths, got none")
    if "" in texts:
        raise InvalidInput("images: expected names of images, folders or lists of paths, got an empty one")
    return texts


def _has_heic(text: str) -> bool:
    path = Path(text).expanduser()
    files = walk_files(path) if path.is_dir() else [path]
    return any(file.suffix.lower() in HEIC_SUFFIXES - readable_suffixes() for file in files)


def _present(base: Path, rows: dict[str, NamedImage], follow_links: bool, short_side: int | None) -> ImageList:
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


def _catalogue(base: Path, images: Sequence[NamedImage], names: Sequence[str], follow_links: bool) -> Catalogue:
    rows = [
        ImageRow(split_id(name)[0] if image.box else name, image.label or "", UNSPLIT, image.box)
        for name, image in zip(names, images, strict=True)
    ]
    return replace(Catalogue.from_rows("folder", base, rows), follow_links=follow_links)


def _columns(images: Sequence[NamedImage]) -> dict[str, Any]:
    names = dict.fromkeys(name for image in images for name in image.columns)
    columns: dict[str, list[Any]] = {name: [image.columns.get(name) for image in images] for name in names}
    if any(image.label is not None for image in images):
        columns = {LABEL: [image.label for image in images], **columns}
    return {name: read_column(name, values) for name, values in columns.items()}


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


def _embedded(name: str) -> ImageList:
    import pyarrow as pa

    catalogue = glyphs.load(name)
    dataset = Dataset(catalogue)
    part = Part(dataset, np.arange(len(catalogue)), np.unique(catalogue.labels))
    labels = [catalogue.class_names[k] for k in catalogue.labels.tolist()]
    return ImageList(dataset, part, catalogue.paths, {LABEL: pa.array(labels)}, (), None, name)
