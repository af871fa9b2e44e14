"""The page of a reproduction: every table and figure that was asked for, and how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import MetrixError
from metrix.report.page import Block, Page, Section, Text, Tile, Tiles
from metrix.reproduce import paper
from metrix.reproduce.cells import code_version
from metrix.reproduce.grid import Grid, Wanted
from metrix.reproduce.items import Item
from metrix.reproduce.tables import Result
from metrix.runs.embedding import unreported
from metrix.train.batches import Report
from metrix.train.run_folder import environment

NAME = "report.html"


@dataclass(frozen=True)
class Reproduced:
    """A table or figure on a dataset, as results and blocks of a page."""

    item: Item
    dataset: str
    blocks: tuple[Block, ...]
    results: tuple[Result, ...]


def reproduced(items: Sequence[Item], grid: Grid, report: Report = unreported) -> list[Reproduced]:
    """Everything that was asked for, from the runs that are finished."""
    found: list[Reproduced] = []
    for item in items:
        for data in grid.datasets:
            report("tables and figures", len(found), len(items) * len(grid.datasets))
            try:
                content = list(item.shown(grid, data))
            except MetrixError as error:  # one that cannot be shown does not take the others with it
                content = [Text(f"{item.name} cannot be shown: {error}", "missing")]
            results = tuple(one for one in content if isinstance(one, Result))
            blocks = tuple(one.block() if isinstance(one, Result) else one for one in content)
            found.append(Reproduced(item, data.name, blocks, results))
    report("tables and figures", len(found), len(found))
    return found


def write(found: Sequence[Reproduced], grid: Grid, command: str) -> list[Path]:
    """Write the page, its Markdown and its files into the folder of the cells."""
    sections = [Section("At a glance", [_glance(found, grid), Text(_reading(grid))])]
    for one in found:
        heading = one.item.title if len(grid.datasets) == 1 else f"{one.item.title}, {one.dataset}"
        where = Text(f"In the paper: {one.item.label}, on {one.item.dataset}. Again: metrix reproduce {one.item.name}")
        sections.append(Section(heading, [where, *one.blocks]))
    return Page(
        "It takes two to tango, again",
        sections,
        "The tables and figures of “It Takes Two to Tango: Mixup for Deep Metric Learning” (ICLR 2022) from runs on "
        f"this machine, with the paper's numbers beside them.\n\nMade by: {command}",
        _footer(),
    ).write(grid.store.folder / NAME)


def _glance(found: Sequence[Reproduced], grid: Grid) -> Tiles:
    """How much was run, and what Metrix gained here with each loss that the paper improves."""
    cells = {
        one.key for part in found for data in grid.datasets for one in grid.every_cell(part.item.wanted(grid, data))
    }
    results = [results for key in cells if (results := grid.store.results(key)) is not None]
    minutes = sum(one["seconds"] for one in results) / 60.0
    tiles = [Tile("runs", f"{len(results)} of {len(cells)}", f"{minutes:,.0f} minutes of training in all")]
    table = paper.table("main")
    data = grid.datasets[0]
    for row in table.rows:
        if row.over is None or row.recipe is None:
            continue
        base = table.row(row.over).recipe
        assert base is not None
        gain = grid.gain(Wanted(row.recipe, data), Wanted(base, data))
        if gain.mean is not None:
            reference = data.name if data.in_paper else "cub"
            detail = f"points of R@1; the paper, {paper.DATASETS[reference]}: {row.gain[reference][0]:+.1f}"
            tiles.append(Tile(f"{row.over} + Metrix", gain.text(sign=True), detail))
    return Tiles(tiles)


def _reading(grid: Grid) -> str:
    names = ", ".join(data.title for data in grid.datasets)
    text = (
        f"Data: {names}. Seeds: {', '.join(map(str, grid.seeds))}. An empty cell was not run. Footnotes say how each "
        "set-up differs from the paper's; where it does, compare the order of the rows rather than the numbers."
    )
    if grid.quick:
        text += (
            " This is the whole paper in small: a network of four layers, glyphs instead of photographs and a hundred "
            "steps. It shows that every experiment runs and how it is measured; it cannot confirm the paper's figures."
        )
    return text


def _footer() -> str:
    about: dict[str, Any] = environment()
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{versions}; Python {about['python']}, {about['platform']}; training code {code_version()}."
