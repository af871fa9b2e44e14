"""Estimate how long the cells of a grid will take on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from metrix.experiments.cells import Cell, CellStore, config_of_record
from metrix.reproduce.datasets import ReproductionData
from metrix.train.config import Config

FORWARD = 1 / 3  # time to embed a test image, relative to training on an image


@dataclass(frozen=True)
class Size:
    """The number of images and classes of a dataset."""

    train: int
    test: int
    train_classes: int

    def steps(self, config: Config) -> int:
        """The number of steps of a run."""
        share = (config.data.train_classes or self.train_classes) / max(1, self.train_classes)
        epoch = math.ceil(self.train * min(1.0, share) / config.train.batch_size)
        return min(config.train.epochs * max(1, epoch), config.train.max_steps or 10**12)


def count_images(data: ReproductionData) -> Size:
    """Count the images and classes of a dataset."""
    import numpy as np

    catalogue = data.catalogue
    train = catalogue.labels[catalogue.where("train")]
    return Size(len(train), len(catalogue) - len(train), len(np.unique(train)))


class DurationEstimate:
    """Estimates the duration of cells from finished cells of the same kind, or else from a short calibration."""

    def __init__(self, cells: Sequence[Cell], sizes: dict[str, Size], store: CellStore) -> None:
        self.sizes, self.store = sizes, store
        self.examples = {self.group(one): one.config for one in cells}

    @staticmethod
    def group(one: Cell) -> tuple[Any, ...]:
        """What the time per step depends on."""
        config = one.config
        return (one.kind, config.model.backbone, config.data.image_size, config.train.batch_size)

    @cached_property
    def finished(self) -> dict[tuple[Any, ...], float]:
        """Seconds per step of the finished cells, evaluation included, by group."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for key, record in self.store.records():
            results = self.store.results(key)
            if results is not None:
                group = self.group(Cell(key, config_of_record(record), record["name"]))
                found.setdefault(group, []).append(seconds_of_steps(results) / max(1, results["steps"]))
        return {group: sum(values) / len(values) for group, values in found.items()}

    @cached_property
    def calibrated(self) -> dict[tuple[Any, ...], float]:
        """Seconds per step, measured in this process for the groups without a finished cell."""
        from metrix.reproduce.steps import calibrate

        networks: dict[tuple[Any, ...], dict[str, Config]] = {}
        for (kind, *network), config in self.examples.items():
            if (kind, *network) not in self.finished:
                networks.setdefault(tuple(network), {})[kind] = config
        return {
            (kind, *network): seconds
            for network, kinds in networks.items()
            for kind, seconds in calibrate(kinds).items()
        }

    @property
    def source(self) -> str:
        """What the estimate is based on, in words."""
        known = sum(group in self.finished for group in self.examples)
        if known == len(self.examples):
            return "from the finished runs"
        return "from a short calibration" if not known else "from the finished runs and a short calibration"

    def seconds(self, one: Cell, data: str) -> float:
        """Estimate the duration of a cell on a dataset, in seconds."""
        group, size = self.group(one), self.sizes[data]
        steps = size.steps(one.config)
        if group in self.finished:
            return self.finished[group] * steps
        clean = min(self.calibrated[other] for other in self.calibrated if other[1:] == group[1:])
        return self.calibrated[group] * steps + clean * FORWARD * size.test / one.config.train.batch_size


def seconds_of_steps(results: Mapping[str, Any]) -> float:
    """The duration of a run without that of the activations of its frozen trunk, which other runs find computed."""
    return float(results.get("seconds", 0.0)) - float(results.get("activation_seconds", 0.0))
