"""The paper's figures, drawn from runs of the grid, with the paper's curves beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, DASHES, INK, MARKERS, look, new_figure
from metrix.reproduce import paper
from metrix.reproduce.grid import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def positivity_figure(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """P(Pos(a, v)) against λ (fig. gradient-plot)."""
    printed = paper.content("positivity")
    with look():
        drawing = new_figure(8.4, 3.4)
        here, there = drawing.subplots(1, 2, sharey=True)
        for axes, source, name in ((here, curves, title), (there, printed, "the paper, CUB200")):
            for number, kind in enumerate(("empirical", "theoretical")):
                axes.plot(source["lams"], source[kind], **_style(number), label=kind)
            axes.set(title=name, xlabel="interpolation factor λ", xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
        here.set_ylabel("P(Pos(a, v))")
        here.legend()
    rows: list[list[object]] = [["source", "lambda", "empirical", "theoretical"]]
    for name, source in (("here", curves), ("paper", printed)):
        rows += [
            [name, *values] for values in zip(source["lams"], source["empirical"], source["theoretical"], strict=True)
        ]
    return Figure(
        drawing,
        "Positivity of mixed embeddings against λ, here and in the paper: increasing from 0 to 1",
        "How often a mixed embedding acts as a positive: counted (empirical) and by eq. prob (theoretical), "
        "embedding mixup on multi-similarity before the first step.",
        "positivity",
        rows,
    )


def strength_figure(baseline: Spread, recall: Mapping[str, Mapping[float, Spread]], title: str) -> Figure:
    """Recall@1 against the mixup strength w for each mixup type (fig. ablation-weight)."""
    printed = paper.content("strength")
    rows: list[list[object]] = [["source", "mixup", "w", "recall@1", "deviation"]]
    with look():
        drawing = new_figure(8.4, 3.6)
        here, there = drawing.subplots(1, 2)
        for number, kind in enumerate(printed["recall"]):
            found = {w: spread for w, spread in recall.get(kind, {}).items() if spread.mean is not None}
            means = [spread.mean or 0.0 for spread in found.values()]
            errors = [spread.deviation or 0.0 for spread in found.values()]
            here.errorbar(list(found), means, errors, capsize=2.5, **_style(number), label=kind)
            there.plot(printed["strengths"], printed["recall"][kind], **_style(number), label=kind)
            rows += [["here", kind, w, spread.mean, spread.deviation] for w, spread in found.items()]
            rows += [
                ["paper", kind, *pair, ""] for pair in zip(printed["strengths"], printed["recall"][kind], strict=True)
            ]
        _baseline(here, baseline.mean)
        _baseline(there, printed["baseline"])
        rows += [
            ["here", "none", "", baseline.mean, baseline.deviation],
            ["paper", "none", "", printed["baseline"], ""],
        ]
        for axes, name in ((here, title), (there, "the paper, Cars196")):
            axes.set(title=name, xlabel="mixup strength w", xlim=(0.05, 1.05))
        here.set_ylabel("Recall@1 (%)")
        there.legend(ncols=2)
    return Figure(
        drawing,
        "Recall@1 against mixup strength for input, embed and feature mixup, here and in the paper",
        "Contrastive loss; bars are the standard deviation over seeds.",
        "strength",
        rows,
    )


def geometry_figure(points: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Alignment against uniformity for each method, here and in the paper."""
    printed = {row.method: row.measures for row in paper.table("geometry").rows}
    with look():
        drawing = new_figure(8.4, 3.6)
        for axes, source, name in zip(
            drawing.subplots(1, 2), (points, printed), (title, "the paper, CUB200"), strict=True
        ):
            for number, (method, values) in enumerate(source.items()):
                style = _style(number) | {"linestyle": "none", "markersize": 8}
                axes.plot(values["alignment"], values["uniformity"], **style, label=method)
            axes.set(title=name, xlabel="alignment")
            axes.margins(0.15)
        drawing.axes[0].set_ylabel("uniformity")
        drawing.axes[1].legend()
    rows: list[list[object]] = [["source", "method", "alignment", "uniformity"]]
    for name, source in (("here", points), ("paper", printed)):
        rows += [[name, method, one["alignment"], one["uniformity"]] for method, one in source.items()]
    return Figure(
        drawing,
        "Alignment against uniformity of the test embeddings for each method, here and in the paper",
        "Lower is better for both: towards the lower left corner.",
        "geometry",
        rows,
    )


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": DASHES[number]}


def _baseline(axes: Axes, value: float | None) -> None:
    if value is not None:
        axes.axhline(value, color=INK, linewidth=1.2, linestyle=":", label="clean")
