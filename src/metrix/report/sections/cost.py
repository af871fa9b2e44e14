"""What a run cost, and how large its model is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrix.errors import MetrixError
from metrix.report.page import Cell, Column, Section, Table
from metrix.report.reported_runs import Subject
from metrix.report.sections import missing

COLUMNS = {
    "seconds": "seconds",
    "steps": "steps",
    "images_per_second": "images/s",
    "parameters": "parameters",
    "trained_parameters": "of these trained",
    "dim": "embedding",
}


def cost_section(subjects: Sequence[Subject]) -> tuple[Section, dict[str, dict[str, Any]]]:
    """Seconds, images per second, parameters."""
    found = {subject.name: _cost(subject) for subject in subjects}
    rows: list[list[Cell]] = [[name, *(_whole(values[key]) for key in COLUMNS)] for name, values in found.items()]
    notes = [
        "Seconds are of training as a whole, with validation, checkpoints and the final measures; images/s are images "
        "of training batches in that time. Compare them only between runs on the same, otherwise idle machine."
    ]
    columns = [Column("run"), *(Column(title) for title in COLUMNS.values())]
    table = Table(columns, rows, "Cost", notes, "cost")
    return Section("Cost", [table, *missing(subjects)]), found


def _cost(subject: Subject) -> dict[str, Any]:
    results = subject.results or {}
    seconds, steps = results.get("seconds"), results.get("steps")
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values |= {"seconds": seconds, "steps": steps if steps is not None else subject.steps}
    values["dim"] = subject.config.model.dim
    if seconds and steps:
        values["images_per_second"] = round(steps * subject.config.train.batch_size / seconds, 1)
    if subject.model is not None:
        try:
            sizes = [(p.numel(), p.requires_grad) for p in subject.model.embedder.parameters()]
        except MetrixError:
            return values
        values["parameters"] = sum(size for size, _ in sizes)
        values["trained_parameters"] = sum(size for size, trained in sizes if trained)
    return values


def _whole(value: float | None) -> Cell:
    """Numbers of this table are large; none needs decimals but small ones.

    >>> _whole(12345.6), _whole(8.25), _whole(None)
    (12346, 8.2, None)
    """
    if value is None or isinstance(value, int):
        return value
    return round(value) if value >= 100 else round(value, 1)
