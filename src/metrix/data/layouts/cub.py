"""CUB-200-2011: `images.txt`, `image_class_labels.txt`; classes 1-100 train, 101-200 test."""

from __future__ import annotations

from pathlib import Path

from metrix.data.catalogue import Catalogue, ImageRow
from metrix.data.layouts.lines import read_numbered
from metrix.errors import DataError
from metrix.messages import first_few

NAME = "cub"
LAST_TRAINING_CLASS = 100


def recognises(root: Path) -> bool:
    """Whether the folder has the two lists."""
    return (root / "images.txt").is_file() and (root / "image_class_labels.txt").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of the folder with `images.txt` and `images/`."""
    images = read_numbered(root / "images.txt")
    labels = {
        image: _class_id(root, image, label) for image, label in read_numbered(root / "image_class_labels.txt").items()
    }
    if images.keys() != labels.keys():
        odd = first_few(sorted(images.keys() ^ labels.keys()))
        raise DataError(
            f"{root}: images.txt and image_class_labels.txt list different images; the ids {odd} are only in one"
        )
    names = _class_names(root, images, labels)
    rows = [
        ImageRow(f"images/{path}", names[labels[i]], "train" if labels[i] <= LAST_TRAINING_CLASS else "test")
        for i, path in images.items()
    ]
    return Catalogue.from_rows(NAME, root, rows, class_names=[names[k] for k in sorted(names)])


def _class_id(root: Path, image: int, label: str) -> int:
    try:
        return int(label)
    except ValueError:
        raise DataError(
            f"{root / 'image_class_labels.txt'}: image {image}: expected the number of a class, got {label!r}"
        ) from None


def _class_names(root: Path, images: dict[int, str], labels: dict[int, int]) -> dict[int, str]:
    """The names from `classes.txt`; without that file, the folders of the images."""
    if not (root / "classes.txt").is_file():
        return {labels[i]: path.split("/")[0] for i, path in images.items()}
    names = read_numbered(root / "classes.txt")
    unnamed = sorted(set(labels.values()) - names.keys())
    if unnamed:
        raise DataError(f"{root / 'classes.txt'} has no names for the classes {first_few(unnamed)}")
    return names
