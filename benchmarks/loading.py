"""Speed of loading images: cached epochs against torchvision's ImageFolder and DataLoader.

Both load random 224×224 training views as normalised float batches, from the same generated JPEGs in one run. Run with
`python -m benchmarks.loading`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from metrix import data

CLASSES, PER_CLASS = 20, 20
WIDTH, HEIGHT = 500, 375
BATCH = 100
EPOCHS = 3
TARGET = 3.0


def run() -> list[dict[str, Any]]:
    """Measure the rates and their ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in loader processes, and the same for both
    try:
        with tempfile.TemporaryDirectory() as folder, _cache_in(Path(folder) / "cache"):
            photos = Path(folder) / "photos"
            write_photos(photos)
            return _measure(photos)
    finally:
        torch.set_num_threads(threads)


def _measure(photos: Path) -> list[dict[str, Any]]:
    loaders: dict[str, Callable[[int], Iterable[Any]]] = {
        "ImageFolder + DataLoader": torchvision_epoch(photos),
        "metrix, no cache": metrix_epoch(photos, "none"),
        "metrix, ram cache": metrix_epoch(photos, "ram"),
        "metrix, disk cache": metrix_epoch(photos, "disk"),
    }
    for load in loaders.values():
        _seconds(load(0))  # the first epoch fills caches
    seconds: dict[str, list[float]] = {name: [] for name in loaders}
    for epoch in range(1, EPOCHS + 1):  # in turn, so that other load affects all alike
        for name, load in loaders.items():
            seconds[name].append(_seconds(load(epoch)))
    rates = {name: CLASSES * PER_CLASS / statistics.median(times) for name, times in seconds.items()}
    rows = [_row(f"{name}: loading", rate, "images/s") for name, rate in rates.items()]
    reference = rates["ImageFolder + DataLoader"]
    for kind in ("ram", "disk"):
        rows.append(
            _row(
                f"second epoch, {kind} cache / ImageFolder",
                rates[f"metrix, {kind} cache"] / reference,
                "x",
                TARGET,
            )
        )
    return rows


def torchvision_epoch(photos: Path) -> Callable[[int], Iterable[Any]]:
    """Load an epoch as torchvision's reference scripts do."""
    from torchvision import datasets, transforms

    view = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(data.IMAGENET_MEAN, data.IMAGENET_STD),
        ]
    )
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(str(photos), view), batch_size=BATCH, shuffle=True)
    return lambda epoch: loader


def metrix_epoch(photos: Path, cache: str) -> Callable[[int], Iterable[Any]]:
    """Load an epoch with metrix."""
    part = data.open(photos, unseen=0.0, cache=cache).train.with_transform(data.train_transform(224))
    sampler = data.RandomSampler(len(part), BATCH)
    loader = data.loader(part, sampler)

    def epoch(number: int) -> Iterable[Any]:
        part.set_epoch(number)
        sampler.set_epoch(number)
        return loader

    return epoch


def write_photos(folder: Path) -> None:
    """Write JPEGs with smooth and detailed regions, as photographs have."""
    rng = np.random.default_rng(0)
    for k in range(CLASSES):
        (folder / f"class{k:02d}").mkdir(parents=True)
        for n in range(PER_CLASS):
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.float32)
            noisy = smooth + rng.normal(0, 8, smooth.shape).astype(np.float32)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"class{k:02d}" / f"{n}.jpg", quality=90)


def _seconds(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    images = sum(len(labels) for _, labels in batches)
    if images != CLASSES * PER_CLASS:
        raise RuntimeError(f"an epoch gave {images} images")
    return time.perf_counter() - start


def _row(name: str, value: float, unit: str, target: float | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "target": target,
        "reached": None if target is None else value >= target,
    }


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("METRIX_CACHE")
    os.environ["METRIX_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["METRIX_CACHE"]
        else:
            os.environ["METRIX_CACHE"] = before


def main() -> None:
    for row in run():
        goal = "" if row["target"] is None else f"   at least {row['target']:g}: {'yes' if row['reached'] else 'NO'}"
        print(f"{row['name']:45} {row['value']:10.1f} {row['unit']}{goal}")


if __name__ == "__main__":
    main()
