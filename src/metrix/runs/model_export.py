"""The model of a run for other programs: as ONNX, or with torch.export.

Each file has a description in JSON: how an image becomes the network's input, the similarity threshold of the run if it
has one, and what the export differs by from the model in torch.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix import evaluate
from metrix.data import glyphs
from metrix.data.cache import SHORT_SIDE
from metrix.data.reading_ahead import read_ahead
from metrix.errors import InvalidInput
from metrix.model.engines import Engine, measure_engines
from metrix.model.export import (
    OnnxSession,
    build_onnx,
    build_torch_export,
    check_difference,
    measure_difference,
    quantise,
    require_onnx,
    write_onnx,
    write_torch_export,
)
from metrix.runs.embedding_blocks import BlocksInMemory
from metrix.runs.evaluation import Examples, embed_examples
from metrix.runs.output import write_output
from metrix.runs.thresholds import read_threshold
from metrix.runs.trained_model import TrainedModel

FORMAT = 1
CALIBRATED_ON = 256  # training images
_AT_ONCE = 16


@dataclass(frozen=True)
class Int8Measure:
    """What int8 costs and gains: Recall@1 on the run's test part and speed, in float and in int8."""

    way: str  # static or dynamic
    calibration_images: int
    recall_float: float
    recall_int8: float
    interval: tuple[float, float]  # of the loss, at 95 %
    queries: int
    speed: float  # images per second, relative to ONNX in float

    @property
    def loss(self) -> float:
        """Recall@1 in float less that in int8."""
        return self.recall_float - self.recall_int8

    def describe(self) -> str:
        """The measures in a line."""
        low, high = self.interval
        return (
            f"int8 ({self.way}): Recall@1 {self.recall_int8:.4f}, in float {self.recall_float:.4f}: a loss of "
            f"{100 * self.loss:.2f} points ({100 * low:.2f} to {100 * high:.2f}) over {self.queries:,} queries; "
            f"{self.speed:.1f} × as fast as float"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "way": self.way,
            "calibration_images": self.calibration_images,
            "recall@1": {"float": self.recall_float, "int8": self.recall_int8, "loss": self.loss},
            "loss_interval": list(self.interval),
            "queries": self.queries,
            "speed_relative_to_float": self.speed,
        }


@dataclass(frozen=True)
class ExportedModel:
    """The files of an export, and how far it is from the model in torch."""

    files: tuple[Path, ...]
    difference: float | None  # of any entry of an embedding in float; None if the weights are a copy
    int8: Int8Measure | None = None


def export_onnx(model: TrainedModel, path: Path, *, int8: bool = False, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run as ONNX, for any number of images at once, and its description beside it.

    Args:
        model: of the run, from `open_run`
        path: FILE.onnx; the description is FILE.onnx.json
        int8: quantise it, calibrated on training images; its Recall@1 on the test part is measured
        overwrite: replace files of another export

    Raises:
        ModelError: the model cannot be exported, or the export differs by more than 1e-4
    """
    beside = _require_free(model, path, ".onnx", overwrite, int8)
    require_onnx()
    network = build_onnx(model.embedder, model.image_size)
    session = OnnxSession(network)
    difference = measure_difference(model.embedder, session, model.image_size)
    check_difference(difference, f"ONNX export of {model.run.path}")
    about = {**describe_model(model), "largest_difference": difference}
    measured = None
    if int8:
        network, measured = _quantise_best(model, network, session)
        about["int8"] = measured.to_dict()
    _write(path, lambda: write_onnx(network, path, about))
    _write_description(beside, about)
    return ExportedModel((path, beside), difference, measured)


def export_torch(model: TrainedModel, path: Path, *, overwrite: bool = False) -> ExportedModel:
    """Write the model of a run with torch.export, for any number of images, and its description beside it."""
    beside = _require_free(model, path, ".pt2", overwrite)
    program = build_torch_export(model.embedder, model.image_size)
    difference = measure_difference(model.embedder, program.module(), model.image_size)
    check_difference(difference, f"torch.export of {model.run.path}")
    about = {**describe_model(model), "largest_difference": difference}
    _write(path, lambda: write_torch_export(program, path, about))
    _write_description(beside, about)
    return ExportedModel((path, beside), difference)


def describe_model(model: TrainedModel) -> dict[str, Any]:
    """The description of an exported model, ready for JSON."""
    from metrix import __version__

    config = model.config.model
    threshold = read_threshold(model)
    return {
        "format": FORMAT,
        "metrix": __version__,
        "model": model.digest,
        "backbone": config.backbone,
        "pool": config.pool,
        "embedding": {
            "dim": model.dim,
            "of": config.dim,
            "trained_prefixes": list(model.trained_prefixes),
            "norm": 1.0,
            "similarity": "cosine",
        },
        "preprocessing": describe_preprocessing(model),
        "threshold": None if threshold is None else threshold.model_dump(),
    }


# Clients that resize in another way get other embeddings: floats in place of bytes, or a filter that skips pixels.
BILINEAR: dict[str, Any] = {
    "interpolation": "bilinear",
    "antialias": True,
    "filter": "triangle as wide as the reduction, along rows, then columns (Pillow's BILINEAR)",
    "result": "rounded to 8 bits after each pass",
}


def describe_preprocessing(model: TrainedModel) -> dict[str, Any]:
    """How an image becomes the input of the network: the test view of the run, step by step."""
    wanted, size = model.embedder.data_config, model.image_size
    if model.embedder.takes_vectors:  # the network standardises them itself
        return {"input": "float32 (batch, numbers)", "size": size, "steps": []}
    is_glyphs = model.config.data.data in glyphs.NAMES
    steps: list[dict[str, Any]] = [{"decode": "grey" if is_glyphs else "RGB", "upright": True, "transparent": "white"}]
    interpolation = "bilinear"
    if is_glyphs and wanted.channels == 1:
        size, interpolation = glyphs.SIZE, "bicubic"
        steps.append({"resize_to": [size, size], "interpolation": interpolation})
    else:
        if model.config.data.cache != "none":
            steps.append({"shrink_shorter_side_to_at_most": SHORT_SIDE, **BILINEAR, "longer_side": "rounded"})
        if wanted.channels != (1 if is_glyphs else 3):
            steps.append({"convert_to": "grey" if wanted.channels == 1 else "RGB"})
        shorter = round(size * 256 / 224)
        steps.append({"resize_shorter_side_to": shorter, **BILINEAR, "longer_side": "truncated"})
        steps.append({"crop_centre_to": [size, size], "offset": "half of what is cut off, rounded half to even"})
    steps += [{"divide_by": 255}, {"subtract": list(wanted.mean)}, {"divide_by": list(wanted.std)}]
    return {
        "input": "float32 (batch, channels, height, width)",
        "channels": wanted.channels,
        "channel_order": "grey" if wanted.channels == 1 else "RGB",
        "size": size,
        "crop": "none" if interpolation == "bicubic" else "centre",
        "interpolation": interpolation,
        "range": [0.0, 1.0],
        "mean": list(wanted.mean),
        "std": list(wanted.std),
        "steps": steps,
    }


def _quantise_best(model: TrainedModel, network: Any, session: OnnxSession) -> tuple[Any, Int8Measure]:
    """The network in int8, static or dynamic: the faster, unless it certainly loses Recall@1 and the other loses less.

    Static is faster for convolutions, dynamic for transformers.
    """
    dataset = model.open_data()
    part = model.with_test_view(dataset, model.select_part(dataset, "train"))
    rows = np.sort(np.random.default_rng(0).permutation(len(part))[:CALIBRATED_ON])
    chunks = [rows[n : n + _AT_ONCE].tolist() for n in range(0, len(rows), _AT_ONCE)]
    networks = {
        "static": quantise(network, (batch.numpy() for batch in read_ahead(part, chunks))),
        "dynamic": quantise(network),
    }
    engines = {way: Engine(way, OnnxSession(quantised), _AT_ONCE) for way, quantised in networks.items()}
    images = next(read_ahead(part, chunks))
    in_float, *in_int8 = measure_engines(
        [Engine("float", session, _AT_ONCE), *engines.values()], images, time.perf_counter
    )
    speeds = {one.engine: one.images_per_second / in_float.images_per_second for one in in_int8}
    examples = embed_examples(model)
    exact = _measure(examples)

    def measure(way: str) -> Int8Measure:
        difference = evaluate.compare(exact, _measure(_embed_again(model, examples, engines[way])))["recall@1"]
        return Int8Measure(
            way=way,
            calibration_images=len(rows) if way == "static" else 0,
            recall_float=difference.a,
            recall_int8=difference.b,
            interval=(0.0 - difference.high, 0.0 - difference.low),
            queries=exact.queries,
            speed=speeds[way],
        )

    faster, slower = sorted(speeds, key=lambda way: -speeds[way])
    found = measure(faster)
    if found.interval[0] > 0:
        found = min(found, measure(slower), key=lambda one: one.loss)
    return networks[found.way], found


def _measure(examples: Examples) -> evaluate.Retrieval:
    return evaluate.retrieval(**examples.arguments, ks=(1,), resamples=0)


def _embed_again(model: TrainedModel, examples: Examples, engine: Engine) -> Examples:
    """The same examples by another engine."""
    dataset = model.open_data()

    def embed(name: str) -> NDArray[np.float32]:
        part = model.select_part(dataset, name)
        blocks = BlocksInMemory(len(part))
        model.fill_blocks(blocks, dataset, part, engine=engine)
        return blocks.read_all()

    if examples.gallery is None:
        return replace(examples, vectors=embed("test"))
    return replace(examples, vectors=embed("query"), gallery=embed("gallery"))


def _require_free(model: TrainedModel, path: Path, suffix: str, overwrite: bool, int8: bool = False) -> Path:
    """The path of the description beside `path`; an error if a file of another export would be replaced unasked."""
    if path.suffix.lower() != suffix:
        raise InvalidInput(f"expected a file name that ends in {suffix}, got {path}")
    beside = path.with_name(f"{path.name}.json")
    taken = [file for file in (path, beside) if file.exists()]
    if taken and not overwrite and not is_export_of(model, beside, int8):
        raise InvalidInput(f"{taken[0]} already exists with other content: choose another name, or give --overwrite")
    return beside


def is_export_of(model: TrainedModel, description: Path, int8: bool = False) -> bool:
    """Whether a description says that its export has the weights of this model, in int8 or not."""
    try:
        content = json.loads(description.read_bytes())
        same = content["model"] == model.digest and content["embedding"]["dim"] == model.dim
        return bool(same and ("int8" in content) == int8)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(path: Path, write: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}; choose another place") from error


def _write_description(path: Path, about: dict[str, Any]) -> None:
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    write_output(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
