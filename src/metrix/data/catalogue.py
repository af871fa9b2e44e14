"""The catalogue of a dataset: which images there are, of which class, in which part.

Every layout is read into a catalogue; everything after that (checking, caching, sampling, training) is the same for
all of them. A catalogue has paths and labels but no pixels, except for the built-in datasets, which are in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.data.paths import is_unicode, leaves_root
from metrix.data.shards import image_status
from metrix.errors import DataError, unknown_choice
from metrix.messages import count, first_few

Box = tuple[int, int, int, int]  # left, upper, right, lower, in pixels

UNSPLIT = "all"
# "test" is both query and gallery; "val" has training classes for model selection.
PARTS = ("train", "val", "test", "query", "gallery")


class ImageRow(NamedTuple):
    """One image as listed in the files of a layout."""

    path: str
    class_name: str
    part: str = UNSPLIT
    box: Box | None = None
    category: str = ""
    sequence: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Catalogue:
    """Images, labels and parts of a dataset.

    `labels[i]` is a position in `class_names`; `parts[i]` is one of `PARTS`, or `"all"` before a split.
    `problems` are faults of the data, raised by `require_sound`; `notes` need no action. With a `separator`, a class is
    a set of labels: its name has them in alphabetical order with the separator between them.
    """

    layout: str
    root: Path | None  # None: the pixels or vectors are in memory
    paths: tuple[str, ...]  # relative to root, with forward slashes
    labels: NDArray[np.int64]  # (images,)
    class_names: tuple[str, ...]
    parts: NDArray[np.str_]  # (images,)
    boxes: tuple[Box | None, ...] | None = None
    categories: tuple[str, ...] | None = None
    sequences: tuple[str, ...] | None = None  # the track or shoot of each image, "" for none
    pixels: NDArray[np.uint8] | None = None  # (images, height, width)
    vectors: NDArray[np.float32] | None = None  # (examples, d): they take the place of images
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    follow_links: bool = False  # files may be outside the root, through symbolic links
    separator: str | None = None

    def __post_init__(self) -> None:
        self.labels.setflags(write=False)
        self.parts.setflags(write=False)

    @classmethod
    def from_rows(
        cls,
        layout: str,
        root: Path,
        rows: Iterable[ImageRow],
        *,
        class_names: Sequence[str] | None = None,
        notes: Iterable[str] = (),
        separator: str | None = None,
    ) -> Catalogue:
        """A catalogue of rows; `class_names` are the classes that are expected (by default those of the rows)."""
        kept, conflicts, repeated = _drop_repeated(rows)
        if not kept:
            raise DataError(f"the {layout} dataset in {root} lists no images")
        foreign = [name for row in kept for name in (row.path, row.class_name) if not is_unicode(name)]
        if foreign or not is_unicode(str(root)):
            raise DataError(
                f"names that are not UTF-8: {first_few(map(ascii, foreign or [str(root)]))}; rename these files or "
                "folders (for example with convmv -f latin1 -t utf8)"
            )
        outside = [row.path for row in kept if leaves_root(row.path)]
        if outside:
            raise DataError(
                f"{count(len(outside), 'path')} of the {layout} dataset lead outside {root}: "
                f"{first_few(outside)}; expected paths below that folder (set root, or --root, to one with all of them)"
            )
        names = tuple(class_names) if class_names is not None else tuple(dict.fromkeys(r.class_name for r in kept))
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DataError(f"{root}: duplicate class names: {first_few(twice)}")
        number = {name: label for label, name in enumerate(names)}
        catalogue = cls(
            layout=layout,
            root=root,
            paths=tuple(row.path for row in kept),
            labels=np.array([number[row.class_name] for row in kept], dtype=np.int64),
            class_names=names,
            parts=np.array([row.part for row in kept], dtype=np.str_),
            boxes=tuple(row.box for row in kept) if any(row.box for row in kept) else None,
            categories=tuple(row.category for row in kept) if any(row.category for row in kept) else None,
            sequences=tuple(row.sequence for row in kept) if any(row.sequence for row in kept) else None,
            notes=(*notes, *([f"{count(repeated, 'repeated row')} ignored"] if repeated else [])),
            separator=separator,
        )
        shared = catalogue._describe_shared_classes()
        if separator is not None and shared:  # sets of labels recur, and only their labels could be kept apart
            catalogue = dataclasses.replace(catalogue, notes=(*catalogue.notes, shared[0].partition(";")[0]))
            shared = []
        problems = tuple(conflicts + catalogue._describe_empty_classes() + shared)
        return dataclasses.replace(catalogue, problems=problems)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(self.where(name)):,}" for name in self.part_names)
        return f"Catalogue({self.layout}, {len(self.class_names):,} classes, {parts})"

    @property
    def in_memory(self) -> bool:
        """Whether the pixels or vectors themselves are here, not in files."""
        return self.pixels is not None or self.vectors is not None

    @property
    def noun(self) -> str:
        """What an example is: `image` or `vector`."""
        return "image" if self.vectors is None else "vector"

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts that hold images, in the order of `PARTS`."""
        present = set(np.unique(self.parts).tolist())
        return tuple(name for name in (UNSPLIT, *PARTS) if name in present)

    def where(self, part: str) -> NDArray[np.int64]:
        """Positions of the images of a part.

        An image labelled `test` is both a query and in the gallery; the part `test` is all of test, query and gallery.
        """
        members = {
            "test": ("test", "query", "gallery"),
            "query": ("test", "query"),
            "gallery": ("test", "gallery"),
        }
        if part not in (UNSPLIT, *PARTS):
            raise unknown_choice("part", part, PARTS)
        return np.flatnonzero(np.isin(self.parts, members.get(part, (part,))))

    def file(self, index: int) -> Path:
        """The file of image `index`."""
        if self.root is None:
            raise DataError(f"the images of {self.layout} are in memory, not in files")
        return self.root / self.paths[index]

    def box(self, index: int) -> Box | None:
        """The crop box of image `index`; None for the whole image."""
        return None if self.boxes is None else self.boxes[index]

    def require_sound(self) -> None:
        """Raise a DataError that lists all `problems`, if there are any."""
        if self.problems:
            listed = "".join(f"\n  - {problem}" for problem in self.problems)
            where = "" if self.root is None else f" in {self.root}"
            raise DataError(f"the {self.layout} dataset{where} has problems:{listed}")

    def split(self, unseen: float = 0.5, seed: int = 0) -> Catalogue:
        """The same images with a fraction `unseen` of the classes as `test`, the others as `train`.

        The choice follows from a hash of the seed and the name of the class, so it changes little when a class is
        added. `unseen=0` puts everything into `train`, `unseen=1` everything into `test`.
        """
        if not 0 <= unseen <= 1:
            raise DataError(f"unseen: expected a fraction of the classes from 0 to 1, got {unseen}")
        chosen = _choose_classes(self.class_names, range(len(self.class_names)), unseen, f"split:{seed}", "unseen")
        parts = np.where(np.isin(self.labels, chosen), "test", "train")
        return dataclasses.replace(self, parts=parts)

    def hold_out(self, fraction: float = 0.1, seed: int = 0) -> Catalogue:
        """The same images with a fraction of the *training classes* as `val`, to select models on."""
        if not 0 < fraction < 1:
            raise DataError(f"fraction: expected a fraction of the training classes between 0 and 1, got {fraction}")
        if "val" in self.part_names:
            raise DataError("this dataset already has a val part; use that one, or remove it from the data")
        train = np.unique(self.labels[self.where("train")]).tolist()
        chosen = _choose_classes(self.class_names, train, fraction, f"hold out:{seed}", "held-out")
        parts = np.where((self.parts == "train") & np.isin(self.labels, chosen), "val", self.parts)
        return dataclasses.replace(self, parts=parts)

    def fingerprint(self) -> str:
        """SHA-256 of paths, classes, parts, boxes, and file sizes or, for what is in memory, pixels or vectors."""
        digest = hashlib.sha256()
        sizes: Sequence[object]
        values = self.pixels if self.vectors is None else self.vectors
        if values is not None:
            digest.update(np.ascontiguousarray(values).data)
            sizes = [0] * len(self)
        else:
            sizes = [_size_of(self.file(i)) for i in range(len(self))]
        for i, (path, label, part, size) in enumerate(zip(self.paths, self.labels, self.parts, sizes, strict=True)):
            digest.update(repr((path, self.class_names[label], str(part), self.box(i), size)).encode())
        return digest.hexdigest()

    def _describe_empty_classes(self) -> list[str]:
        present = np.bincount(self.labels, minlength=len(self.class_names)) > 0
        empty = [name for name, there in zip(self.class_names, present, strict=True) if not there]
        if not empty:
            return []
        verb = "has" if len(empty) == 1 else "have"
        return [f"{count(len(empty), 'class')} {verb} no images: {first_few(empty)}; add images or remove the class"]

    def _describe_shared_classes(self) -> list[str]:
        seen_in: dict[int, set[str]] = defaultdict(set)
        for part in ("train", "val", "test"):
            for label in np.unique(self.labels[self.where(part)]).tolist():
                seen_in[label].add(part)
        shared = [
            f"{self.class_names[k]} ({' and '.join(sorted(v))})" for k, v in sorted(seen_in.items()) if len(v) > 1
        ]
        if not shared:
            return []
        verb = "is" if len(shared) == 1 else "are"
        return [
            f"{count(len(shared), 'class')} {verb} in more than one part: {first_few(shared)}; "
            "put each class into one part: retrieval is measured on classes never seen in training"
        ]


def _drop_repeated(rows: Iterable[ImageRow]) -> tuple[list[ImageRow], list[str], int]:
    """The rows, each once; contradictions between repeated rows; how many were repeated."""
    first: dict[tuple[str, Box | None], ImageRow] = {}
    conflicts: list[str] = []
    repeated = 0
    for row in rows:
        known = first.setdefault((row.path, row.box), row)
        if known is row:
            continue
        repeated += 1
        if known.class_name != row.class_name:
            conflicts.append(f"{row.path} is listed as {known.class_name!r} and as {row.class_name!r}")
        elif known.part != row.part:
            conflicts.append(f"{row.path} is listed in {known.part} and in {row.part}")
    if len(conflicts) > 5:
        conflicts = [
            *conflicts[:5],
            f"{len(conflicts) - 5} more images are listed twice with different classes or parts",
        ]
    return list(first.values()), conflicts, repeated


def _choose_classes(names: Sequence[str], labels: Iterable[int], fraction: float, salt: str, what: str) -> list[int]:
    """A fraction of the labels, by the hash of their names; neither all nor none unless the fraction is 1 or 0."""

    def rank(label: int) -> bytes:
        return hashlib.sha256(f"{salt}:{names[label]}".encode()).digest()

    ordered = sorted(labels, key=rank)
    if fraction in (0, 1):
        return ordered[: int(fraction) * len(ordered)]
    if len(ordered) < 2:
        raise DataError(f"{what} classes: expected at least 2 classes to choose them from, got {len(ordered)}")
    return ordered[: min(max(round(fraction * len(ordered)), 1), len(ordered) - 1)]


def _size_of(file: Path) -> int | None:
    """The size of an image file; None if there is none, or none can be of that name."""
    try:
        return image_status(file).size
    except (OSError, ValueError):
        return None
