"""The tables of methods in docs/measured/runs.md are those of the files, and every loss is in them, above the pixels."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from metrix.train.names import LOSSES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "measured" / "runs.md").read_text("utf-8")


def read(name: str) -> list[dict[str, str]]:
    with (DOCS / "measured" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_loss_is_measured_clean_and_with_metrix_where_it_takes_it_above_the_pixels() -> None:
    recall = {(row["group"], row["name"]): float(row["recall@1"]) for row in read("methods.csv")}
    pixels = recall["baseline", "pixels"]
    assert f"nearest neighbour in pixels finds {pixels:.1f}." in PAGE
    for name, loss in LOSSES.items():
        clean, mixed = recall["loss", name], recall.get(("loss with Metrix", name))
        assert (mixed is not None) == loss.takes_mixup
        assert min(clean, mixed or clean) > pixels
        assert f"| `{name}` | {clean:.1f} | {'–' if mixed is None else f'{mixed:.1f}'} |" in PAGE


def test_the_figures_of_other_choices_and_batches_are_the_measured_ones() -> None:
    for row in read("methods.csv"):
        if row["group"] not in ("baseline", "loss", "loss with Metrix"):
            line = rf"\| {row['group']} `{re.escape(row['name'])}`.* \| {float(row['recall@1']):.1f} \|"
            assert re.search(line, PAGE), row
    found: dict[tuple[str, int, int], list[float]] = {}
    for row in read("batches.csv"):
        key = (row["loss"], int(row["batch_size"]), int(row["per_class"]))
        found.setdefault(key, []).append(float(row["recall@1"]))
    for (loss, size, each), values in found.items():
        assert f"| `{loss}` | {size} | {size // each} × {each} | {sum(values) / len(values):.1f} |" in PAGE
