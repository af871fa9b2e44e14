"""Maps of embeddings in the plane, by t-SNE: neighbours stay neighbours, other distances mean little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, GRID, INK, MARKERS, PAPER, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

PER_CLASS = 60  # examples of a class drawn at most
RASTER_FROM = 5000  # points; more are drawn as one image inside the SVG
_CLASS_COLOURS = (*COLOURS[:6], "#4f9fd6", "#a5522a", "#4c8f3a", "#8f8f8f")


@dataclass(frozen=True)
class ChosenExamples:
    """The examples that a map shows; they depend only on the labels and the seed."""

    classes: tuple[str, ...]
    rows: NDArray[np.int64]


def choose_examples(
    labels: NDArray[Any], classes: int = 10, per_class: int = PER_CLASS, seed: int = 0
) -> ChosenExamples:
    """Draw classes at random among those with two examples or more, and examples of each.

    >>> choose_examples(np.array(["a", "b", "a", "b", "c"]), classes=5).classes
    ('a', 'b')
    """
    draws = np.random.default_rng(seed)
    names, counts = np.unique(labels, return_counts=True)
    names = names[counts > 1]
    names = np.sort(draws.permutation(names)[:classes])
    rows = [np.sort(draws.permutation(np.flatnonzero(labels == name))[:per_class]) for name in names]
    return ChosenExamples(tuple(map(str, names)), np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64))


def project_to_plane(vectors: NDArray[Any], seed: int = 0, like: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """Points (n, 2) for embeddings (n, d), deterministic; rotated and mirrored to match the points `like`, if given."""
    count = len(vectors)
    if count == 0:
        return np.empty((0, 2))
    centred = np.asarray(vectors, np.float64) - np.mean(vectors, axis=0)
    if count < 5:  # too few for t-SNE: the two principal directions
        left, values, _ = np.linalg.svd(centred, full_matrices=False)
        points = np.pad(left * values, ((0, 0), (0, 2)))[:, :2]
    else:
        from sklearn.manifold import TSNE

        start = "pca" if min(centred.shape) >= 2 else "random"
        reduced = TSNE(perplexity=min(30.0, (count - 1) / 3), init=start, random_state=seed, n_jobs=1)
        points = reduced.fit_transform(np.asarray(vectors, np.float32)).astype(np.float64)
    points -= points.mean(0)
    if like is not None and np.shape(like) == points.shape:
        left, _, right = np.linalg.svd(points.T @ np.asarray(like, np.float64))  # orthogonal Procrustes
        points = points @ left @ right
    return points


def draw_class_map(
    points: NDArray[Any], labels: Sequence[str], *, name: str, title: str = "", caption: str = ""
) -> Figure:
    """Draw a map with a colour, a marker and a number for each class."""
    of = np.asarray(labels)
    classes = list(dict.fromkeys(of.tolist()))
    with figure_style():
        rows = (len(classes) + 1) // 2
        drawing = new_figure(5.2, 4.2 + 0.21 * rows)
        axes = drawing.add_subplot()
        handles = []
        for n, one in enumerate(classes):
            here = points[of == one]
            marker = MARKERS[(n + n // len(_CLASS_COLOURS)) % len(MARKERS)]
            handles.append(_scatter(axes, here, len(points), _CLASS_COLOURS[n % len(_CLASS_COLOURS)], marker, 16))
        for n, one in enumerate(classes):
            x, y = np.median(points[of == one], axis=0)
            box = {"boxstyle": "round,pad=0.12", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.7}
            place = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "va": "center", "bbox": box}
            axes.annotate(str(n + 1), (x, y), fontsize=8, fontweight="bold", **place)  # type: ignore[arg-type]
        _hide_numbers(axes, title)
        names = [f"{n + 1}  {shorten_for_figure(one, 30)}" for n, one in enumerate(classes)]
        if classes:
            drawing.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8.5, handletextpad=0.2)
    said = f"{len(points):,} embeddings of {len(classes)} classes in the plane{f', {title}' if title else ''}"
    data = [["class", "x", "y"], *([label, *map(float, p)] for label, p in zip(of.tolist(), points, strict=True))]
    return Figure(drawing, said, caption, name, data)


def draw_utilization_maps(
    train: NDArray[Any],
    mixed: NDArray[Any],
    queries: NDArray[Any],
    *,
    name: str,
    caption: str = "",
    seed: int = 0,
) -> tuple[Figure, Figure]:
    """Draw queries with a line to the nearest training embedding, clean only and with mixed ones (fig. utiliz).

    All are unit embeddings. Both maps use the same projection.
    """
    points = project_to_plane(np.concatenate([train, mixed, queries]), seed)
    parts = dict(zip(_KINDS, np.split(points, [len(train), len(train) + len(mixed)]), strict=True))
    clean = _draw_utilization_map(train, queries, points, {**parts, "mixed": None}, f"{name}-clean", "clean", caption)
    seen = np.concatenate([train, mixed])
    return clean, _draw_utilization_map(seen, queries, points, parts, f"{name}-mixed", "clean and mixed", caption)


_KINDS = {"clean": (COLOURS[6], "o", 9), "mixed": (COLOURS[1], "+", 14), "query": (COLOURS[0], "^", 28)}


def _draw_utilization_map(
    seen: NDArray[Any],
    queries: NDArray[Any],
    points: NDArray[Any],
    parts: Mapping[str, NDArray[Any] | None],
    name: str,
    kind: str,
    caption: str,
) -> Figure:
    nearest = (np.asarray(queries) @ seen.T).argmax(1)
    distance = float(np.mean(2 - 2 * np.sum(np.asarray(queries) * seen[nearest], axis=1)))
    with figure_style():
        drawing = new_figure(5.2, 4.4)
        axes = drawing.add_subplot()
        _draw_lines(axes, np.stack([points[-len(queries) :], points[nearest]], axis=1))
        shown = {one: part for one, part in parts.items() if part is not None}
        handles = [_scatter(axes, part, len(points), *_KINDS[one]) for one, part in shown.items()]
        words = {"clean": "training, clean", "mixed": "training, mixed", "query": "test query"}
        drawing.legend(handles, [words[one] for one in shown], loc="outside lower center", ncols=3)
        low, high = points.min(0), points.max(0)
        edge = 0.05 * (high - low) + 1e-9
        axes.set(xlim=(low[0] - edge[0], high[0] + edge[0]), ylim=(low[1] - edge[1], high[1] + edge[1]))
        _hide_numbers(axes, f"{kind} training examples: mean d² = {distance:.3f}")
    counts = ", ".join(f"{len(part)} {one}" for one, part in shown.items())
    said = f"Queries with a line to the nearest of the {kind} training examples ({counts}); mean d² {distance:.3f}"
    data: list[list[object]] = [["kind", "x", "y"]]
    data += [[one, float(x), float(y)] for one, part in shown.items() for x, y in part]
    return Figure(drawing, said, caption, name, data)


def _scatter(axes: Any, points: NDArray[Any], of: int, colour: str, marker: str, size: float) -> Any:
    raster = of > RASTER_FROM
    return axes.scatter(
        *points.T, s=size, c=colour, marker=marker, linewidths=0.9 if marker == "+" else 0, alpha=0.8, rasterized=raster
    )


def _draw_lines(axes: Any, ends: NDArray[Any]) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(ends), colors=INK, linewidths=0.7, alpha=0.7))


def _hide_numbers(axes: Any, title: str) -> None:
    """Remove the axis numbers, which mean nothing on a map."""
    axes.set(xticks=[], yticks=[], title=shorten_for_figure(title, 60))
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, edgecolor=GRID)
