"""Cost: duration of training, throughput and size of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrix.errors import MetrixError
from metrix.report.page import Cell, Column, Section, Table
from metrix.report.reported_runs import ReportedRun, name_examples_of
from metrix.report.sections import name_missing

COLUMNS = {
    "seconds": "seconds",
    "activation_seconds": "of these, activations",
    "steps": "steps",
    "images_per_second": "{examples}/s",
    "parameters": "parameters",
    "trained_parameters": "trained parameters",
    "dim": "embedding dimension",
}


def build_cost_section(runs: Sequence[ReportedRun]) -> tuple[Section, dict[str, dict[str, Any]]]:
    """The cost of each run, as a section and as plain numbers by run."""
    found = {run.name: _cost(run) for run in runs}
    frozen = any(run.config.model.views for run in runs)
    shown = [key for key in COLUMNS if key != "activation_seconds" or frozen]
    rows: list[list[Cell]] = [[name, *(_whole(values[key]) for key in shown)] for name, values in found.items()]
    examples = name_examples_of(runs)
    notes = [
        "Seconds are the whole time of training, with preparation, validation, checkpoints and the final evaluation; "
        f"{examples}/s counts the {examples} of training batches in that time. Compare them only between runs on the "
        "same, otherwise idle machine."
    ]
    if frozen:
        notes.append(
            "Activations of a frozen trunk are computed once and kept: a run that found them computed by an earlier "
            f"one spent little on them. {examples}/s leaves them out."
        )
    unknown = [run.name for run in runs if _lacks_activations(run)]
    if unknown:
        notes.append(f"{', '.join(unknown)}: the time of the activations was not recorded, and is not in the seconds.")
    columns = [Column("run"), *(Column(COLUMNS[key].format(examples=examples)) for key in shown)]
    table = Table(columns, rows, "Cost", notes, "cost")
    return Section("Cost", [table, *name_missing(runs)]), found


def _cost(run: ReportedRun) -> dict[str, Any]:
    results = run.results or {}
    seconds, steps = results.get("seconds"), results.get("steps")
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    activations = results.get("activation_seconds")
    values |= {"seconds": seconds, "activation_seconds": activations}
    values["steps"] = steps if steps is not None else run.steps
    values["dim"] = run.config.model.dim
    in_steps = (seconds or 0.0) - (activations or 0.0)
    if in_steps > 0 and steps:
        values["images_per_second"] = round(steps * run.config.train.batch_size / in_steps, 1)
    if run.model is not None:
        try:
            sizes = [(p.numel(), p.requires_grad) for p in run.model.embedder.parameters()]
        except MetrixError:
            return values
        values["parameters"] = sum(size for size, _ in sizes)
        values["trained_parameters"] = sum(size for size, trained in sizes if trained)
    if run.config.model.peft != "none":  # the model of the run is merged
        values["trained_parameters"] = results.get("trained_parameters")
    return values


def _lacks_activations(run: ReportedRun) -> bool:
    """Whether it is a run of an earlier version, whose seconds began after the activations were computed."""
    return bool(run.config.model.views and run.results is not None and "activation_seconds" not in run.results)


def _whole(value: float | None) -> Cell:
    """A number rounded for the table: to an integer from 100 on, to one decimal below.

    >>> _whole(12345.6), _whole(8.25), _whole(None)
    (12346, 8.2, None)
    """
    if value is None or isinstance(value, int):
        return value
    return round(value) if value >= 100 else round(value, 1)
