"""Everything that can be trained, trained small on one bench, beside the nearest neighbour in pixels.

Every run is a folder of its own, so a series that was interrupted goes on, and what is finished is only read. The
same run serves every name whose settings are the same.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metrix import data as datasets
from metrix import evaluate
from metrix.errors import check_integer
from metrix.experiments.methods import Entry, entries
from metrix.experiments.train_once import finished
from metrix.train.batches import ImageBatches, open_data, select_training_part
from metrix.train.build import build_embedder
from metrix.train.config import Config
from metrix.train.presets import preset
from metrix.train.watching import Watcher

STEPS = 200
# So many classes that two hundred steps show each of them, and its proxy, often enough. Learning rates of proxies suit
# 64 dimensions: the default of 100 times the head's throws them about. All of it is chosen so that everything trains
# in few steps, by Recall@1 of these very runs: good for seeing that a method works, not for saying which is best.
BASE: dict[str, Any] = {"train_classes": 100}
OF_LOSS: dict[str, dict[str, Any]] = {
    "contrastive": {"reduction": "mean_nonzero"},
    "binomial-deviance": {"gamma": 10.0},
    "proxy-anchor": {"reduction": "original", "proxy_lr": 0.03},
    "proxy-nca": {"proxy_lr": 0.03},
    "proxy-nca++": {"proxy_lr": 0.03},
}


@dataclass(frozen=True)
class Row:
    """One name and what its runs measured, one number for each seed."""

    entry: Entry
    settings: str
    recalls: tuple[float, ...]  # Recall@1 on unseen classes, per cent
    seconds: float  # of training, on average
    folders: tuple[Path, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.recalls)


@dataclass(frozen=True)
class Field:
    """All names with their measures, and the nearest neighbour in pixels."""

    folder: Path
    data: str
    steps: int
    seeds: int
    pixels: float  # Recall@1, per cent
    rows: tuple[Row, ...]
    left_out: tuple[Entry, ...]

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


def base_config(data: str, steps: int) -> Config:
    """What all runs have in common."""
    return preset("glyphs").with_values({**BASE, "data": data, "max_steps": steps})


def config_of(entry: Entry, base: Config) -> Config:
    """The configuration of an entry, without a seed."""
    own = OF_LOSS.get(entry.changes["loss"], {})
    return base.with_values({"reduction": None, **own, **entry.changes})


def words_for(config: Config) -> str:
    """What is told apart: loss, mixup, pairs, pooling, scheme."""
    mixing, pool = config.mixing, config.model.pool
    parts = [config.loss.loss, "clean" if not mixing.mixup else mixing.describe()]
    if mixing.mixup:
        parts.append("+".join(mixing.pairs))
    others = [name for name, usual in ((pool, "avg+max"), (config.train.scheme, "none")) if name != usual]
    return ", ".join([*parts, *others])


def runs_of(data: str, steps: int, seeds: int) -> int:
    """How many runs there are to do in all."""
    base = base_config(data, steps)
    return seeds * len({words_for(config_of(entry, base)) for entry in entries() if entry.left_out is None})


def train_field(
    folder: Path = Path("runs/methods"),
    data: str = "glyphs",
    steps: int = STEPS,
    seeds: int = 1,
    watcher_of: Callable[[str, int], Watcher] = lambda name, seed: Watcher(),
) -> Field:
    """Train, or go on, or read what is finished; `watcher_of` gives each run its watcher."""
    check_integer("seeds", seeds, least=1)
    base = base_config(data, steps)
    kept: dict[str, Row] = {}
    rows = []
    for entry in entries():
        if entry.left_out is not None:
            continue
        config = config_of(entry, base)
        words = words_for(config)
        if words not in kept:
            place = folder / f"{steps}-steps" / re.sub(r"[^\w+]+", "-", words)
            runs = [
                finished(config.with_values({"seed": s}), place / f"seed-{s}", watcher_of(words, s))
                for s in range(seeds)
            ]
            results = [run.results or {} for run in runs]
            recalls = tuple(100.0 * result["test"]["recall"]["1"] for result in results)
            seconds = statistics.fmean(result["seconds"] for result in results)
            kept[words] = Row(entry, words, recalls, seconds, tuple(run.path for run in runs))
        shared = kept[words]
        rows.append(Row(entry, words, shared.recalls, shared.seconds, shared.folders))
    left_out = tuple(entry for entry in entries() if entry.left_out is not None)
    return Field(folder, data, steps, seeds, pixels(base), tuple(rows), left_out)


def pixels(config: Config) -> float:
    """Recall@1, per cent, of the nearest neighbour by the cosine of pixels, on the unseen classes."""
    dataset = open_data(config, lambda what, done, of: None)
    embedder = build_embedder(config)
    view = ImageBatches(config, embedder, dataset, select_training_part(config, dataset)).test_view
    images = torch.cat([x for x, _ in datasets.loader(dataset.test.with_transform(view), batch_size=256)])
    mean, std = (torch.tensor(x).view(1, -1, 1, 1) for x in (embedder.data_config.mean, embedder.data_config.std))
    vectors = (images * std + mean).flatten(1)  # as they were: a cosine depends on where zero is
    return 100.0 * float(evaluate.recall_at_k(vectors, dataset.test.labels, ks=(1,))[1])
