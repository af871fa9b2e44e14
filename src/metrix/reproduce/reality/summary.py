"""The methods over all datasets: ranks, what mixup gains, what tuning gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.evaluate.method_ranks import (
    FEWEST_DATASETS,
    FriedmanTest,
    bound_mean_ranks,
    compare_ranks,
    find_critical_difference,
    group_methods,
    rank_methods,
)
from metrix.evaluate.seeds import SeedDifferences
from metrix.experiments.tuning.finals import Contrast
from metrix.experiments.tuning.methods import TunedMethod
from metrix.reproduce.reality.outcome import DatasetOutcome


@dataclass(frozen=True)
class OverDatasets:
    """Differences of a method to another, dataset by dataset."""

    name: str
    against: str
    contrasts: dict[str, Contrast]  # by dataset
    images: Mapping[str, str]  # fingerprint of each dataset: the same images with other settings count as one

    @property
    def _differences(self) -> list[float]:
        """A difference for each dataset of different images."""
        by_images: dict[str, list[float]] = {}
        for name, one in self.contrasts.items():
            by_images.setdefault(self.images[name], []).append(one.difference)
        return [statistics.fmean(several) for several in by_images.values()]

    @property
    def mean(self) -> float:
        """The mean over datasets."""
        return statistics.fmean(self._differences)

    @property
    def margin(self) -> float | None:
        """Half the 95 % interval of the mean over datasets (Student's t); None with too few of them."""
        values = tuple(self._differences)
        return SeedDifferences(values).margin if len(values) >= FEWEST_DATASETS else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "method": self.name,
            "against": self.against,
            "mean": self.mean,
            "margin": self.margin,
            "datasets": {name: one.to_dict() for name, one in self.contrasts.items()},
        }


@dataclass(frozen=True)
class MethodRanks:
    """Ranks of the methods that were measured on every dataset, 1 for the best Recall@1 on the test classes."""

    methods: tuple[str, ...]
    ranks: NDArray[np.float64]  # (datasets, methods)
    images: tuple[str, ...]  # fingerprint of each dataset

    @cached_property
    def counted(self) -> NDArray[np.float64]:
        """The ranks (different datasets, methods) that are compared; the same images count once, by mean ranks."""
        rows = [[row for row, own in zip(self.ranks, self.images, strict=True) if own == one] for one in self.images]
        different = dict(zip(self.images, rows, strict=True)).values()
        return rank_methods([-np.mean(several, axis=0) for several in different])

    @property
    def means(self) -> dict[str, float]:
        """The mean rank of each method, the best first."""
        pairs = sorted(zip(self.methods, self.counted.mean(axis=0), strict=True), key=lambda pair: pair[1])
        return {name: float(mean) for name, mean in pairs}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of the mean ranks over another draw of datasets."""
        bounds = bound_mean_ranks(self.counted)
        return {name: (float(low), float(high)) for name, (low, high) in zip(self.methods, bounds, strict=True)}

    @cached_property
    def friedman(self) -> FriedmanTest:
        """Whether mean ranks differ by more than chance."""
        return compare_ranks(self.counted)

    @cached_property
    def critical_difference(self) -> float:
        """How far two mean ranks have to be apart (Nemenyi, 5 %)."""
        return find_critical_difference(len(self.methods), len(self.counted))

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Methods whose mean ranks cannot be told apart."""
        return group_methods(self.means, self.critical_difference)


@dataclass(frozen=True)
class CheckResult:
    """A finished reality check."""

    methods: tuple[TunedMethod, ...]
    trials: int  # that were planned for each method
    folds: int
    seeds: int
    outcomes: tuple[DatasetOutcome, ...]

    @property
    def different_data(self) -> int:
        """The number of datasets that are not the same images under another name."""
        return len({one.fingerprint for one in self.outcomes})

    @property
    def generalises(self) -> bool:
        """Whether ranks over these datasets say anything about other datasets."""
        return self.different_data >= FEWEST_DATASETS and self.ranks is not None

    @cached_property
    def ranks(self) -> MethodRanks | None:
        """Ranks of the methods that were measured on every dataset; None if there are not two of them."""
        found = {method.name: [one.find(method.name) for one in self.outcomes] for method in self.methods}
        recalls = {name: [one.recall for one in several if one] for name, several in found.items()}
        whole = {name: values for name, values in recalls.items() if len(values) == len(self.outcomes)}
        if len(whole) < 2:
            return None
        images = tuple(one.fingerprint for one in self.outcomes)
        return MethodRanks(tuple(whole), rank_methods(np.array(list(whole.values())).T), images)

    @cached_property
    def mixup(self) -> list[OverDatasets]:
        """What mixup gains over the same loss without it."""
        return self._contrasts([(one.name, one.clean.name) for one in self.methods if one.mixing])

    @cached_property
    def losses(self) -> list[OverDatasets]:
        """How losses without mixup differ from the first of the methods."""
        first = self.methods[0].name
        return self._contrasts([(one.name, first) for one in self.methods[1:] if not one.mixing])

    def _contrasts(self, pairs: Sequence[tuple[str, str]]) -> list[OverDatasets]:
        found, images = [], {one.name: one.fingerprint for one in self.outcomes}
        for name, against in pairs:
            by_data = {one.name: one.find_contrast(name, against) for one in self.outcomes}
            known = {data: contrast for data, contrast in by_data.items() if contrast is not None}
            if known:
                found.append(OverDatasets(name, against, known, images))
        return found

    @property
    def tuning_gains(self) -> list[float]:
        """How far the best settings are above the usual ones on the folds, of all methods and datasets, in points."""
        gains = [one.tuning_gain for outcome in self.outcomes for one in outcome.methods]
        return [gain for gain in gains if gain is not None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ranks = self.ranks
        over: dict[str, Any] | None = None
        if ranks is not None and self.generalises:
            over = {
                "intervals": {name: list(ranks.intervals[name]) for name in ranks.means},
                "friedman": {
                    "chi_square": ranks.friedman.chi_square,
                    "f": ranks.friedman.f if np.isfinite(ranks.friedman.f) else None,
                    "p_value": ranks.friedman.p_value,
                },
                "critical_difference": ranks.critical_difference,
                "groups": [list(group) for group in ranks.groups],
            }
        return {
            "methods": [method.name for method in self.methods],
            "trials": self.trials,
            "folds": self.folds,
            "seeds": self.seeds,
            "datasets": [one.to_dict() for one in self.outcomes],
            "ranks": None
            if ranks is None
            else {
                "means": ranks.means,
                "by_dataset": {
                    one.name: dict(zip(ranks.methods, map(float, row), strict=True))
                    for one, row in zip(self.outcomes, ranks.ranks, strict=True)
                },
                "over_datasets": over,
            },
            "mixup": [one.to_dict() for one in self.mixup],
            "losses": [one.to_dict() for one in self.losses],
        }
