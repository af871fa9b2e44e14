"""Measure what `metrix suggest` is worth: accuracy by the number of labels, for each strategy, and draw it.

    metrix train glyphs --preset glyphs --train-classes 30 --seed 0 -o runs/glyphs
    metrix index runs/glyphs glyphs -o glyphs.index
    metrix index efficientnet_lite0 cars/test -o cars.index      # photos of Stanford Cars' last 98 classes
    python docs/measured/labelling.py glyphs.index --classes 200 --draws 10 --trained runs/glyphs
    python docs/measured/labelling.py cars.index --classes 30 --step 30 --rounds 4 --draws 6
    python docs/measured/labelling.py                            # draws the figure anew

In each draw, classes are drawn, and half of the images of each is a pool without labels, the other half a test. Some
images of the pool, drawn at random, are labelled first, then as many again in each round, as a strategy suggests. With
a long tail, the last classes have a tenth of their images in the pool. What is measured is how many of the test images
find an image of their class first among the labelled ones (Recall@1). All strategies start from the same draws.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from metrix.evaluate.seeds import SeedDifferences
from metrix.search import Index
from metrix.search.choosing import STRATEGIES, Candidates, choose_places
from metrix.search.class_scores import EnrolledClasses
from metrix.search.suggesting import compare_with_labelled

HERE = Path(__file__).parent
TABLE = HERE / "labelling.csv"
FIGURE = HERE.parent / "pictures" / "suggest.svg"
BASELINE = "random"
TAIL = 10  # times fewer images of the last class than of the first, with a long tail


def read_items(folder: Path, trained: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and labels of an index, without the classes that a run was trained on."""
    vectors, labels = [], []
    for _, items in Index.open(folder).store.scan():
        vectors.append(np.array(items.vectors))
        labels += items.columns["label"].to_pylist()
    found, names = np.concatenate(vectors), np.array(labels)
    if trained is not None:
        from metrix.runs.trained_model import open_run

        model = open_run(trained)
        seen = model.select_part(model.open_data(), "train").class_names
        found, names = found[~np.isin(names, seen)], names[~np.isin(names, seen)]
    return found, names


def draw_pool(labels: np.ndarray, classes: int, tail: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a pool and of a test."""
    names = rng.permutation(np.unique(labels))[:classes]
    pool: list[int] = []
    test: list[int] = []
    for place, name in enumerate(names):
        rows = rng.permutation(np.flatnonzero(labels == name))
        half = len(rows) // 2
        kept = max(1, round(half * TAIL ** -(place / len(names)))) if tail else half
        pool += rows[:kept].tolist()
        test += rows[half:].tolist()
    return rng.permutation(pool), np.array(test)


def label_in_rounds(
    vectors: np.ndarray, labels: np.ndarray, strategy: str, seed: int, classes: int, step: int, rounds: int, tail: bool
) -> list[tuple[int, float, int]]:
    """The number of labels, Recall@1 of the test, and the number of classes with a label, after each round."""
    pool, test = draw_pool(labels, classes, tail, np.random.default_rng(seed))
    labelled, found = list(range(step)), []
    for _ in range(rounds + 1):
        known = pool[labelled]
        nearest = (vectors[test] @ vectors[known].T).argmax(axis=1)
        right = float((labels[known][nearest] == labels[test]).mean())
        found.append((len(labelled), 100 * right, len(np.unique(labels[known]))))
        rest = np.setdiff1d(np.arange(len(pool)), labelled)
        index = Index.build(vectors[known], columns={"label": labels[known].tolist()})

        def read(places: Any, rows: np.ndarray = pool[rest]) -> np.ndarray:
            return vectors[rows[places]]

        near = compare_with_labelled(read, len(rest), index.store, EnrolledClasses.read(index.store))
        candidates = Candidates(read, near.similarity, near.margin)
        labelled += rest[choose_places(candidates, step, strategy, 1 - 1e-6, seed=seed)].tolist()
    return found


def measure(options: argparse.Namespace) -> None:
    """Measure all strategies on an index, and replace its lines of the table."""
    vectors, labels = read_items(options.index, options.trained)
    name = options.index.stem
    lines = [line for line in read_table() if line["data"] != name] if TABLE.exists() else []
    for strategy in (BASELINE, *(name for name in STRATEGIES if name != BASELINE)):
        for pool in ("even", "tail"):
            for draw in range(options.draws):
                rounds = label_in_rounds(
                    vectors, labels, strategy, draw, options.classes, options.step, options.rounds, pool == "tail"
                )
                lines += [
                    {
                        "data": name,
                        "pool": pool,
                        "strategy": strategy,
                        "draw": str(draw),
                        "labels": str(count),
                        "recall@1": f"{right:.2f}",
                        "classes": str(there),
                    }
                    for count, right, there in rounds
                ]
            print(name, pool, strategy, flush=True)
            write_table(lines)


def write_table(lines: list[dict[str, str]]) -> None:
    """Write all lines."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def read_table() -> list[dict[str, str]]:
    """The lines of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def gains(lines: list[dict[str, str]], data: str, pool: str, strategy: str) -> dict[int, SeedDifferences]:
    """The gain over random choice by the number of labels, paired by draw; also of all rounds together, under 0."""
    values: dict[str, dict[tuple[int, str], float]] = {strategy: {}, BASELINE: {}}
    for line in lines:
        if line["data"] == data and line["pool"] == pool and line["strategy"] in values:
            values[line["strategy"]][int(line["labels"]), line["draw"]] = float(line["recall@1"])
    shared = sorted(values[strategy].keys() & values[BASELINE].keys())
    differences = {key: values[strategy][key] - values[BASELINE][key] for key in shared}
    counts = sorted({count for count, _ in shared})
    draws = sorted({draw for _, draw in shared})
    by_count = {count: [d for (c, _), d in differences.items() if c == count] for count in counts}
    found = {count: SeedDifferences(tuple(each)) for count, each in by_count.items() if len(each) > 1}
    means = [np.mean([differences[c, draw] for c in counts[1:] if (c, draw) in differences]) for draw in draws]
    return {0: SeedDifferences(tuple(map(float, means))), **found}


def write_figure() -> None:
    """Recall@1 by the number of labels, mean over draws, with 95 % intervals; a line of the gains to print."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "metrix"  # the same file every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    lines = read_table()
    panels = sorted({(line["data"], line["pool"]) for line in lines}, key=lambda one: (one[0] != "glyphs", one))
    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(2.6 * len(panels), 3.1), layout="constrained", squeeze=False
    )
    for axes, (data, pool) in zip(grid[0], panels, strict=True):
        for strategy in STRATEGIES:
            own = [line for line in lines if (line["data"], line["pool"], line["strategy"]) == (data, pool, strategy)]
            counts = sorted({int(line["labels"]) for line in own})
            every = [
                SeedDifferences(tuple(float(one["recall@1"]) for one in own if int(one["labels"]) == count))
                for count in counts
                if sum(int(one["labels"]) == count for one in own) > 1
            ]
            style: dict[str, Any] = {"color": "0.4", "linestyle": "--"} if strategy == BASELINE else {}
            axes.errorbar(
                counts[: len(every)],
                [one.mean for one in every],
                yerr=[one.margin for one in every],
                capsize=2,
                linewidth=1.3,
                elinewidth=0.8,
                label=strategy,
                **style,
            )
            if strategy != BASELINE:
                whole = gains(lines, data, pool, strategy)[0]
                print(f"{data}, {pool}: {strategy} {whole.mean:+.1f} ± {whole.margin:.1f} points, mean of all rounds")
        axes.set_title(f"{data}, {'a long tail' if pool == 'tail' else 'even classes'}", fontsize=9)
        axes.set_xlabel("labels")
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].set_ylabel("Recall@1 of the test, %")
    grid[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(FIGURE, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("index", type=Path, nargs="?", help="of images with labels; without one, only draw")
    parser.add_argument("--trained", type=Path, help="leave out the classes that this run was trained on")
    parser.add_argument("--classes", type=int, default=100, help="drawn in each draw")
    parser.add_argument("--step", type=int, default=40, help="labels at the start, and in each round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args()
    if given.index is not None:
        measure(given)
    write_figure()
