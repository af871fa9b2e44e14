"""In-Shop Clothes Retrieval: `list_eval_partition.txt`, with train, query and gallery."""

from __future__ import annotations

from pathlib import Path

from metrix.data.catalogue import Catalogue, ImageRow
from metrix.data.layouts.lines import read_table
from metrix.errors import DataError, unknown_choice

NAME = "inshop"
HEADER = ("image_name", "item_id", "evaluation_status")
LIST = "list_eval_partition.txt"


def recognises(root: Path) -> bool:
    """Whether the folder, or `Eval` or `Anno` in it, has the evaluation list."""
    return _find_list(root) is not None


def read(root: Path) -> Catalogue:
    """The catalogue; images are in `img/` or `Img/img/`."""
    listed = _find_list(root)
    if listed is None:
        raise DataError(f"expected {LIST} in {root}, or in Eval or Anno in it; there is none")
    base = "" if (root / "img").is_dir() or not (root / "Img").is_dir() else "Img/"
    rows: list[ImageRow] = []
    for image, item, status in read_table(listed, HEADER, skip=1):
        part = status.strip()
        if part not in ("train", "query", "gallery"):
            raise DataError(f"{listed}: {unknown_choice('evaluation_status', part, ('train', 'query', 'gallery'))}")
        rows.append(ImageRow(base + image, item, part))
    return Catalogue.from_rows(NAME, root, rows)


def _find_list(root: Path) -> Path | None:
    return next((p for p in (root / LIST, root / "Eval" / LIST, root / "Anno" / LIST) if p.is_file()), None)
