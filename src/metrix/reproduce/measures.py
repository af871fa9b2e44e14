"""What tables and figures need of a finished run beyond its results: measured once and kept beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metrix.files import write_json
from metrix.reproduce.cells import source_hash
from metrix.reproduce.grid import Grid, Spread, Wanted

MEASURED_BY = ("core", "evaluate", "runs")  # folders of source that a measure depends on
EPOCHS = 10  # passes over the training images that mixed examples are drawn in


def geometry(grid: Grid, wanted: Wanted) -> dict[str, Spread]:
    """Alignment and uniformity of the test embeddings, over seeds."""
    found = [_kept(run, "geometry", _geometry) for run in grid.runs(wanted)]
    return {name: Spread(tuple(one[name] for one in found)) for name in ("alignment", "uniformity")}


def utilization(grid: Grid, wanted: Wanted) -> Spread:
    """u(Q, X) of a clean run; u(Q, X̂) with the mixed examples of a run with mixup."""
    found = [_kept(run, "utilization", _utilization) for run in grid.runs(wanted)]
    return Spread(tuple(one["utilization"] for one in found))


def positivity(run: Path) -> dict[str, Any]:
    """P(Pos(a, v)) against λ before the first step, as the paper measures it: counted, and by eq. prob."""
    return _kept(run, "positivity", _positivity)


def _kept(run: Path, name: str, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What was measured of a run, from its cell if the code that measures is the same, else measured anew."""
    path, code = run.parent / f"{name}.json", source_hash(MEASURED_BY)
    if path.is_file():
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if kept.get("code") == code:
            return kept
    found = {**measure(run), "code": code}
    write_json(path, found, indent=None)
    return found


def _geometry(run: Path) -> dict[str, Any]:
    from metrix.runs import analysis
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import examples_of_run

    found = analysis.geometry(examples_of_run(TrainedModel(run)))
    return {name: float(found[name]) for name in ("alignment", "uniformity")}


def _utilization(run: Path) -> dict[str, Any]:
    from metrix.runs.analysis import utilization_of_run
    from metrix.runs.embedding import TrainedModel

    model = TrainedModel(run)
    found = utilization_of_run(model, epochs=EPOCHS)
    mixed = [float(value) for value in found.mixed.values()]
    return {"utilization": min(mixed) if model.config.mixing.mixup else float(found.clean)}


def _positivity(run: Path) -> dict[str, Any]:
    import numpy as np

    from metrix.runs import analysis
    from metrix.runs.embedding import TrainedModel
    from metrix.runs.evaluation import examples_of_run

    model = TrainedModel(run, initial=True)
    train = examples_of_run(model, part="train")
    loss = analysis.loss_of(model.config, {}, len(np.unique(train.labels)))
    curves = analysis.positivity(train, loss, model.config)
    return {name: getattr(curves, name).tolist() for name in ("lams", "empirical", "theoretical")}
