"""CUB-200-2011: `images.txt`, `image_class_labels.txt`; classes 1-100 train, 101-200 test."""

from __future__ import annotations

from pathlib import Path

from metrix.data.catalogue import Catalogue, Row
from metrix.data.layouts.lines import numbered
from metrix.errors import DataError

NAME = "cub"
LAST_TRAINING_CLASS = 100


def recognises(root: Path) -> bool:
    """Whether the folder holds CUB's two lists."""
    return (root / "images.txt").is_file() and (root / "image_class_labels.txt").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of the folder that holds `images.txt` and `images/`."""
    images = numbered(root / "images.txt")
    labels = {
        image: _class_id(root, image, label) for image, label in numbered(root / "image_class_labels.txt").items()
    }
    if images.keys() != labels.keys():
        odd = sorted(images.keys() ^ labels.keys())[:5]
        raise DataError(f"{root}: images.txt and image_class_labels.txt disagree on the image ids {odd}")
    names = _class_names(root, images, labels)
    rows = [
        Row(f"images/{path}", names[labels[i]], "train" if labels[i] <= LAST_TRAINING_CLASS else "test")
        for i, path in images.items()
    ]
    return Catalogue.from_rows(NAME, root, rows, class_names=[names[k] for k in sorted(names)])


def _class_id(root: Path, image: int, label: str) -> int:
    try:
        return int(label)
    except ValueError:
        raise DataError(
            f"{root / 'image_class_labels.txt'}: image {image} has the class {label!r}, not a number"
        ) from None


def _class_names(root: Path, images: dict[int, str], labels: dict[int, int]) -> dict[int, str]:
    """Names of `classes.txt`, or else the folders of the images."""
    if not (root / "classes.txt").is_file():
        return {labels[i]: path.split("/")[0] for i, path in images.items()}
    names = numbered(root / "classes.txt")
    unnamed = sorted(set(labels.values()) - names.keys())
    if unnamed:
        raise DataError(f"{root / 'classes.txt'} does not name the classes {unnamed[:5]}")
    return names
