"""Recall@1 of a new model on an old index, by adapter."""

from __future__ import annotations

from metrix.report.figures.bars import draw_bars
from metrix.report.page import Figure
from metrix.retrieve.adapter_measures import MeasuredAdapters


def draw_upgrade(measured: MeasuredAdapters, names: dict[str, str], caption: str = "") -> Figure:
    """A bar for each search, with half its 95 % interval, in the order of `names`, which has what each is called."""
    bars = {}
    for key, name in names.items():
        one = measured.searches[key]
        half = None if one.interval is None else 50 * (one.interval[1] - one.interval[0])
        bars[name] = 100 * one.recall, half
    return draw_bars({"Recall@1 in %": bars}, name="upgrade", caption=caption, digits=1)
