"""Methods over several datasets: the critical-difference picture of their ranks, and intervals dataset by dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, INK, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

PANELS_IN_A_ROW = 2


def draw_critical_difference(
    means: Mapping[str, float], difference: float, groups: Sequence[Sequence[str]], datasets: int
) -> Figure:
    """Draw the mean ranks on a line, the best to the left; thick bars join methods that cannot be told apart.

    Args:
        means: mean rank of each method
        difference: the critical difference
        groups: names of methods whose mean ranks are less than that apart
        datasets: that the ranks are means over
    """
    order = sorted(means, key=means.__getitem__)
    half = -(-len(order) // 2)
    last = max(2.0, float(len(order)))
    top, step = 0.5 + 0.3 * len(groups), 0.55
    depth = top + step * half
    margin = 0.42 * (last - 1)  # for the names on either side
    with figure_style():
        drawing = new_figure(7.4, 1.3 + 0.3 * (len(groups) * 0.5 + half))
        axes = drawing.add_subplot()
        axes.grid(visible=False)
        axes.plot([1, last], [0, 0], color=INK, linewidth=1.0)
        every = 1 if last <= 12 else 2 if last <= 24 else 5
        for rank in range(1, int(last) + 1):
            axes.plot([rank, rank], [0, -0.14], color=INK, linewidth=0.8)
            if (rank - 1) % every == 0 or rank == int(last):
                axes.annotate(str(rank), (rank, -0.2), ha="center", va="bottom", fontsize=8)
        axes.plot([1, 1 + difference], [-1.0, -1.0], color=INK, linewidth=1.6, marker="|", markersize=7)
        axes.annotate(f"critical difference {difference:.2f}", (1, -1.15), ha="left", va="bottom", fontsize=8)
        for n, name in enumerate(order):
            left = n < half
            height = top + step * (n if left else len(order) - 1 - n)
            edge = 1 - 0.03 * margin if left else last + 0.03 * margin
            axes.plot([means[name], means[name], edge], [0, height, height], color=INK, linewidth=0.7)
            text = f"{shorten_for_figure(name, 30)}  {means[name]:.2f}"
            side = {"ha": "right" if left else "left", "va": "center", "fontsize": 8}
            axes.annotate(text, (edge, height), (-4 if left else 4, 0), textcoords="offset points", **side)  # type: ignore[arg-type]
        for n, group in enumerate(groups):
            ends = [means[name] for name in (group[0], group[-1])]
            height = 0.28 + 0.3 * n
            wide = 0.006 * (last - 1)
            axes.plot([ends[0] - wide, ends[1] + wide], [height] * 2, color=COLOURS[0], linewidth=3.2)
        axes.set(xlim=(1 - margin, last + margin), ylim=(depth, -1.7), xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
    said = ", ".join(f"{name} {means[name]:.2f}" for name in order)
    data: list[list[object]] = [["method", "mean rank"], *([name, means[name]] for name in order)]
    return Figure(
        drawing,
        f"mean ranks over {datasets} datasets: {said}; critical difference {difference:.2f}",
        f"Mean ranks over {datasets} datasets, the best to the left. Bars join methods whose mean ranks are closer "
        "than the critical difference (Nemenyi, 5 %): they cannot be told apart.",
        "critical-difference",
        data,
    )


def draw_recall_intervals(
    panels: Mapping[str, Mapping[str, tuple[float, float, float]]],
    references: Mapping[str, float],
    methods: Sequence[str],
) -> Figure:
    """Draw (Recall@1, low, high) of each method in a panel for each dataset, with a line at the untrained network.

    Args:
        panels: by dataset, and by method
        references: Recall@1 of the untrained network, by dataset
        methods: in the order in which they are drawn, from the top
    """
    columns = min(PANELS_IN_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    with figure_style():
        drawing = new_figure(7.4, rows * (0.9 + 0.2 * len(methods)))
        grid = drawing.subplots(rows, columns, squeeze=False, sharey=True)
        flat = [axes for line in grid for axes in line]
        for axes, (data, values) in zip(flat, panels.items(), strict=False):
            _draw_panel(axes, values, methods)
            axes.axvline(references[data], color=INK, linestyle=":", linewidth=1.2)
            axes.set(title=shorten_for_figure(data), xlabel="Recall@1 %")
        for axes in flat[len(panels) :]:
            axes.set_visible(False)
    table: list[list[object]] = [["dataset", "method", "recall@1", "low", "high"]]
    table += [[data, name, *values[name]] for data, values in panels.items() for name in methods if name in values]
    return Figure(
        drawing,
        "; ".join(
            f"{data}: " + ", ".join(f"{name} {value[0]:.1f}" for name, value in values.items())
            for data, values in panels.items()
        ),
        "Recall@1 on the test classes, with intervals over another draw of them; methods with mixup in orange, the "
        "untrained network as a dotted line.",
        "recalls",
        table,
    )


def _draw_panel(axes: Any, values: Mapping[str, tuple[float, float, float]], methods: Sequence[str]) -> None:
    for y, name in enumerate(methods):
        if name in values:
            value, low, high = values[name]
            colour = COLOURS[1 if "+" in name.replace("++", "") else 0]
            axes.plot([low, high], [y, y], color=colour, linewidth=1.4)
            axes.plot([value], [y], color=colour, linestyle="", marker="o")
    axes.set(yticks=range(len(methods)), ylim=(len(methods) - 0.4, -0.6))
    axes.set_yticklabels([shorten_for_figure(name, 30) for name in methods], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
