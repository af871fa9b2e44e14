"""The list of tables and figures: how many runs each needs, how many are finished, how long the rest will take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from metrix.experiments.cells import Cell
from metrix.reproduce.duration import DurationEstimate
from metrix.reproduce.grid import Grid
from metrix.reproduce.items import ITEMS, Item
from metrix.train.batches import Report, ignore_report


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


def list_items(grid: Grid, jobs: int, report: Report = ignore_report) -> tuple[list[ListedItem], str]:
    """List all tables and figures.

    Returns:
        A line for each table or figure, the last one for all of them together; and what the times are based on.
    """
    by_data = {
        (item.name, data.name): grid.distinct_cells(item.experiments(grid, data))
        for item in ITEMS
        for data in grid.datasets
    }
    cells = {one.key: one for found in by_data.values() for one in found}
    estimate = DurationEstimate(list(cells.values()), grid.store, jobs, report)

    def line(name: str, title: str, where: str, chosen: dict[str, Cell]) -> ListedItem:
        left = [one for key, one in chosen.items() if grid.store.results(key) is None]
        return ListedItem(name, title, where, len(chosen), len(chosen) - len(left), estimate.total(left))

    def of(item: Item) -> dict[str, Cell]:
        return {one.key: one for data in grid.datasets for one in by_data[item.name, data.name]}

    rows = [line(item.name, item.title, item.dataset, of(item)) for item in ITEMS]
    rows.append(line("all", "everything", "", cells))
    return rows, estimate.source
