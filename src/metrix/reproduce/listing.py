"""The list of tables and figures: how many runs each needs, how many are finished, how long the rest will take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from metrix.experiments.cells import Cell
from metrix.reproduce.duration import DurationEstimate, count_images
from metrix.reproduce.grid import Grid
from metrix.reproduce.items import ITEMS, Item


@dataclass(frozen=True)
class ListedItem:
    """A line of the list; `seconds` is the estimate for the unfinished runs."""

    name: str
    title: str
    paper: str
    cells: int
    done: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def list_items(grid: Grid, jobs: int) -> tuple[list[ListedItem], str]:
    """List all tables and figures.

    Returns:
        A line for each table or figure, the last one for all of them together; and what the times are based on.
    """
    by_data = {
        (item.name, data.name): grid.distinct_cells(item.experiments(grid, data))
        for item in ITEMS
        for data in grid.datasets
    }
    cells = {one.key: (one, data) for (_, data), found in by_data.items() for one in found}
    estimate = DurationEstimate(
        [one for one, _ in cells.values()], {data.name: count_images(data) for data in grid.datasets}, grid.store
    )

    def line(name: str, title: str, where: str, chosen: dict[str, tuple[Cell, str]]) -> ListedItem:
        left = [pair for key, pair in chosen.items() if grid.store.results(key) is None]
        seconds = sum(estimate.seconds(one, data) for one, data in left) / jobs
        return ListedItem(name, title, where, len(chosen), len(chosen) - len(left), seconds)

    def of(item: Item) -> dict[str, tuple[Cell, str]]:
        return {one.key: (one, data.name) for data in grid.datasets for one in by_data[item.name, data.name]}

    rows = [line(item.name, item.title, item.dataset, of(item)) for item in ITEMS]
    rows.append(line("all", "everything", "", cells))
    return rows, estimate.source
