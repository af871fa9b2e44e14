"""Stanford Online Products: `Ebay_train.txt` and `Ebay_test.txt`."""

from __future__ import annotations

from pathlib import Path

from metrix.data.catalogue import Catalogue, ImageRow
from metrix.data.layouts.lines import read_table

NAME = "sop"
HEADER = ("image_id", "class_id", "super_class_id", "path")


def recognises(root: Path) -> bool:
    """Whether the folder has one of the two lists; `read` reports a missing one."""
    return (root / "Ebay_train.txt").is_file() or (root / "Ebay_test.txt").is_file()


def read(root: Path) -> Catalogue:
    """The catalogue of the folder with the two lists and the `*_final` folders."""
    rows = [
        ImageRow(path, class_id, part, category=path.split("/")[0].removesuffix("_final"))
        for part in ("train", "test")
        for _, class_id, _, path in read_table(root / f"Ebay_{part}.txt", HEADER)
    ]
    return Catalogue.from_rows(NAME, root, rows)
