"""Everything that can be trained, trained at a small scale on one dataset, beside the nearest neighbour in pixels.

Each run has a folder of its own, so an interrupted series is resumed, and finished runs are only read. Names with the
same settings share a run.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metrix import data as datasets
from metrix import evaluate
from metrix.errors import check_integer
from metrix.experiments.methods import MethodRun, list_runs
from metrix.experiments.train_once import train_once
from metrix.train.batches import open_data
from metrix.train.config import Config
from metrix.train.presets import preset
from metrix.train.watching import Watcher

STEPS = 200
PHOTO_SIDE = 16  # pixels
# Few enough classes for two hundred steps to show each of them, and its proxy, often. Learning rates of proxies suit 64
# dimensions: with the default, 100 times the head's, training is unstable. All of this was chosen by Recall@1 of these
# very runs, so that everything trains in few steps: it shows that a method works, not which one is best.
BASE: dict[str, Any] = {
    "train_classes": 100,
    "loss": "contrastive",
    "reduction": "mean_nonzero",
    "lr": 3e-3,
    "mixup": ("embed",),
    "strength": 0.4,
    "lam_per": "batch",
}
LOSS_SETTINGS: dict[str, dict[str, Any]] = {
    "contrastive": {"reduction": "mean_nonzero"},
    "binomial-deviance": {"gamma": 10.0},
    "proxy-anchor": {"reduction": "original", "proxy_lr": 0.03},
    "proxy-nca": {"proxy_lr": 0.03},
    "proxy-nca++": {"proxy_lr": 0.03},
    "normalized-softmax": {"proxy_lr": 0.03},
    "cosface": {"proxy_lr": 0.03},
    "arcface": {"proxy_lr": 0.03},
    "subcenter-arcface": {"proxy_lr": 0.03},
    "potential-field": {"proxy_lr": 0.03},
    "recall-at-k": {"temperature": 0.2},  # with SiMix, the best of 0.05 to 1 on held-out training characters
    "nca": {"lam_per": "pair"},  # pairs that share their λ leave its mixed loss without a gradient
}


@dataclass(frozen=True)
class MethodResult:
    """One name and the measures of its runs, one number for each seed."""

    entry: MethodRun
    settings: str
    recalls: tuple[float, ...]  # Recall@1 on unseen classes, per cent
    seconds: float  # of training, the mean over seeds
    folders: tuple[Path, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.recalls)


@dataclass(frozen=True)
class AllMethodsResult:
    """All names with their measures, and the nearest neighbour in pixels."""

    folder: Path
    data: str
    steps: int
    seeds: int
    pixels: float  # Recall@1, per cent
    rows: tuple[MethodResult, ...]
    left_out: tuple[MethodRun, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "folder": str(self.folder),
            "data": self.data,
            "steps": self.steps,
            "seeds": self.seeds,
            "pixels_recall@1": self.pixels,
            "rows": [
                {
                    "group": row.entry.group,
                    "name": row.entry.name,
                    "settings": row.settings,
                    "recall@1": list(row.recalls),
                    "mean_recall@1": row.mean,
                    "above_pixels": row.mean > self.pixels,
                    "seconds": row.seconds,
                    "runs": [str(folder) for folder in row.folders],
                }
                for row in self.rows
            ],
            "left_out": [{"group": e.group, "name": e.name, "why": e.left_out} for e in self.left_out],
        }


def build_base_config(data: str, steps: int) -> Config:
    """The settings that all runs have in common."""
    return preset("glyphs").with_values({**BASE, "data": data, "max_steps": steps})


def build_run_config(entry: MethodRun, base: Config) -> Config:
    """The configuration of a run; its seed is set later."""
    own = LOSS_SETTINGS.get(entry.changes["loss"], {})
    return base.with_values({"reduction": None, **own, **entry.changes})


def describe_settings(config: Config) -> str:
    """The settings in which runs differ, as text: loss, mixup, pairs, pooling, scheme."""
    mixing, pool = config.mixing, config.model.pool
    parts = [config.loss.loss, "clean" if not mixing.mixup else mixing.describe()]
    if mixing.mixup:
        parts.append("+".join(mixing.pairs))
    others = [name for name, usual in ((pool, "avg+max"), (config.train.scheme, "none")) if name != usual]
    return ", ".join([*parts, *others])


def count_runs(data: str, steps: int, seeds: int) -> int:
    """The number of runs of the series, finished ones included."""
    base = build_base_config(data, steps)
    return seeds * len(
        {describe_settings(build_run_config(entry, base)) for entry in list_runs() if entry.left_out is None}
    )


def train_all_methods(
    folder: Path = Path("runs/methods"),
    data: str = "glyphs",
    steps: int = STEPS,
    seeds: int = 1,
    watcher_of: Callable[[str, int], Watcher] = lambda name, seed: Watcher(),
) -> AllMethodsResult:
    """Train every method that can be named, or resume or read its runs.

    Args:
        folder: where the runs are
        data: the dataset
        steps: of each run
        seeds: how many runs of each method
        watcher_of: gives the watcher of a run, from its settings as text and its seed
    """
    check_integer("seeds", seeds, least=1)
    base = build_base_config(data, steps)
    kept: dict[str, MethodResult] = {}
    rows = []
    for entry in list_runs():
        if entry.left_out is not None:
            continue
        config = build_run_config(entry, base)
        words = describe_settings(config)
        if words not in kept:
            place = folder / f"{steps}-steps" / re.sub(r"[^\w+]+", "-", words)
            runs = [
                train_once(config.with_values({"seed": s}), place / f"seed-{s}", watcher_of(words, s))
                for s in range(seeds)
            ]
            results = [run.results or {} for run in runs]
            recalls = tuple(100.0 * result["test"]["recall"]["1"] for result in results)
            seconds = statistics.fmean(result["seconds"] for result in results)
            kept[words] = MethodResult(entry, words, recalls, seconds, tuple(run.path for run in runs))
        shared = kept[words]
        rows.append(MethodResult(entry, words, shared.recalls, shared.seconds, shared.folders))
    left_out = tuple(entry for entry in list_runs() if entry.left_out is not None)
    return AllMethodsResult(folder, data, steps, seeds, measure_pixels(base)[1], tuple(rows), left_out)


def measure_pixels(config: Config, ks: Sequence[int] = (1,)) -> dict[int, float]:
    """Recall@K, per cent, of the nearest neighbours by the cosine of pixels, on the unseen classes.

    Photos are shrunk to 16 x 16 pixels, which bounds the memory that they take.
    """
    dataset = open_data(config, in_memory=False)
    # the values themselves, because a cosine depends on where zero is
    view = datasets.inference_transform(PHOTO_SIDE, mean=(0.0,) * 3, std=(1.0,) * 3)

    def read(part: datasets.Part) -> torch.Tensor:
        shrunk = part if dataset.catalogue.layout.startswith("glyphs") else part.with_transform(view)
        batches = datasets.loader(shrunk, batch_size=256, workers=config.data.workers)
        return torch.cat([images.flatten(1).float() for images, _ in batches])

    if dataset.separate_gallery:
        queries, gallery = dataset.query, dataset.gallery
        found = evaluate.recall_at_k(read(queries), queries.labels, ks, read(gallery), gallery.labels)
    else:
        found = evaluate.recall_at_k(read(dataset.test), dataset.test.labels, ks)
    return {k: 100.0 * float(value) for k, value in found.items()}
