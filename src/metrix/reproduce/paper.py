"""The numbers printed in the paper, read from one YAML file in `paper/` per table or figure.

Each row of a table names its method, the configuration keys that train it (`recipe`) and the baseline row that its
gain is measured `over`. A row without a recipe repeats a number reported by other authors and is not run.
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
class PaperRow:
    """A row of a table of the paper: Recall@K in percent by dataset, or other measures by name."""

    method: str
    recipe: Recipe | None = None
    over: str | None = None
    reported: bool = False  # the paper quotes the number of the method's authors
    labels: Mapping[str, str] = field(default_factory=dict)
    recall: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    gain: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper; `columns` holds the values of K in Recall@K for each dataset."""

    name: str
    label: str
    title: str
    setup: Mapping[str, Any]
    rows: tuple[PaperRow, ...]
    columns: Mapping[str, tuple[int, ...]]
    label_columns: tuple[str, ...]
    studies: bool  # whether the method of a row names the study that the row belongs to
    gain_over_best: Mapping[str, tuple[float, ...]]

    def row(self, method: str) -> PaperRow:
        """Return the first row of a method: the baseline that other rows are measured over."""
        for row in self.rows:
            if row.method == method:
                return row
        raise unknown_choice(f"method of table {self.name}", method, [row.method for row in self.rows])


@cache
def load_numbers(name: str) -> dict[str, Any]:
    """Load one file of the paper's numbers as plain YAML content."""
    found: dict[str, Any] = yaml.safe_load(_file(name).read_text("utf-8"))
    return found


@cache
def load_table(name: str) -> PaperTable:
    """Load a table of the paper and check that every row fits its columns."""
    given = load_numbers(name)
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


def _row(name: str, given: dict[str, Any], columns: Mapping[str, tuple[int, ...]]) -> PaperRow:
    method = given.pop("method")
    recall = {dataset: tuple(given.pop(dataset)) for dataset in columns if dataset in given}
    gain = {dataset: tuple(values) for dataset, values in given.pop("gain", {}).items()}
    for dataset, values in (*recall.items(), *gain.items()):
        if len(values) != len(columns[dataset]):
            raise InvalidInput(
                f"{name}.yaml, {method}: expected {len(columns[dataset])} values for {dataset}, one for each K in "
                f"{columns[dataset]}, got {len(values)}"
            )
    known = {key: given.pop(key) for key in ("recipe", "over", "reported", "labels") if key in given}
    return PaperRow(method, recall=recall, gain=gain, measures=given, **known)
