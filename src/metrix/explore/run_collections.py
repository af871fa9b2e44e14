"""Runs as collections for the page: the test images of each, measures and training curves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.data import Part, glyphs
from metrix.errors import InvalidInput
from metrix.evaluate.metrics import find_metric
from metrix.explore.collection import Collection
from metrix.explore.pictures import Picture, count_pixels, encode, name_picture
from metrix.report.reported_runs import MeasuredRun, ReportedRun, measure_run, read_runs
from metrix.retrieve.encoder import ImageEncoder
from metrix.train.batches import Report

CURVES = ("loss", "clean", "mixed", "lr")
RESAMPLES = 200


def read_collections(
    paths: Sequence[Path], pixels: int, report: Report, reading: Mapping[str, Any] | None = None
) -> list[Collection]:
    """The test images of runs, embedded and measured; uploads have at most `pixels`, `reading` is as for `open_run`.

    Raises:
        InvalidInput: a folder is not a run, or its model or data cannot be opened.
    """
    found = []
    for run in read_runs(paths, None, report, reading):
        measure_run(run, None, None, RESAMPLES)
        if run.measured is None:
            raise InvalidInput(f"{run.folder.path}: {run.why}")
        found.append(_collection(run, run.measured, pixels))
    return found


def _collection(run: ReportedRun, measured: MeasuredRun, pixels: int) -> Collection:
    test, model = measured.test, measured.model
    dataset = model.open_data()
    names = ["test"] if test.gallery is None else ["query", "gallery"]
    parts = [model.select_part(dataset, name) for name in names]
    vectors, labels = test.everything
    lock = threading.Lock()
    encoders: list[ImageEncoder] = []
    data = model.config.data.data if model.config.data.data in glyphs.NAMES else None

    key = str((test.about or {}).get("fingerprint", ""))
    version = f"{key[:16]}-{model.digest[:12]}"

    def picture(row: int, size: int, known: str) -> Picture:
        tag = name_picture(version, row, size)
        if tag == known:
            return Picture(None, tag)
        part, at = (parts[0], row) if row < len(parts[0]) else (parts[1], row - len(parts[0]))
        return Picture(encode(_shrunk(_pixels(part, at), size)), tag)

    def embed(content: bytes) -> NDArray[np.float32]:
        count_pixels(content, pixels)
        with lock:  # one upload at a time
            if not encoders:
                encoders.append(ImageEncoder(model, data))
            vector: NDArray[np.float32] = encoders[0].embed([encoders[0].view(_file(content))])[0]
            return vector

    return Collection(
        name=run.name,
        ids=[str(path) for part in parts for path in part.paths],
        labels=np.asarray(labels),
        vectors=np.ascontiguousarray(vectors, dtype=np.float32),
        picture=picture,
        queries=0 if test.gallery is None else len(test.vectors),
        embed=None if model.embedder.takes_vectors else embed,
        about=_about(run, measured),
        key=key,
        version=version,
        sequences=test.every_sequence,
    )


def _about(run: ReportedRun, measured: MeasuredRun) -> dict[str, Any]:
    retrieval = measured.retrieval
    measures = [
        _describe_measure(name, value, retrieval.intervals.get(name)) for name, value in retrieval.means.items()
    ]
    curves: dict[str, list[list[float]]] = {}
    for key in CURVES:
        points = [[float(line["step"]), float(line[key])] for line in run.metrics if key in line and "step" in line]
        if points:
            curves[key] = points
    validated = [line for line in run.metrics if "val" in line]
    if validated:
        curves["validation recall@1"] = [
            [float(line["step"]), float(line["val"]["recall"]["1"])] for line in validated if "step" in line
        ]
    config = run.config
    settings = {
        "data": config.data.data,
        "backbone": config.model.backbone,
        "dimension": config.model.dim,
        "loss": config.objective_name,
        "mixup": config.mixing.describe() if config.mixing.mixup else "none",
        "steps": run.steps,
    }
    over = retrieval.over if retrieval.intervals else None
    about = {"measures": measures, "intervals_over": over, "caution": retrieval.caution}
    return {**about, "curves": curves, "settings": settings}


def _describe_measure(key: str, value: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    """A measure for the table of metrics by K; `k` is None for one without."""
    metric, at = find_metric(key), key.rpartition("@")[2]
    k = int(at) if metric.at_k and at.isdecimal() else None
    return {"metric": metric.name, "k": k, "value": value, "interval": None if interval is None else list(interval)}


def _pixels(part: Part, row: int) -> NDArray[np.uint8]:
    image = part.image(row).numpy()  # (channels, height, width)
    found: NDArray[np.uint8] = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    return found


def _shrunk(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    short = min(pixels.shape[:2])
    if short <= size:
        return pixels
    from PIL import Image

    image = Image.fromarray(pixels)
    width, height = (max(1, round(side * size / short)) for side in image.size)
    return np.array(image.resize((width, height), Image.Resampling.BILINEAR))


def _file(content: bytes) -> Any:
    import io

    return io.BytesIO(content)
