"""The page of a reproduction: the requested tables and figures, and how they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import MetrixError
from metrix.experiments.cells import code_version
from metrix.machine.environment import describe_environment
from metrix.messages import format_duration
from metrix.report.page import Block, Page, Section, Text, Tile, Tiles
from metrix.reproduce import paper
from metrix.reproduce.duration import describe_times, read_times
from metrix.reproduce.grid import Experiment, Grid
from metrix.reproduce.items import Item, cells_of_items
from metrix.reproduce.tables import ReproducedTable
from metrix.train.batches import Report, ignore_report

NAME = "report.html"


@dataclass(frozen=True)
class Reproduced:
    """A table or figure on a dataset: its tables as numbers, and all of it as blocks of a page."""

    item: Item
    dataset: str
    blocks: tuple[Block, ...]
    tables: tuple[ReproducedTable, ...]


def render_items(items: Sequence[Item], grid: Grid, report: Report = ignore_report) -> list[Reproduced]:
    """Render tables and figures from the finished runs; one that cannot be rendered becomes a note that says why."""
    found: list[Reproduced] = []
    for item in items:
        for data in grid.datasets:
            report("tables and figures", len(found), len(items) * len(grid.datasets))
            try:
                content = list(item.render(grid, data))
            except MetrixError as error:
                content = [Text(f"{item.name} cannot be shown: {error}", "missing")]
            tables = tuple(one for one in content if isinstance(one, ReproducedTable))
            blocks = tuple(one.to_block() if isinstance(one, ReproducedTable) else one for one in content)
            found.append(Reproduced(item, data.name, blocks, tables))
    report("tables and figures", len(found), len(found))
    return found


def write_page(found: Sequence[Reproduced], grid: Grid, command: str) -> list[Path]:
    """Write the page, its Markdown version and its files into the folder of the grid.

    Returns:
        The files that were written.
    """
    sections = [Section("At a glance", [_summarise(found, grid), Text(_explain(grid))])]
    for one in found:
        heading = one.item.title if len(grid.datasets) == 1 else f"{one.item.title}, {one.dataset}"
        where = f"In the paper: {one.item.label}, on {one.item.dataset}. Command: metrix reproduce {one.item.name}"
        sections.append(Section(heading, [Text(where), *one.blocks]))
    return Page(
        "It Takes Two to Tango, reproduced",
        sections,
        "The tables and figures of “It Takes Two to Tango: Mixup for Deep Metric Learning” (ICLR 2022) from runs on "
        f"this machine, with the paper's numbers beside them.\n\nMade by: {command}",
        describe_versions(),
    ).write(grid.store.folder / NAME)


def _summarise(found: Sequence[Reproduced], grid: Grid) -> Tiles:
    """The number of runs, and the measured gain of Metrix for each loss of the paper's main table."""
    cells = cells_of_items([one.item for one in found], grid)
    results = [results for one in cells if (results := grid.store.results(one.key)) is not None]
    duration = format_duration(sum(one["seconds"] for one in results))
    times = read_times(grid.store.folder)
    told = "" if times is None else f"; {describe_times(times)}"
    tiles = [Tile("runs", f"{len(results)} of {len(cells)}", f"{duration} of training in all{told}")]
    table = paper.load_table("main")
    data = grid.datasets[0]
    for row in table.rows:
        if row.over is None or row.recipe is None:
            continue
        base = table.row(row.over).recipe
        assert base is not None
        gain = grid.gain(Experiment(row.recipe, data), Experiment(base, data))
        if gain.mean is not None:
            reference = data.name if data.in_paper else "cub"
            detail = f"points of R@1; the paper, {paper.DATASETS[reference]}: {row.gain[reference][0]:+.1f}"
            if gain.deviation is None:
                detail += ". One seed cannot tell a gain from chance"
            elif not gain.decided:
                detail += f". {len(gain.values)} seeds cannot tell it from zero"
            tiles.append(Tile(f"{row.over} + Metrix", gain.text(sign=True), detail))
    return Tiles(tiles)


def _explain(grid: Grid) -> str:
    names = ", ".join(data.title for data in grid.datasets)
    text = (
        f"Data: {names}. Seeds: {', '.join(map(str, grid.seeds))}. An empty value was not measured. Footnotes say how "
        "each set-up differs from the paper's; where it does, compare the order of the rows rather than the numbers."
    )
    if grid.scale:
        text += f" Scale, chosen to fit a time budget: {grid.scale}."
    if grid.quick:
        text += (
            " This is the whole paper at a small scale: a network of four layers, glyphs instead of photographs and a "
            "hundred steps. It shows that every experiment runs and how it is measured; it cannot confirm the paper's "
            "results."
        )
    return text


def describe_versions() -> str:
    """What made a page: versions, machine, and the code that trained."""
    about: dict[str, Any] = describe_environment()
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{versions}; Python {about['python']}, {about['platform']}; training code {code_version()}."
