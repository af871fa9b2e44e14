"""Stanford Online Products: `Ebay_train.txt` and `Ebay_test.txt`."""

from __future__ import annotations

from pathlib import Path

from metrix.data.catalogue import Catalogue, Row
from metrix.data.layouts.lines import columns

NAME = "sop"
HEADER = ("image_id", "class_id", "super_class_id", "path")


def recognises(root: Path) -> bool:
    """Whether the folder holds one of the two lists (reading says if the other is missing)."""
    return (root / "Ebay_train.txt").is_file() or (root / "Ebay_test.txt").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of the folder that holds the two lists and the `*_final` folders."""
    rows = [
        Row(path, class_id, part, category=path.split("/")[0].removesuffix("_final"))
        for part in ("train", "test")
        for _, class_id, _, path in columns(root / f"Ebay_{part}.txt", HEADER)
    ]
    return Catalogue.from_rows(NAME, root, rows)
