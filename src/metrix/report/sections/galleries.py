"""Retrieved images: queries with their five nearest neighbours, run beside run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import Part
from metrix.errors import MetrixError
from metrix.report.figures.nearest import NeighbourSearch, build_gallery
from metrix.report.page import Block, Gallery, Section, Text
from metrix.report.reported_runs import MeasuredRun, ReportedRun, group_comparable, name_examples_of
from metrix.report.sections import name_missing

NEAREST = 5


def build_galleries_section(runs: Sequence[ReportedRun], spec: str | None, queries: int, seed: int) -> Section:
    """Galleries of queries drawn at random, and of queries on which runs differ."""
    blocks: list[Block] = []
    groups = group_comparable(runs)
    for number, group in enumerate(groups, 1):
        if len(groups) > 1:
            blocks.append(Text(f"Test {group[0].evaluation.examples} of {', '.join(run.name for run in group)}:"))
        if group[0].evaluation.examples == "vectors":
            blocks.append(Text("The data are vectors, which cannot be shown; metrix explore lists neighbours.", "note"))
            continue
        try:
            blocks += _build_galleries(group, spec, queries, seed, f"-{number}" if len(groups) > 1 else "")
        except MetrixError as error:
            blocks.append(Text(str(error), "missing"))
    return Section(f"Retrieved {name_examples_of(runs)}", [*blocks, *name_missing(runs)])


def _build_galleries(group: list[MeasuredRun], spec: str | None, queries: int, seed: int, suffix: str) -> list[Gallery]:
    first = group[0]
    labels, gallery_labels = first.test.labels, first.test.gallery_labels
    dataset = first.model.open_data(spec)
    asked = _picture_reader(first.model.select_part(dataset, "test" if gallery_labels is None else "query"))
    searched = None if gallery_labels is None else _picture_reader(first.model.select_part(dataset, "gallery"))
    searchers = {one.name: NeighbourSearch(one.test.vectors, one.test.gallery) for one in group}

    def shown(rows: NDArray[Any], caption: str, name: str) -> Gallery:
        found = build_gallery(searchers, rows.tolist(), labels, asked, gallery_labels, searched, k=NEAREST)
        return dataclasses.replace(found, caption=caption, name=f"{name}{suffix}")

    draws = np.random.default_rng(seed)
    rows = _draw_of_different_classes(first.retrieval.query_rows, labels, queries, draws)
    legend = "✓ and a solid frame: the query's class; ✗ and a dashed frame: another class."
    found = [shown(rows, f"{len(rows)} queries drawn at random, each of a different class. {legend}", "gallery-random")]
    if len(group) > 1 and all("recall@1" in one.retrieval.per_query for one in group):
        found += _build_differing(group, queries, draws, shown)
    return found


def _build_differing(
    group: list[MeasuredRun], queries: int, draws: np.random.Generator, shown: Callable[..., Gallery]
) -> list[Gallery]:
    """Queries that only the first run, or only the best of the others, answers correctly: half of each kind."""
    first, other = group[0], max(group[1:], key=lambda one: one.retrieval.means["recall@1"])
    a, b = (one.retrieval.per_query["recall@1"] for one in (first, other))
    rows = first.retrieval.query_rows
    only_first, only_other = rows[(a == 1) & (b == 0)], rows[(a == 0) & (b == 1)]
    half = max(1, queries // 2)
    chosen = [_draw_of_different_classes(some, first.test.labels, half, draws) for some in (only_first, only_other)]
    if not sum(map(len, chosen)):
        return []
    caption = (
        f"Queries on which {first.name} and {other.name} differ, drawn at random: {len(chosen[0])} of the "
        f"{len(only_first):,} that only {first.name} answers correctly at rank 1, then {len(chosen[1])} of the "
        f"{len(only_other):,} that only {other.name} does."
    )
    return [shown(np.concatenate(chosen), caption, "gallery-differ")]


def _draw_of_different_classes(
    rows: NDArray[Any], labels: NDArray[Any], count: int, draws: np.random.Generator
) -> NDArray[Any]:
    """Up to `count` rows at random, at most one of each class.

    >>> _draw_of_different_classes(np.array([0, 1, 2]), np.array(["a", "a", "b"]), 5, np.random.default_rng(0)).tolist()
    [0, 2]
    """
    mixed = draws.permutation(rows)
    _, first = np.unique(labels[mixed], return_index=True)
    return np.sort(mixed[np.sort(first)[:count]])


def _picture_reader(part: Part) -> Callable[[int], NDArray[np.uint8]]:
    """A function that gives the pixels of an image by its row."""

    def pixels(row: int) -> NDArray[np.uint8]:
        image = part.image(row).numpy()  # (channels, height, width)
        found: NDArray[np.uint8] = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        return found

    return pixels
