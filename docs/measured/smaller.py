"""Measure smaller vectors on glyphs, and draw the curve of smaller.md.

    python docs/measured/smaller.py RUNS   # measures runs into smaller.csv
    python docs/measured/smaller.py        # draws pictures/smaller.svg from smaller.csv

RUNS has the runs full, mat, d8 and d16, which the commands in smaller.md train.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metrix.evaluate.bootstrap import compare
from metrix.runs.compression import measure_compression
from metrix.runs.evaluation import Examples, embed_examples
from metrix.runs.trained_model import open_run

HERE = Path(__file__).parent
TABLE, FIGURE = HERE / "smaller.csv", HERE.parent / "pictures" / "smaller.svg"
COLUMNS = ("network", "dim", "kind", "bytes", "recall@1", "low", "high", "difference", "from", "to", "map@r")
WHOLE, SHORTER = 64, (16, 8)
CURVES = {
    "trained with --matryoshka 8,16": "o-",
    "a network for each dimension": "s--",
    "the first numbers of a network without": "v:",
    "its principal components": "^:",
}


def project(examples: Examples, dim: int) -> Examples:
    """The first principal components of embeddings, of unit length: the best that a linear map keeps."""
    x = examples.vectors.astype(np.float64)
    centred = x - x.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return replace(examples, vectors=(centred @ axes[:, : -dim - 1 : -1]).astype(np.float32))


def measure(runs: Path) -> list[dict[str, Any]]:
    """The rows of the table, each with its paired difference to the whole of the network without prefixes."""
    whole = embed_examples(open_run(runs / "full"))
    matryoshka = embed_examples(open_run(runs / "mat"))
    normal, trained, components = (list(CURVES)[n] for n in (2, 0, 3))
    found = [
        ("whole", "", measure_compression(whole, ["sq8", "pq8", "binary"], resamples=200)),
        (normal, "float32", measure_compression(whole, [], SHORTER, resamples=200)),
        (trained, "", measure_compression(matryoshka, ["sq8", "binary"], SHORTER, SHORTER, resamples=200)),
        *((components, "float32", measure_compression(project(whole, dim), resamples=200)) for dim in SHORTER),
        *(
            (list(CURVES)[1], "float32", measure_compression(embed_examples(open_run(runs / f"d{dim}")), resamples=200))
            for dim in SHORTER
        ),
    ]
    base = found[0][2].whole.retrieval
    rows = []
    for network, only, measured in found:
        for row in measured.rows:
            if only and (row.codes.kind != only or (network == normal and row.dim == WHOLE)):
                continue
            means, (low, high) = row.retrieval.means, row.retrieval.intervals["recall@1"]
            change = compare(base, row.retrieval, resamples=200)["recall@1"]
            values = (means["recall@1"], low, high, change.difference, change.low, change.high, means["map@r"])
            percent = [f"{100 * value:.2f}" for value in values]
            rows.append(dict(zip(COLUMNS, (network, row.dim, row.codes.kind, row.codes.bytes, *percent), strict=True)))
    return rows


def draw(rows: list[dict[str, str]]) -> None:
    """The curve of Recall@1 against bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "metrix"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    top = next(row for row in rows if row["network"] == "whole")
    axes.axhspan(float(top["low"]), float(top["high"]), color="0.92")
    axes.axhline(float(top["recall@1"]), color="0.6", lw=1)
    axes.text(8, float(top["recall@1"]) + 0.4, "64 numbers in float32, and their interval", color="0.35", fontsize=8)
    for name, style in CURVES.items():
        some = [row for row in rows if row["network"] == name and row["kind"] == "float32"]
        if some:
            _plot(axes, some, style, name)
    codes = [row for row in rows if row["network"] == "whole" and row["kind"] not in ("float32", "binary")]
    _plot(axes, codes, "D", "64 numbers in codes")
    for row in codes:
        axes.annotate(
            row["kind"], (float(row["bytes"]), float(row["recall@1"])), (4, -10), textcoords="offset points", fontsize=7
        )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes of an item")
    axes.set_ylabel("Recall@1, %")
    ticks = [8, 16, 32, 64, 128, 256]
    axes.set_xlim(6, 360)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.legend(fontsize=8)
    figure.savefig(FIGURE, metadata={"Date": None})
    plt.close(figure)


def _plot(axes: Any, rows: list[dict[str, str]], style: str, name: str) -> None:
    rows = sorted(rows, key=lambda row: int(row["bytes"]))
    x = [int(row["bytes"]) for row in rows]
    y = [float(row["recall@1"]) for row in rows]
    error = [
        [float(row["recall@1"]) - float(row["low"]) for row in rows],
        [float(row["high"]) - float(row["recall@1"]) for row in rows],
    ]
    axes.errorbar(x, y, error, fmt=style, ms=4, lw=1.2, capsize=2, label=name)


def main() -> None:
    """Measure, if runs are given, and draw."""
    if len(sys.argv) > 1:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(measure(Path(sys.argv[1])))
    with TABLE.open(newline="", encoding="utf-8") as file:
        draw(list(csv.DictReader(file)))


if __name__ == "__main__":
    main()
