"""Write the tables of results.md and runs.md, and draw their figures, from the measured runs beside this file.

    make results

Each `*.csv` with a column `table` has one line per run: its table, the number of training classes, the method, the
method it is compared with (`baseline`, of the same table and number of classes), the seed, what was measured on the
test classes, and the arguments of `metrix train` that repeat the run. `curves.csv` has the validations of some runs,
epoch by epoch.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrix.evaluate.seeds import SeedDifferences

HERE = Path(__file__).parent
RESULTS, RUNS = HERE.parent / "results.md", HERE / "runs.md"
PICTURES = HERE.parent / "pictures"
FIGURE = PICTURES / "gain-by-classes.svg"
CURVES = PICTURES / "fitting-cars.svg"
DISTILLED = PICTURES / "distil.svg"
LENGTHS = PICTURES / "lengths.svg"
FIGURE_TABLES = {  # table: label in the figure
    "glyphs-classes": "glyphs, multi-similarity",
}
LATER = {"from the middle", "once fitted"}  # rows of the tables of lengths that are not in the figure
LENGTH_TABLES = {"glyphs-lengths": "glyphs", "omniglot-lengths": "Omniglot"}  # table: title of the panel


@dataclass
class Row:
    """One row of a table: a method with a number of training classes, and its runs by seed."""

    table: str
    classes: str
    method: str
    baseline: str
    runs: dict[str, dict[str, str]] = field(default_factory=dict)

    def values(self, measure: str) -> list[float]:
        """A measure of all runs, in the order of their seeds."""
        return [float(self.runs[seed][measure]) for seed in sorted(self.runs, key=int)]


def read_rows(folder: Path = HERE) -> list[Row]:
    """The rows of all tables, in the order in which their first runs stand in the files."""
    rows: dict[tuple[str, str, str], Row] = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for run in csv.DictReader(file):
                if "table" not in run:
                    break  # another kind of file
                key = run["table"], run["classes"], run["method"]
                row = rows.setdefault(key, Row(*key, run["baseline"]))
                if run["seed"] in row.runs:
                    raise ValueError(f"{path.name}: {', '.join(key)}: seed {run['seed']} occurs twice")
                row.runs[run["seed"]] = run
    return list(rows.values())


def gain(row: Row, rows: Iterable[Row], measure: str = "recall@1") -> SeedDifferences | None:
    """The differences of a row to its baseline, over the seeds that both have; None without two of them."""
    pairs = _pair_with_baseline(row, rows, measure)
    return SeedDifferences(tuple(mixed - clean for clean, mixed in pairs)) if len(pairs) >= 2 else None


def _pair_with_baseline(row: Row, rows: Iterable[Row], measure: str = "recall@1") -> list[tuple[float, float]]:
    """A measure of the baseline and of the row, for each seed that both have."""
    for base in rows:
        if (base.table, base.classes, base.method) == (row.table, row.classes, row.baseline):
            seeds = sorted(set(row.runs) & set(base.runs), key=int)
            return [(float(base.runs[seed][measure]), float(row.runs[seed][measure])) for seed in seeds]
    return []


def write_table(name: str, rows: list[Row]) -> str:
    """A table in Markdown: Recall@1 of every row with its seeds, the gain with its interval, and the geometry."""
    lines = [
        "| training classes | method | Recall@1 (seeds) | gain | alignment | uniformity | utilization |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.table == name:
            lines.append("| " + " | ".join(_cells(row, rows)) + " |")
    return "\n".join(lines)


def write_gains(name: str, rows: list[Row]) -> str:
    """A short table: the gain of each row over its baseline, the mean Recall@1 of both over the seeds they share."""
    lines = ["| training classes | method | clean | mixed | gain | seeds |", "|---|---|---|---|---|---|"]
    for row in rows:
        found = gain(row, rows) if row.table == name else None
        if found is not None:
            clean, mixed = map(statistics.fmean, zip(*_pair_with_baseline(row, rows), strict=True))
            cells = (row.classes, row.method, f"{clean:.1f}", f"{mixed:.1f}", _shown(found), str(len(found.values)))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(row: Row, rows: list[Row]) -> Iterator[str]:
    recall = row.values("recall@1")
    yield row.classes
    yield row.method
    yield f"{statistics.fmean(recall):.1f} ({', '.join(f'{value:.1f}' for value in recall)})"
    found = gain(row, rows) if row.baseline else None
    yield "" if found is None else _shown(found)
    for measure in ("alignment", "uniformity", "utilization"):
        known = [float(run[measure]) for run in row.runs.values() if run.get(measure)]
        yield f"{statistics.fmean(known):.2f}" if known else ""


def _shown(found: SeedDifferences) -> str:
    text = f"{found.mean:+.1f} ± {found.margin:.1f}"
    return f"**{text}**" if found.decided else text


def draw_figure(rows: list[Row], path: Path = FIGURE) -> None:
    """The gain of feature mixup in Recall@1 against the number of training classes, with 95 % intervals."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    axes.axhline(0, color="0.6", linewidth=1)
    for shift, (table, label) in enumerate(FIGURE_TABLES.items()):
        points = [
            (int(row.classes.replace(",", "")) * 1.04**shift, found.mean, found.margin)
            for row in rows
            if row.table == table and row.baseline and "feature" in row.method
            if (found := gain(row, rows)) is not None
        ]
        if points:
            x, mean, margin = zip(*sorted(points), strict=True)
            axes.errorbar(x, mean, yerr=margin, marker="o", markersize=4, capsize=3, linewidth=1.3, label=label)
    axes.set_xscale("log")
    ticks = [10, 30, 100, 300, 1000]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("training classes")
    axes.set_ylabel("gain in Recall@1, points")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_curves(path: Path = CURVES) -> None:
    """Recall@1 on held-out training classes by epoch, clean and mixed: a panel for each loss and augmentation."""
    with (HERE / "curves.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    panels = list(dict.fromkeys((line["loss"], line["augment"]) for line in lines))
    plt = _pyplot()
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(2.4 * len(panels), 2.9), sharey=True, layout="constrained", squeeze=False
    )
    for axes, (loss, augment) in zip(all_axes[0], panels, strict=True):
        inside = [line for line in lines if (line["loss"], line["augment"]) == (loss, augment)]
        for method in dict.fromkeys(line["method"] for line in inside):
            points = [(int(line["epoch"]), float(line["recall@1"])) for line in inside if line["method"] == method]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.3, label=method)
        axes.set_title(f"{loss},\n{'random views' if augment == 'standard' else 'no augmentation'}", fontsize=9)
        axes.set_xlabel("epoch")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0][0].set_ylabel("Recall@1, held-out classes")
    all_axes[0][-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_lengths(rows: list[Row], path: Path = LENGTHS) -> None:
    """Recall@1 by length of training, clean and mixed, and the gain by how far the clean loss fits its classes."""
    plt = _pyplot()
    figure, all_axes = plt.subplots(1, len(LENGTH_TABLES) + 1, figsize=(9.6, 3.1), layout="constrained")
    last = all_axes[-1]
    for axes, (table, title), marker in zip(all_axes[:-1], LENGTH_TABLES.items(), "os", strict=True):
        own = [row for row in rows if row.table == table and LATER.isdisjoint(row.method.split(", "))]
        inside = {(row.method.split(",")[0], find_steps(row)): row for row in own}
        lengths = sorted({steps for _, steps in inside})
        for method, colour in (("clean", "C0"), ("feature", "C1")):
            means = [SeedDifferences(tuple(inside[method, steps].values("recall@1"))) for steps in lengths]
            style = {"marker": marker, "markersize": 4, "capsize": 3, "linewidth": 1.3, "color": colour}
            axes.errorbar(lengths, [m.mean for m in means], yerr=[m.margin for m in means], label=method, **style)
        gains = [gain(inside["feature", steps], rows) for steps in lengths]
        fits = [100 * statistics.fmean(inside["clean", steps].values("training_map@r")) for steps in lengths]
        points = [(fit, one.mean, one.margin) for fit, one in zip(fits, gains, strict=True) if one is not None]
        x, mean, margin = zip(*points, strict=True)
        last.errorbar(x, mean, yerr=margin, fmt=marker, markersize=4, capsize=3, color="C2", label=title, mfc="none")
        axes.set_xscale("log")
        axes.set_xticks(lengths, [f"{steps:,}" for steps in lengths], fontsize=8)
        axes.minorticks_off()
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("steps of training")
    all_axes[0].set_ylabel("Recall@1, %, unseen classes")
    all_axes[0].legend(frameon=False, loc="lower right")
    last.axhline(0, color="0.6", linewidth=1)
    last.axvline(95, color="0.6", linewidth=1, linestyle=":")
    last.set_title("gain of mixup, points", fontsize=10)
    last.set_xlabel("MAP@R of training classes, clean, %")
    last.legend(frameon=False, loc="lower right")
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def find_steps(row: Row) -> int:
    """The length of training that the name of a method ends with, as in `clean, 1,000 steps`."""
    return int(row.method.removesuffix(" steps").partition(", ")[2].rpartition(" ")[2].replace(",", ""))


def draw_distillation(path: Path = DISTILLED) -> None:
    """Recall@1 of teacher and students, with 95 % intervals over classes; a point for each seed."""
    with (HERE / "distil.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    names = list(dict.fromkeys(line["run"] for line in lines))
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 0.7 + 0.36 * len(names)), layout="constrained")
    for line in lines:
        value, low, high = (float(line[key]) for key in ("recall@1", "low", "high"))
        at = names.index(line["run"]) + 0.16 * int(line["seed"])
        axes.errorbar(value, at, xerr=[[value - low], [high - value]], marker="o", markersize=4, capsize=3, color="C0")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Recall@1, %, on classes never seen in training")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "metrix"  # the same file every time
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    return pyplot


def fill_page(text: str, rows: list[Row]) -> str:
    """A page with each table below a line `<!-- name -->` or `<!-- gains of name -->` written anew.

    Raises:
        ValueError: a line names a table that no run belongs to.
    """
    known = {row.table for row in rows}

    def write(match: re.Match[str]) -> str:
        if match["name"] not in known:
            raise ValueError(f"{match['name']}: no measured run has this table; it is one of: {', '.join(known)}")
        table = write_gains(match["name"], rows) if match["short"] else write_table(match["name"], rows)
        return f"{match['mark']}{table}\n\n"  # without the empty line, what follows would be of the table

    pattern = r"(?P<mark><!-- (?P<short>gains of )?(?P<name>[a-z-]+) -->\n\n)(\|.*\n)*\n*"
    return re.sub(pattern, write, text).rstrip("\n") + "\n"


if __name__ == "__main__":
    measured = read_rows()
    for page in (RESULTS, RUNS):
        page.write_text(fill_page(page.read_text("utf-8"), measured), "utf-8")
    draw_figure(measured)
    draw_curves()
    draw_lengths(measured)
    draw_distillation()
    drawn = ", ".join(path.name for path in (FIGURE, CURVES, LENGTHS, DISTILLED))
    print(f"docs/{RESULTS.name}, docs/measured/{RUNS.name}; docs/pictures/{drawn}")
