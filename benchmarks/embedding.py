"""Speed of `metrix embed` on a CPU against loops over a timm model, on the same generated JPEGs in one run.

The plain loop decodes a batch, then runs the model, in eager mode; the other one decodes in DataLoader processes. All
take the same backbone at 224×224 pixels and all processors. `python -m benchmarks.embedding`
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks.loading import _cache_in, write_photos
from benchmarks.measuring import at_least

BACKBONE = "resnet50"
BATCH = 32
ROUNDS = 2
TARGET = 2.0


def run() -> list[dict[str, Any]]:
    """Measure the rates in turn, and how long the choice of an engine takes."""
    from metrix.model.engines import choose_engine
    from metrix.runs.embedding_blocks import BlocksInMemory
    from metrix.runs.trained_model import open_run

    with tempfile.TemporaryDirectory() as name, _cache_in(Path(name) / "cache"):
        photos = Path(name) / "photos"
        write_photos(photos)
        model = open_run(_train_briefly(photos, Path(name) / "run"))
        dataset = model.open_data()
        part = model.select_part(dataset, "all")
        images, _ = model.with_test_view(dataset, part).batch(range(16))
        begin = time.perf_counter()
        engine, measured = choose_engine(model.embedder, images, 1_000_000)
        choosing = time.perf_counter() - begin
        files = [photos / path for path in part.paths]

        def embed() -> None:
            model.fill_blocks(BlocksInMemory(len(part)), dataset, part, engine=engine)

        seconds = _take_turns(
            {"plain": lambda: _plain_loop(files), "loader": lambda: _loader_loop(files), "metrix": embed}
        )
    rates = {name: len(files) / value for name, value in seconds.items()}
    chosen = next((one for one in measured if one.engine == engine.name), None)
    exactness = f"engine {engine.name}" + (f", cosine ≥ {chosen.smallest_cosine:.6f}" if chosen else "")
    return [
        _note("timm in a plain eager loop", rates["plain"], "images/s", BACKBONE),
        _note("timm with DataLoader processes", rates["loader"], "images/s", BACKBONE),
        _note("metrix embed", rates["metrix"], "images/s", exactness),
        _note("choosing the engine, once", choosing, "s"),
        at_least("metrix embed / plain timm loop", rates["metrix"] / rates["plain"], TARGET, "×", exactness),
        _note("metrix embed / timm with DataLoader processes", rates["metrix"] / rates["loader"], "×"),
    ]


def _train_briefly(photos: Path, folder: Path) -> Path:
    """A run of one step: speed does not depend on the weights."""
    from metrix.train import Config, train

    values = {"data": str(photos), "backbone": BACKBONE, "dim": 128, "max_steps": 1, "batch_size": 4, "per_class": 2}
    cheap = {"holdout": 0.0, "unseen": 0.1, "mixup": [], "freeze_to": "layer4", "epochs": 1}
    return train(Config().with_values({**values, **cheap}), folder).path


def _model_and_view() -> tuple[Any, Any]:
    import timm

    model = timm.create_model(BACKBONE, num_classes=128).eval()
    config = timm.data.resolve_model_data_config(model)
    return model, timm.data.create_transform(**{**config, "crop_pct": 224 / 256})


def _plain_loop(files: list[Path]) -> None:
    model, view = _model_and_view()
    with torch.inference_mode():
        for start in range(0, len(files), BATCH):
            images = [view(Image.open(file).convert("RGB")) for file in files[start : start + BATCH]]
            torch.nn.functional.normalize(model(torch.stack(images))).numpy()


class _Files(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, files: list[Path], view: Any) -> None:
        self.files, self.view = files, view

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.view(Image.open(self.files[index]).convert("RGB"))


def _loader_loop(files: list[Path]) -> None:
    model, view = _model_and_view()
    loader = torch.utils.data.DataLoader(_Files(files, view), BATCH, num_workers=torch.get_num_threads())
    with torch.inference_mode():
        for images in loader:
            torch.nn.functional.normalize(model(images)).numpy()


def _take_turns(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The shortest time of each; other load can only lengthen a time."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, work in runs.items():
            begin = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - begin)
    return {name: min(times) for name, times in seconds.items()}


def _note(name: str, value: float, unit: str, note: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": "", "reached": None, "note": note}


def main() -> None:
    for row in run():
        print(f"{row['name']:50} {row['value']:10.2f} {row['unit']:9} {row['target'] or '':6} {row['note']}")


if __name__ == "__main__":
    main()
