"""The paper's numbers, as printed: a file in `paper/` for each table and figure that has numbers.

A row of a table names its method, how it is trained (`recipe`: keys of the configuration) and the row that
it is measured `over`. Rows without a recipe repeat what other authors reported; nothing is run for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from metrix.errors import InvalidInput, unknown_choice

Recipe = Mapping[str, Any]

DATASETS = {"cub": "CUB200", "cars": "Cars196", "sop": "SOP", "inshop": "In-Shop"}
RECALL_TABLES = ("main", "types", "compete", "ablation", "ablation-cub")


@dataclass(frozen=True)
class Row:
    """A line of a table: Recall@K in percent by dataset, or other measures by name."""

    method: str
    recipe: Recipe | None = None
    over: str | None = None
    reported: bool = False  # by the method's authors
    labels: Mapping[str, str] = field(default_factory=dict)
    recall: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    gain: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; `columns` are the K of Recall@K by dataset."""

    name: str
    label: str
    title: str
    setup: Mapping[str, Any]
    rows: tuple[Row, ...]
    columns: Mapping[str, tuple[int, ...]]
    label_columns: tuple[str, ...]
    studies: bool  # whether the method of a row is the study that it belongs to
    gain_over_best: Mapping[str, tuple[float, ...]]

    def row(self, method: str) -> Row:
        """The first row of a method: the baseline that others are measured over."""
        for row in self.rows:
            if row.method == method:
                return row
        raise unknown_choice(f"method of table {self.name}", method, [row.method for row in self.rows])


@cache
def content(name: str) -> dict[str, Any]:
    """A file of the paper's numbers, as it is."""
    found: dict[str, Any] = yaml.safe_load(_file(name).read_text("utf-8"))
    return found


@cache
def table(name: str) -> PaperTable:
    """A table of the paper; what does not fit its own columns is an error."""
    given = content(name)
    columns = {dataset: tuple(ks) for dataset, ks in given.get("columns", {}).items()}
    rows = tuple(_row(name, dict(row), columns) for row in given["rows"])
    return PaperTable(
        name,
        given["label"],
        given["title"],
        given["setup"],
        rows,
        columns,
        tuple(given.get("label_columns", ())),
        bool(given.get("studies", False)),
        {dataset: tuple(values) for dataset, values in given.get("gain_over_best", {}).items()},
    )


def _file(name: str) -> Any:
    return resources.files("metrix.reproduce") / "paper" / f"{name}.yaml"


def _row(name: str, given: dict[str, Any], columns: Mapping[str, tuple[int, ...]]) -> Row:
    method = given.pop("method")
    recall = {dataset: tuple(given.pop(dataset)) for dataset in columns if dataset in given}
    gain = {dataset: tuple(values) for dataset, values in given.pop("gain", {}).items()}
    for dataset, values in (*recall.items(), *gain.items()):
        if len(values) != len(columns[dataset]):
            raise InvalidInput(f"{name}, {method}: {len(values)} values of {dataset} for K = {columns[dataset]}")
    known = {key: given.pop(key) for key in ("recipe", "over", "reported", "labels") if key in given}
    return Row(method, recall=recall, gain=gain, measures=given, **known)
