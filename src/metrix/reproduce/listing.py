"""What can be reproduced, what it needs, and how long it takes here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from metrix.reproduce.cells import Cell
from metrix.reproduce.duration import Estimate, size_of
from metrix.reproduce.grid import Grid
from metrix.reproduce.items import ITEMS, Item


@dataclass(frozen=True)
class Listed:
    """A line of the list; `seconds` of what is not finished."""

    name: str
    title: str
    paper: str
    cells: int
    done: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def listed(grid: Grid, jobs: int) -> tuple[list[Listed], str]:
    """A line for each item and one for all; and where the times come from."""
    by_data = {
        (item.name, data.name): grid.every_cell(item.wanted(grid, data)) for item in ITEMS for data in grid.datasets
    }
    cells = {one.key: (one, data) for (_, data), found in by_data.items() for one in found}
    estimate = Estimate(
        [one for one, _ in cells.values()], {data.name: size_of(data) for data in grid.datasets}, grid.store
    )

    def line(name: str, title: str, where: str, chosen: dict[str, tuple[Cell, str]]) -> Listed:
        left = [pair for key, pair in chosen.items() if grid.store.results(key) is None]
        seconds = sum(estimate.seconds(one, data) for one, data in left) / jobs
        return Listed(name, title, where, len(chosen), len(chosen) - len(left), seconds)

    def of(item: Item) -> dict[str, tuple[Cell, str]]:
        return {one.key: (one, data.name) for data in grid.datasets for one in by_data[item.name, data.name]}

    rows = [line(item.name, item.title, item.dataset, of(item)) for item in ITEMS]
    rows.append(line("all", "everything", "", cells))
    return rows, estimate.source
