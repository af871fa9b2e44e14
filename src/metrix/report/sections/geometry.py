"""Geometry of the embeddings: alignment, uniformity and utilization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metrix.errors import MetrixError
from metrix.evaluate import Estimate
from metrix.report.figures.bars import draw_bars
from metrix.report.figures.maps import draw_utilization_maps
from metrix.report.page import Block, Cell, Column, Figure, Section, SideBySide, Table, Text, Value
from metrix.report.reported_runs import MeasuredRun, ReportedRun, measured_runs
from metrix.report.sections import name_missing
from metrix.runs.analysis import (
    Utilization,
    estimate_to_dict,
    measure_geometry,
    measure_utilization,
)
from metrix.runs.mixed_examples import mix_embeddings
from metrix.search import nearest_others
from metrix.train.batches import Report

EPOCHS = 10  # of mixed examples, as in the paper
DRAWN_QUERIES, DRAWN_NEAREST, DRAWN_OTHERS = 40, 3, 150

Found = dict[str, dict[str, Any]]


def build_geometry_section(
    runs: Sequence[ReportedRun], test_only: bool, seed: int, report: Report
) -> tuple[Section, Found]:
    """Alignment and uniformity of the test embeddings, and their distance to the training embeddings."""
    blocks: list[Block] = []
    found: Found = {}
    why: list[str] = []
    shown = measured_runs(runs)
    for done, one in enumerate(shown, 1):
        found[one.name] = measure_geometry(one.test)
        if not test_only:
            try:
                used = measure_utilization(one.test, one.train, EPOCHS, config=one.config, seed=seed)
                found[one.name]["utilization"] = used
            except MetrixError as error:
                why.append(f"utilization of {one.name}: {error}")
        report("geometry", done, len(shown))
    if found:
        blocks += [Text(_ABOUT), SideBySide([_draw_bars_of(found, [run.name for run in runs]), _build_table(found)])]
    if test_only and found:
        why.append("utilization needs the embeddings of the training data, which --test-only omits")
    blocks += [Text("\n\n".join(why), "missing")] if why else []
    blocks += _draw_maps(shown, found, seed)
    return Section("Geometry", [*blocks, *name_missing(runs)]), found


_ABOUT = (
    "Alignment is the mean squared distance d² of two examples of a class, uniformity the log of the mean of "
    "exp(-2 d²) over all pairs, and utilization the mean squared distance of a test example to the nearest training "
    "example, among the clean ones and among clean and mixed ones together. Lower is better for all three."
)


def _list_panels(found: Found) -> dict[str, dict[str, tuple[float, float | None]]]:
    panels: dict[str, dict[str, tuple[float, float | None]]] = {}
    for name, values in found.items():
        for measure in ("alignment", "uniformity"):
            panels.setdefault(measure, {})[name] = _with_error(values[measure])
        used: Utilization | None = values.get("utilization")
        if used is not None:
            panels.setdefault("utilization, clean", {})[name] = _with_error(used.clean)
            panels.setdefault("utilization, with mixed", {})[name] = _with_error(used.mixed["embed"])
    return panels


def _with_error(value: Any) -> tuple[float, float | None]:
    sampled = isinstance(value, Estimate) and not value.exact
    return float(value), value.standard_error if sampled else None


def _draw_bars_of(found: Found, order: Sequence[str]) -> Figure:
    return draw_bars(_list_panels(found), name="geometry", caption="Lower is better.", order=order)


def _build_table(found: Found) -> Table:
    panels = _list_panels(found)
    columns = [Column("run"), *(Column(measure) for measure in panels)]
    rows: list[list[Cell]] = []
    for name in found:
        cells = [panel.get(name) for panel in panels.values()]
        rows.append([name, *(None if cell is None else Value(cell[0], cell[1], digits=3) for cell in cells)])
    notes = []
    if any("utilization" in values for values in found.values()):
        notes.append(
            f"Mixed examples come from {EPOCHS} epochs of embedding mixup with the run's own pairs and α; metrix "
            "analyze utilization also takes input and feature mixup."
        )
    return Table(columns, rows, "Geometry of the test embeddings", notes, "geometry-table")


def _draw_maps(shown: Sequence[MeasuredRun], found: Found, seed: int) -> list[Block]:
    """Test queries among training examples, for the first run with mixup, or else for the first run."""
    able = [one for one in shown if "utilization" in found[one.name]]
    if not able:
        return []
    one = next((one for one in able if one.config.mixing.mixup), able[0])
    draws, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    mixed = np.concatenate(list(mix_embeddings(one.train, one.config, 1, draws)))
    queries = _unit(random.permutation(one.test.vectors)[:DRAWN_QUERIES])
    drawn = [_choose_near(_unit(some), queries, random) for some in (one.train.vectors, mixed)]
    maps = draw_utilization_maps(drawn[0], drawn[1], queries, name="utilization", seed=seed)
    text = (
        f"{len(queries)} test examples of {one.name}, drawn at random, each with a line to its nearest training "
        "example: among the clean ones on the left, among these and the mixed ones of one epoch on the right. The map "
        f"shows the {DRAWN_NEAREST} nearest of each kind and others at random; d² is measured in the embedding space, "
        "not on the map."
    )
    return [Text(text), SideBySide(list(maps))]


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _choose_near(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], random: np.random.Generator
) -> NDArray[Any]:
    """The nearest neighbours of each query, and others drawn at random."""
    nearest = nearest_others(queries, vectors, DRAWN_NEAREST).rows
    others = random.permutation(len(vectors))[:DRAWN_OTHERS]
    drawn: NDArray[np.float32] = vectors[np.unique(np.concatenate([nearest.reshape(-1), others]))]
    return drawn


def geometry_to_dict(found: Found, name: str) -> dict[str, Any] | None:
    """The numbers of a run for JSON."""
    values = found.get(name)
    if values is None:
        return None
    plain = {key: values[key] for key in ("images", "alignment")}
    plain["alignment"] = float(values["alignment"])
    plain["uniformity"] = estimate_to_dict(values["uniformity"])
    used = values.get("utilization")
    plain["utilization"] = None if used is None else used.to_dict()
    return plain
