"""Figures of a study: scores trial by trial, settings side by side, cheap against whole trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from metrix.core.spaces import LogUniform, OneOf, Range, Space
from metrix.experiments.tuning.spaces import as_choice
from metrix.experiments.tuning.trials import FinishedTrial
from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, INK, MARKERS, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

SHADES = "viridis"  # of scores, dark to light: also told apart with colour blindness


def draw_history(
    trials: Sequence[FinishedTrial], methods: Sequence[str], untrained: float | None, label: str
) -> Figure:
    """Draw the score of each trial and the best so far of each method; trials that were stopped are open markers."""
    with figure_style():
        drawing = new_figure(6.4, 3.6 + 0.2 * math.ceil(len(methods) / 2))
        axes = drawing.add_subplot()
        for n, method in enumerate(methods):
            colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
            own = [one for one in trials if one.method == method and one.latest is not None]
            for state, face in (("finished", colour), ("stopped", "none")):
                some = [one for one in own if one.state == state]
                x, y = [one.number for one in some], [one.latest for one in some]
                axes.plot(x, y, linestyle="", marker=marker, color=colour, markerfacecolor=face, markersize=5)  # type: ignore[arg-type]
            best, x, y = -math.inf, [], []
            for one in own:
                if one.score is not None:
                    best = max(best, one.score)
                    x.append(one.number)
                    y.append(best)
            if x:
                last = max(one.number for one in trials)
                axes.plot([*x, last], [*y, y[-1]], drawstyle="steps-post", color=colour, label=method)  # type: ignore[arg-type]
        if untrained is not None:
            axes.plot([0], [untrained], linestyle="", marker="*", markersize=9, color=INK, label="untrained (trial 0)")
        axes.set(xlabel="trial", ylabel=label)
        axes.locator_params(axis="x", integer=True)
        drawing.legend(loc="outside lower center", ncols=2)
    data: list[list[object]] = [["trial", "method", "state", "folds", label]]
    data += [[one.number, one.method, one.state, len(one.scores), one.latest] for one in trials]
    tops = {m: max((t.score for t in trials if t.method == m and t.score is not None), default=None) for m in methods}
    said = ", ".join(f"{name} {top:.1f}" for name, top in tops.items() if top is not None)
    return Figure(drawing, f"{label} of each trial; best: {said}", name="history", data=data)


def draw_parallel(trials: Sequence[FinishedTrial], space: Space, method: str, label: str) -> Figure:
    """Draw a line for each trial through its settings to its score; each axis spans the range that was searched."""
    own = [one for one in trials if one.method == method and one.scores]
    keys = list(space)
    scores = [one.scores[0] for one in own]
    low, high = min(scores), max(scores)
    with figure_style():
        drawing = new_figure(max(6.4, 0.95 * (len(keys) + 1)), 3.5)
        axes = drawing.add_subplot()
        axes.grid(visible=False)
        shades = _shades()
        for one in sorted(own, key=lambda trial: trial.scores[0]):
            share = (one.scores[0] - low) / (high - low) if high > low else 1.0
            heights = [_place(space[key], one.settings.get(key)) for key in keys]
            axes.plot(
                range(len(keys) + 1), [*heights, share], color=shades(share), linewidth=1.0 + 1.2 * share, alpha=0.9
            )
        for x, key in enumerate(keys):
            axes.axvline(x, color=INK, linewidth=0.7)
            for height, text in _ticks(space[key]):
                axes.annotate(text, (x, height), (3, 0), textcoords="offset points", fontsize=7, va="center")
        axes.axvline(len(keys), color=INK, linewidth=0.7)
        for height, value in ((0.0, low), (1.0, high)):
            axes.annotate(
                f"{value:.1f}", (len(keys), height), (3, 0), textcoords="offset points", fontsize=7, va="center"
            )
        axes.set(xticks=range(len(keys) + 1), yticks=[], ylim=(-0.06, 1.06), xlim=(-0.2, len(keys) + 0.5))
        axes.set_xticklabels([*keys, label], fontsize=8)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
    data: list[list[object]] = [["trial", *keys, label]]
    data += [[one.number, *(one.settings.get(key) for key in keys), one.scores[0]] for one in own]
    best = own[scores.index(high)]
    said = ", ".join(f"{key} {_text(best.settings.get(key))}" for key in keys)
    words = f"settings of {len(own)} trials of {method}, from {low:.1f} to {high:.1f}; the best: {said}"
    return Figure(drawing, words, shorten_for_figure(method), f"settings-{method}", data)


def draw_importance(shares: Mapping[str, float], method: str) -> Figure:
    """Draw how much of the variance of a method's scores each setting explains, the most important first."""
    with figure_style():
        drawing = new_figure(5.2, 0.6 + 0.24 * len(shares))
        axes = drawing.add_subplot()
        bars = axes.barh(range(len(shares)), [100 * share for share in shares.values()], 0.62, color=COLOURS[0])
        axes.bar_label(bars, fmt="%.0f", padding=4, fontsize=8)
        axes.set(yticks=range(len(shares)), ylim=(len(shares) - 0.45, -0.55), xlabel="share of the variance, %")
        axes.set_yticklabels(list(shares))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.1)
    said = ", ".join(f"{key} {100 * share:.0f} %" for key, share in shares.items())
    caption = f"{method}: share of the variance of scores on the first fold that a setting explains (fANOVA)"
    data: list[list[object]] = [["setting", "share"], *([key, share] for key, share in shares.items())]
    return Figure(drawing, f"importance of the settings of {method}: {said}", caption, f"importance-{method}", data)


def draw_cheap(pairs: Mapping[str, Sequence[tuple[float, float]]], label: str) -> Figure:
    """Draw the score after a whole training against that of a cheap one, on the first fold."""
    with figure_style():
        drawing = new_figure(4.6, 3.4 + 0.2 * math.ceil(len(pairs) / 2))
        axes = drawing.add_subplot()
        for n, (method, points) in enumerate(pairs.items()):
            x, y = zip(*points, strict=True)
            style: dict[str, Any] = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
            axes.plot(x, y, linestyle="", label=method, **style)
        axes.set(xlabel=f"{label}, a third of the training", ylabel=f"{label}, all of it")
        drawing.legend(loc="outside lower center", ncols=2)
    data: list[list[object]] = [["method", "cheap", "whole"]]
    data += [[method, *point] for method, points in pairs.items() for point in points]
    count = sum(len(points) for points in pairs.values())
    return Figure(
        drawing, f"{label} of {count} trials after a cheap and after a whole training", name="cheap", data=data
    )


def _shades() -> Any:
    from matplotlib import colormaps

    return colormaps[SHADES]


def _place(given: Range, value: Any) -> float:
    """Where a value is on the axis of its range, from 0 to 1."""
    if value is None and not (isinstance(given, OneOf) and None in given.values):
        return 0.5
    if isinstance(given, OneOf):
        choices = [as_choice(one) for one in given.values]
        return choices.index(value) / max(1, len(choices) - 1)
    if isinstance(given, LogUniform):
        return math.log(value / given.low) / math.log(given.high / given.low)
    return float(value - given.low) / (given.high - given.low)


def _ticks(given: Range) -> list[tuple[float, str]]:
    if isinstance(given, OneOf):
        choices = [as_choice(one) for one in given.values]
        return [(_place(given, one), shorten_for_figure(_text(one), 14)) for one in choices]
    return [(0.0, _text(given.low)), (1.0, _text(given.high))]


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
