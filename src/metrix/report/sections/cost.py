"""Cost: duration of training, throughput and size of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrix.errors import MetrixError
from metrix.report.page import Cell, Column, Section, Table
from metrix.report.reported_runs import ReportedRun
from metrix.report.sections import name_missing

COLUMNS = {
    "seconds": "seconds",
    "steps": "steps",
    "images_per_second": "images/s",
    "parameters": "parameters",
    "trained_parameters": "trained parameters",
    "dim": "embedding dimension",
}


def build_cost_section(runs: Sequence[ReportedRun]) -> tuple[Section, dict[str, dict[str, Any]]]:
    """The cost of each run, as a section and as plain numbers by run."""
    found = {run.name: _cost(run) for run in runs}
    rows: list[list[Cell]] = [[name, *(_whole(values[key]) for key in COLUMNS)] for name, values in found.items()]
    notes = [
        "Seconds are the whole training time, including validation, checkpoints and the final evaluation; images/s "
        "counts the images of training batches in that time. Compare them only between runs on the same, otherwise "
        "idle machine."
    ]
    columns = [Column("run"), *(Column(title) for title in COLUMNS.values())]
    table = Table(columns, rows, "Cost", notes, "cost")
    return Section("Cost", [table, *name_missing(runs)]), found


def _cost(run: ReportedRun) -> dict[str, Any]:
    results = run.results or {}
    seconds, steps = results.get("seconds"), results.get("steps")
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values |= {"seconds": seconds, "steps": steps if steps is not None else run.steps}
    values["dim"] = run.config.model.dim
    if seconds and steps:
        values["images_per_second"] = round(steps * run.config.train.batch_size / seconds, 1)
    if run.model is not None:
        try:
            sizes = [(p.numel(), p.requires_grad) for p in run.model.embedder.parameters()]
        except MetrixError:
            return values
        values["parameters"] = sum(size for size, _ in sizes)
        values["trained_parameters"] = sum(size for size, trained in sizes if trained)
    return values


def _whole(value: float | None) -> Cell:
    """A number rounded for the table: to an integer from 100 on, to one decimal below.

    >>> _whole(12345.6), _whole(8.25), _whole(None)
    (12346, 8.2, None)
    """
    if value is None or isinstance(value, int):
        return value
    return round(value) if value >= 100 else round(value, 1)
