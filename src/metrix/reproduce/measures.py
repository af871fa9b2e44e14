"""Measures of finished runs that are not in their results: computed once and kept beside the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metrix.experiments.cells import hash_code
from metrix.files import write_json
from metrix.reproduce.datasets import ReproductionData
from metrix.reproduce.grid import Experiment, Grid, Spread

MEASURED_BY = ("core", "evaluate", "runs")  # packages whose code determines a measure
PIXELS = "pixels.json"
EPOCHS = 10  # passes over the training images from which mixed examples are drawn


def measure_geometry_over_seeds(grid: Grid, experiment: Experiment) -> dict[str, Spread]:
    """Alignment and uniformity of the test embeddings of an experiment, over seeds."""
    found = [_measure_once(run, "geometry", _geometry) for run in grid.runs(experiment)]
    return {name: Spread(tuple(one[name] for one in found)) for name in ("alignment", "uniformity")}


def measure_utilization_over_seeds(grid: Grid, experiment: Experiment) -> Spread:
    """Utilization over seeds: u(Q, X) of clean runs, u(Q, X̂) of runs with mixup."""
    found = [_measure_once(run, "utilization", _utilization) for run in grid.runs(experiment)]
    return Spread(tuple(one["utilization"] for one in found))


def measure_pixels_once(grid: Grid, data: ReproductionData, ks: Sequence[int]) -> dict[int, Spread]:
    """Recall@K in percent of the nearest neighbours in pixels, kept in the folder of the grid.

    Raises:
        MetrixError: The images are not on this machine.
    """
    from metrix.experiments.all_methods import measure_pixels

    config = grid.cells(Experiment({"loss": "contrastive"}, data))[0].config
    key = f"{data.fingerprint} {config.data.unseen} {config.data.split_seed} {list(ks)}"
    path = grid.store.folder / PIXELS
    kept: dict[str, dict[str, float]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if key not in kept:
        kept[key] = {str(k): value for k, value in measure_pixels(config, ks).items()}
        write_json(path, kept, indent=None)
    return {int(k): Spread((value,)) for k, value in kept[key].items()}


def measure_initial_positivity(run: Path) -> dict[str, Any]:
    """P(Pos(a, v)) against λ before training, as in the paper: counted, and predicted by eq. prob."""
    return _measure_once(run, "positivity", _positivity)


def _measure_once(run: Path, name: str, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return a measure of a run, from its file if the code that measures has not changed since."""
    path, code = run.parent / f"{name}.json", hash_code(MEASURED_BY)
    if path.is_file():
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if kept.get("code") == code:
            return kept
    found = {**measure(run), "code": code}
    write_json(path, found, indent=None)
    return found


def _geometry(run: Path) -> dict[str, Any]:
    from metrix.runs import analysis
    from metrix.runs.evaluation import embed_examples
    from metrix.runs.trained_model import open_run

    found = analysis.measure_geometry(embed_examples(open_run(run)))
    return {name: float(found[name]) for name in ("alignment", "uniformity")}


def _utilization(run: Path) -> dict[str, Any]:
    from metrix.runs.analysis import measure_utilization_of_run
    from metrix.runs.trained_model import open_run

    model = open_run(run)
    found = measure_utilization_of_run(model, epochs=EPOCHS)
    mixed = [float(value) for value in found.mixed.values()]
    return {"utilization": min(mixed) if model.config.mixing.mixup else float(found.clean)}


def _positivity(run: Path) -> dict[str, Any]:
    import numpy as np

    from metrix.runs import analysis
    from metrix.runs.evaluation import embed_examples
    from metrix.runs.trained_model import open_run

    model = open_run(run, initial=True)
    train = embed_examples(model, part="train")
    loss = analysis.build_analysed_loss(model.config, {}, len(np.unique(train.labels)))
    curves = analysis.measure_positivity(train, loss, model.config)
    return {name: getattr(curves, name).tolist() for name in ("lams", "empirical", "theoretical")}
