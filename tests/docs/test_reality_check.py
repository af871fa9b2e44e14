"""The figures of docs/reality-check.md are those of the measured runs."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reality-check.md").read_text("utf-8")
LOSSES = ("contrastive", "multi-similarity", "proxy-anchor", "proxy-nca++", "supcon", "arcface", "recall-at-k")
OTHERS = ("contrastive+imix", "contrastive+mochi", "proxy-anchor+proxy-synthesis", "recall-at-k+simix")


def read_means() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[float]] = {}
    with (DOCS / "measured" / "reality-check.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["dataset"], row["method"]), []).append(float(row["recall@1"]))
    assert {len(values) for values in found.values()} == {3}
    return {key: f"{statistics.fmean(values):.1f}" for key, values in found.items()}


def test_the_table_is_that_of_the_runs() -> None:
    means = read_means()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
    for data, title in (("cars", "cars"), ("birds", "birds"), ("glyphs-30", "glyphs, 30 classes")):
        at = next(number for number, row in enumerate(rows) if row[0] == title)
        assert rows[at][2:] == [means[data, loss] for loss in LOSSES]
        assert rows[at + 1][2:] == [means.get((data, f"{loss}+feature"), "") for loss in LOSSES]


def test_the_other_methods_and_the_gains_are_those_of_the_runs() -> None:
    means = read_means()
    text = re.sub(r"\s+", " ", PAGE)
    for data, name in (("cars", "cars"), ("birds", "birds"), ("glyphs-30", "glyphs")):
        assert f"{', '.join(means[data, method] for method in OTHERS)} on {name}" in text
    gains = [
        float(value) - float(means[data, loss.removesuffix("+feature")])
        for (data, loss), value in means.items()
        if loss.endswith("+feature")
    ]
    assert len(gains) == 18
    assert f"changed Recall@1 by {min(gains):+.1f} to {max(gains):+.1f} points" in text
