"""Curves and bar charts of the paper, drawn from the runs of a grid, beside the paper's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metrix.report.figures.bars import draw_bars
from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Figure, SideBySide
from metrix.reproduce import paper
from metrix.reproduce.grid import Spread


def draw_positivity_beside_paper(found: Mapping[str, Sequence[float]], title: str) -> SideBySide:
    """Draw P(Pos(a, v)) against λ, counted and predicted by eq. prob (fig. gradient-plot)."""
    printed = paper.load_numbers("positivity")

    def drawn(source: Mapping[str, Sequence[float]], where: str, name: str) -> Figure:
        given = [Curve(kind, source["lams"], source[kind]) for kind in ("empirical", "theoretical")]
        return draw_curves(given, "interpolation factor λ", "P(Pos(a, v))", name=name, title=where, bounds=(0, 1))

    return SideBySide([drawn(found, title, "positivity"), drawn(printed, "the paper, CUB200", "positivity-paper")])


def draw_strength_beside_paper(
    baseline: Spread, recall: Mapping[str, Mapping[float, Spread]], title: str
) -> SideBySide:
    """Draw Recall@1 against the mixup strength w for each mixup type (fig. ablation-weight)."""
    printed = paper.load_numbers("strength")
    ends = (printed["strengths"][0], printed["strengths"][-1])

    def drawn(given: list[Curve], clean: float | None, where: str, name: str) -> Figure:
        if clean is not None:
            given = [*given, Curve("clean", ends, (clean, clean), reference=True)]
        return draw_curves(given, "mixup strength w", "Recall@1 (%)", name=name, title=where, bounds=(0, 100))

    here = []
    for kind, by_strength in recall.items():
        known = {w: spread for w, spread in by_strength.items() if spread.mean is not None}
        if known:
            around = [spread.deviation or 0.0 for spread in known.values()]
            here.append(Curve(kind, list(known), [spread.mean or 0.0 for spread in known.values()], around))
    there = [Curve(kind, printed["strengths"], values) for kind, values in printed["recall"].items()]
    return SideBySide(
        [
            drawn(here, baseline.mean, title, "strength"),
            drawn(there, printed["baseline"], "the paper, Cars196", "strength-paper"),
        ]
    )


def draw_geometry_beside_paper(found: Mapping[str, Mapping[str, Spread]], title: str) -> SideBySide:
    """Draw alignment and uniformity of each method."""
    measures = ("alignment", "uniformity")
    here = {
        f"{measure}, {title}": {
            method: (spreads[measure].mean or 0.0, spreads[measure].deviation)
            for method, spreads in found.items()
            if spreads[measure].mean is not None
        }
        for measure in measures
    }
    there: dict[str, dict[str, tuple[float, float | None]]] = {
        f"{measure}, the paper, CUB200": {
            row.method: (row.measures[measure], None) for row in paper.load_table("geometry").rows
        }
        for measure in measures
    }
    caption = "Lower is better."
    return SideBySide(
        [draw_bars(here, name="geometry", caption=caption), draw_bars(there, name="geometry-paper", digits=2)]
    )
