"""Which engine embeds many images: chosen once for all processes and after interruptions, and described to the user.

`metrix embed` and `metrix index` share it; queries to an index go through the engine that made its vectors, where that
matters.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from metrix.data import Dataset, Part
from metrix.data.reading_ahead import read_ahead
from metrix.errors import MetrixWarning, ModelError, unknown_choice
from metrix.files import lock, write_json
from metrix.model.engines import (
    AUTO,
    ENGINES,
    TORCH,
    Engine,
    build_engine,
    choose_engine,
    measure_engines,
    open_engine_file,
)
from metrix.runs.trained_model import TrainedModel
from metrix.search.description import VectorEngine

_COMPARED = 16  # images on which engines are compared


@dataclass(frozen=True, eq=False)
class WantedEngine:
    """An engine that a user named: `auto`, one of the others, or a file."""

    name: str  # of a file, that of its content
    file: Path | None = None
    opened: Engine | None = None  # the file

    def extend_key(self, key: str) -> str:
        """The key of embeddings by this engine, from that of the exact ones."""
        return key_of_engine(key, self.name)


@dataclass(frozen=True, eq=False)
class ChosenEngine:
    """The engine that embeds, and what was measured of it and others, the exact one first."""

    engine: Engine
    measured: tuple[Mapping[str, Any], ...] = ()
    file: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        file = {} if self.file is None else {"file": str(self.file)}
        return {"name": self.engine.name, **file, "measured": [dict(one) for one in self.measured]}

    def to_record(self) -> VectorEngine:
        """What an index remembers of it."""
        own = next((one for one in self.measured if one["engine"] == self.engine.name), {})
        return VectorEngine(
            name=self.engine.name,
            file=None if self.file is None else str(self.file.resolve()),
            smallest_cosine=own.get("smallest_cosine"),
            largest_difference=own.get("largest_difference"),
        )


def read_engine(text: str, model: TrainedModel) -> WantedEngine:
    """The engine that a user named.

    Raises:
        ChoiceError: there is no such engine.
        ModelError: the file cannot be read, or was exported from another model.
    """
    if text.endswith(".onnx"):
        opened = open_engine_file(Path(text), model.digest, model.image_size, model.dim)
        return WantedEngine(opened.name, Path(text), opened)
    if text not in ENGINES:
        raise unknown_choice("engine", text, (*ENGINES, "FILE.onnx"))
    return WantedEngine(text)


def reopen_engine(used: VectorEngine, model: TrainedModel) -> WantedEngine:
    """The engine that made the vectors of an index.

    Raises:
        ModelError: its file is missing, or another.
    """
    if used.file is None:
        return read_engine(used.name, model)
    found = read_engine(used.file, model)
    if found.name != used.name:
        raise ModelError(f"{used.file}: expected the file that the index was built with ({used.name}), got another")
    return found


def key_of_engine(key: str, engine: str) -> str:
    """The key of embeddings by an engine: `key` itself for the exact one."""
    return key if engine == TORCH else hashlib.sha256(f"{key}|{engine}".encode()).hexdigest()


def agree_on_engine(
    model: TrainedModel, folder: Path, dataset: Dataset, part: Part, wanted: WantedEngine
) -> ChosenEngine:
    """The engine of all processes that embed into the blocks of a folder, now and after an interruption.

    The first one chooses and measures, on some of the images, and leaves its choice in the folder.
    """
    if wanted.name == TORCH:
        return ChosenEngine(build_engine(TORCH, model.embedder))
    kept = folder / "engine.json"
    with lock(folder / "engine.lock"):
        engine = wanted.opened
        if kept.is_file():
            content = json.loads(kept.read_bytes())
            engine = engine or build_engine(content["name"], model.embedder, model.image_size)
            return ChosenEngine(engine, tuple(content["measured"]), wanted.file)
        images = _read_some(model, dataset, part)
        if not len(images):  # embedding them says so
            return ChosenEngine(build_engine(TORCH, model.embedder))
        if wanted.name == AUTO:
            engine, found = choose_engine(model.embedder, images, len(part), model.image_size)
        else:
            engine = engine or build_engine(wanted.name, model.embedder, model.image_size)
            found = measure_engines([build_engine(TORCH, model.embedder), engine], images, time.perf_counter)
        measured = tuple(one.to_dict() for one in found)
        write_json(kept, {"name": engine.name, "measured": list(measured)})
        return ChosenEngine(engine, measured, wanted.file)


def _read_some(model: TrainedModel, dataset: Dataset, part: Part) -> Tensor:
    """Images to compare engines on, evenly from the whole part; broken ones are left out, and none may be left."""
    still, total = model.with_test_view(dataset, part), len(part)
    spread = np.linspace(0, total - 1, num=min(total, _COMPARED), dtype=int).tolist()
    others = (list(range(first, min(first + _COMPARED, total))) for first in range(0, total, _COMPARED))
    for rows in chain([spread], others):  # others only if all of the first are broken
        images = next(read_ahead(still, [rows], model.config.data.workers or None, lambda row, reason: None))
        if len(images):
            break
    return images


def open_query_engine(used: VectorEngine, model: TrainedModel) -> Engine:
    """The engine for queries to an index: the exact one, if it makes the same vectors; else that of the index.

    Where the engine of the index does not run, it is the exact one, with a warning.
    """
    exact = build_engine(TORCH, model.embedder)
    if used.is_exact:
        return exact
    try:
        wanted = reopen_engine(used, model)
        return wanted.opened or build_engine(wanted.name, model.embedder, model.image_size)
    except ModelError as error:
        differ = "" if used.smallest_cosine is None else f", to which cosines are at least {used.smallest_cosine:.5g}"
        warnings.warn(
            f"the vectors of this index were made by the engine {used.name}, which does not run here ({error}); "
            f"queries go through torch{differ}",
            MetrixWarning,
            stacklevel=2,
        )
        return exact


def describe_engine(used: Mapping[str, Any]) -> str:
    """The engine that made embeddings, from `ChosenEngine.to_dict`: how fast it is and how exact, in a line.

    >>> describe_engine({"name": "torch", "measured": []})
    'torch (exact)'
    """
    measured = {one["engine"]: one for one in used["measured"]}
    name = used.get("file", used["name"])
    own, exact = measured.get(used["name"]), measured.get(TORCH)
    if own is None or exact is None:
        return "torch (exact)" if name == TORCH else name
    if name == TORCH:
        return f"torch (exact), the fastest of {', '.join(measured)}"
    faster = own["images_per_second"] / exact["images_per_second"]
    return (
        f"{name}, {faster:.1f} × as fast as torch; on {own['images']} images, entries differ by at most "
        f"{own['largest_difference']:.1g} from the exact ones, cosines are at least {own['smallest_cosine']:.7g}"
    )
