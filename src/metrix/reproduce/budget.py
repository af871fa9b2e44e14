"""`metrix reproduce --budget 8h`: the largest scale at which the requested tables fit into a time on this machine.

Scales go from the paper's own down to a few epochs of a small network. The largest one that fits with three seeds is
chosen, and what time is left goes into more seeds. The choice is kept in the folder of the runs, so that the same
command resumes the same runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.files import write_json
from metrix.messages import count
from metrix.reproduce.datasets import GLYPHS, QUICK, ReproductionData, choose_data
from metrix.reproduce.duration import DurationEstimate
from metrix.reproduce.grid import build_grid
from metrix.reproduce.items import Item, cells_of_items

FILE = "budget.json"
LEAST_SEEDS, MOST_SEEDS = 3, 10
MARGIN = 1.2  # by which runs take longer than estimated, for the tables, figures and the report
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Scale:
    """Settings of all runs, and the same in words."""

    words: str
    changes: Mapping[str, Any]


# A whole small network on small photos, as the preset `cpu/cars` has it; the losses keep the paper's parameters.
_SMALL: dict[str, Any] = {
    "backbone": "efficientnet_lite0",
    "weights": "pretrained",
    "image_size": 96,
    "dim": 128,
    "frozen_bn": True,
    "head_init": "whiten",
    "batch_size": 100,
    "sampler": "balanced",
    "per_class": 5,
    "lr": 1e-4,
    "head_lr": 3e-4,
    "schedule": "cosine",
    "warmup_epochs": 0,
    "cache": "ram",
}
PHOTO_SCALES = (
    Scale("the paper's settings", {}),
    *(
        Scale(
            f"EfficientNet-Lite0 at 96 px, {classes or 'all'} training classes, {epochs} epochs",
            {**_SMALL, "epochs": epochs, **({} if classes is None else {"train_classes": classes})},
        )
        for classes, epochs in ((None, 30), (None, 12), (50, 12), (25, 12), (25, 6), (25, 3))
    ),
)
GLYPHS_SCALES = (
    *(
        Scale(f"{classes} training characters, {steps} steps", {"train_classes": classes, "max_steps": steps})
        for classes, steps in ((300, 1500), (100, 1000), (30, 500), (30, 250))
    ),
    Scale("30 training characters, 100 steps (as --quick)", QUICK),
)


@dataclass(frozen=True)
class Plan:
    """What fits into a budget: a scale, a number of seeds, and how long they take by the estimate."""

    scale: Scale
    seeds: int
    runs: int
    seconds: float
    source: str

    def describe(self) -> str:
        """The plan in words, without the time."""
        return f"{self.scale.words}, {count(self.seeds, 'seed')}, {count(self.runs, 'run')}"


def parse_duration(text: str) -> float:
    """Seconds from a number with a unit: s, m (or min), h, d.

    >>> parse_duration("8h"), parse_duration("90 min")
    (28800.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if not found or found[2] not in _UNITS or float(found[1]) <= 0:
        raise InvalidInput(f"--budget: expected a time such as 8h, 90m or 2d, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def plan_budget(
    budget: str, items: Sequence[Item], data: Sequence[str], flags: Mapping[str, Any], folder: Path, jobs: int
) -> Plan:
    """Choose scale and seeds for some tables and figures, or read the choice of an earlier call in this folder.

    Args:
        budget: The time, such as `8h`.
        items: The tables and figures.
        data: Datasets as NAME=PATH; glyphs if there are none.
        flags: Configuration keys that the user sets for all runs; they override those of the scale.
        folder: Where the runs are.
        jobs: How many runs are trained in parallel.

    Raises:
        InvalidInput: Not even the smallest scale fits; the message says what it would take.
    """
    seconds = parse_duration(budget)
    scales = [_override(scale, flags) for scale in _choose_scales(choose_data(data))]
    asked = {"seconds": seconds, "items": [item.name for item in items], "data": list(data), "jobs": jobs}
    asked["flags"] = json.loads(json.dumps(dict(flags), default=str))
    kept = _read(folder, asked, scales)
    if kept is not None:
        return kept
    plan = _fit(seconds, items, scales, data, folder, jobs)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {"scale": plan.scale.words, "seeds": plan.seeds, "runs": plan.runs, "estimate": plan.seconds}
    write_json(folder / FILE, {"asked": asked, **chosen, "source": plan.source})
    return plan


def _choose_scales(datasets: Sequence[ReproductionData]) -> tuple[Scale, ...]:
    of_glyphs = [data.spec in GLYPHS for data in datasets]
    if any(of_glyphs) and not all(of_glyphs):
        raise InvalidInput("--budget: expected datasets of photos or glyphs, got both, whose scales differ; give one")
    return GLYPHS_SCALES if all(of_glyphs) else PHOTO_SCALES


def _override(scale: Scale, flags: Mapping[str, Any]) -> Scale:
    """The scale with the settings of the user, which its words name."""
    told = "".join(f", {key} {value}" for key, value in flags.items())
    return Scale(scale.words + (f"; changed:{told[1:]}" if told else ""), {**scale.changes, **flags})


def _fit(
    seconds: float,
    items: Sequence[Item],
    scales: Sequence[Scale],
    data: Sequence[str],
    folder: Path,
    jobs: int,
) -> Plan:
    """The largest scale that fits with the least number of seeds, and as many more seeds as fit."""
    grids = [build_grid(data, 1, scale.changes, folder) for scale in scales]
    cells = [cells_of_items(items, grid) for grid in grids]
    estimate = DurationEstimate([one for found in cells for one in found], grids[0].store, jobs)
    needed = 0.0
    for scale, found in zip(scales, cells, strict=True):
        each = MARGIN * sum(map(estimate.seconds, found)) / jobs  # of one seed
        needed = LEAST_SEEDS * each
        if needed <= seconds:
            seeds = min(MOST_SEEDS, int(seconds / each)) if each else LEAST_SEEDS
            return Plan(scale, seeds, seeds * len(found), seeds * each, estimate.source)
    raise InvalidInput(
        f"--budget: expected at least {needed / 60:.0f}m for {', '.join(item.name for item in items)} with "
        f"{LEAST_SEEDS} seeds at the smallest scale ({scales[-1].words}), got {seconds / 60:.0f}m; choose fewer tables"
    )


def _read(folder: Path, asked: Mapping[str, Any], scales: Sequence[Scale]) -> Plan | None:
    """The plan of an earlier call with the same request; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = json.loads(path.read_text("utf-8"))
    by_words = {scale.words: scale for scale in scales}
    if content["asked"] != asked or content["scale"] not in by_words:
        return None
    scale = by_words[content["scale"]]
    return Plan(scale, content["seeds"], content["runs"], content["estimate"], content["source"])
