"""The grid of runs: which cells the experiments of a reproduction need, and the results of the finished ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.evaluate.seeds import SeedDifferences
from metrix.experiments.cells import Cell, CellStore, make_cell
from metrix.reproduce.datasets import PAPER_DIM, QUICK, QUICK_SEEDS, SEEDS, ReproductionData, build_config, choose_data
from metrix.reproduce.paper import Recipe

SEEDS_TO_TELL = 3  # two seeds cannot tell methods apart: their spread is known too badly


@dataclass(frozen=True)
class Spread:
    """The values of a measure over the seeds; empty if nothing was run."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None with fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def decided(self) -> bool:
        """Whether the 95 % interval of the mean excludes zero; fewer than three values never tell."""
        return len(self.values) >= SEEDS_TO_TELL and SeedDifferences(self.values).decided

    def differs_from(self, other: Spread) -> bool:
        """Whether the means differ by more than the seeds explain; fewer than three seeds never tell.

        >>> few, more = Spread((1.0, 1.2)), Spread((1.0, 1.2, 1.1))
        >>> few.differs_from(Spread((9.0, 9.1))), more.differs_from(Spread((9.0, 9.1, 9.0)))
        (False, True)
        """
        if len(self.values) != len(other.values):
            return False
        return Spread(tuple(a - b for a, b in zip(self.values, other.values, strict=True))).decided

    def text(self, digits: int = 1, sign: bool = False) -> str:
        """Format as mean ± standard deviation; empty if nothing was run.

        >>> Spread((1.0, 2.0)).text()
        '1.5 ± 0.7'
        """
        if self.mean is None:
            return ""
        mean = f"{self.mean:{'+' if sign else ''}.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{digits}f}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"mean": self.mean, "deviation": self.deviation, "values": list(self.values)}


@dataclass(frozen=True)
class Experiment:
    """A method trained on a dataset, once per seed."""

    recipe: Recipe
    data: ReproductionData
    dim: int = PAPER_DIM


def build_grid(
    data: Sequence[str],
    seeds: int | None,
    changes: Mapping[str, Any],
    folder: Path,
    quick: bool = False,
    scale: str = "",
) -> Grid:
    """Build the grid of a reproduction and check it.

    Args:
        data: Datasets as NAME=PATH; glyphs if there are none.
        seeds: Runs per experiment; 3 by default, 2 with `quick`.
        changes: Configuration keys to set in all runs.
        folder: Where cells are kept.
        quick: Train for a short time on few classes.
        scale: The settings that a budget chose, in words.
    """
    count = seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS
    datasets = tuple(choose_data(data, changes.get("root"), bool(changes.get("follow_links"))))
    grid = Grid(datasets, tuple(range(count)), {**(QUICK if quick else {}), **changes}, CellStore(folder), quick, scale)
    grid.check()
    return grid


@dataclass(frozen=True)
class Grid:
    """Datasets, seeds and changed settings of a reproduction, and the store of its cells."""

    datasets: tuple[ReproductionData, ...]
    seeds: tuple[int, ...]
    changes: Mapping[str, Any]
    store: CellStore
    quick: bool = False
    scale: str = ""
    _known: dict[str, list[Cell]] = field(default_factory=dict)

    def check(self) -> None:
        """Check that every dataset can be read and that the changed settings are valid.

        Raises:
            InvalidInput: One of them is not.
        """
        if self.changes.get("epochs") == 0:
            raise InvalidInput("--epochs: expected at least 1, got 0: the rows of a table are trained networks")
        for data in self.datasets:
            self.cells(Experiment({"loss": "contrastive"}, data))

    def cells(self, experiment: Experiment) -> list[Cell]:
        """The cells of an experiment, one per seed.

        Raises:
            InvalidInput: The method cannot be trained on this dataset with these settings.
        """
        key = repr((sorted(experiment.recipe.items()), experiment.data.name, experiment.dim))
        if key not in self._known:
            self._known[key] = [
                make_cell(
                    build_config(experiment.data, experiment.recipe, seed, experiment.dim, dict(self.changes)),
                    experiment.data,
                )
                for seed in self.seeds
            ]
        return self._known[key]

    def distinct_cells(self, experiments: Iterable[Experiment]) -> list[Cell]:
        """All cells of some experiments, each once, ordered by seed so that every table gets its first results early.

        Experiments that cannot be trained are left out.
        """
        found: dict[str, Cell] = {}
        by_seed: list[list[Cell]] = [[] for _ in self.seeds]
        for one in experiments:
            if self.why_not(one) is None:
                for column, part in zip(by_seed, self.cells(one), strict=True):
                    column.append(part)
        for column in by_seed:
            found.update({one.key: one for one in column if one.key not in found})
        return list(found.values())

    def why_not(self, experiment: Experiment) -> str | None:
        """Why an experiment cannot be trained; None if it can."""
        try:
            self.cells(experiment)
        except InvalidInput as error:
            return str(error)
        return None

    def recall(self, experiment: Experiment) -> dict[int, Spread]:
        """Recall@K in percent over the finished cells of an experiment, by K."""
        return self._recall(experiment, "test")

    def untrained_recall(self, experiment: Experiment) -> dict[int, Spread]:
        """The same of the networks of an experiment before training."""
        return self._recall(experiment, "untrained_test")

    def _recall(self, experiment: Experiment, when: str) -> dict[int, Spread]:
        found: dict[int, list[float]] = {}
        for results in self._results(experiment):
            for k, value in results.get(when, {"recall": {}})["recall"].items():
                found.setdefault(int(k), []).append(100.0 * value)
        return {k: Spread(tuple(values)) for k, values in found.items()}

    def gain(self, experiment: Experiment, over: Experiment, k: int = 1) -> Spread:
        """Difference in Recall@K to another experiment, in points, between cells with the same seed."""
        if self.why_not(experiment) or self.why_not(over):
            return Spread()
        pairs = zip(self.cells(experiment), self.cells(over), strict=True)
        both = [(self.store.results(a.key), self.store.results(b.key)) for a, b in pairs]
        return Spread(
            tuple(
                100.0 * (after["test"]["recall"][str(k)] - before["test"]["recall"][str(k)])
                for after, before in both
                if after is not None and before is not None
            )
        )

    def runs(self, experiment: Experiment) -> list[Path]:
        """The folders of the finished runs of an experiment."""
        if self.why_not(experiment):
            return []
        finished = [one for one in self.cells(experiment) if self.store.results(one.key) is not None]
        return [self.store.run(one.key).path for one in finished]

    def missing(self, experiment: Experiment) -> str | None:
        """Why the result of some seeds is missing; None if all are finished."""
        reason = self.why_not(experiment)
        if reason is not None:
            return f"Not available: {reason.partition(';')[0]}."
        cells = self.cells(experiment)
        left = [one for one in cells if self.store.results(one.key) is None]
        if not left:
            return None
        errors = [error for one in left if (error := self.store.read_record(one.key).get("error"))]
        if errors:
            return f"{len(left)} of {len(cells)} runs failed: {errors[0]}"
        return "Not run." if len(left) == len(cells) else f"{len(left)} of {len(cells)} runs are not finished."

    def _results(self, experiment: Experiment) -> list[dict[str, Any]]:
        if self.why_not(experiment):
            return []
        found = [self.store.results(one.key) for one in self.cells(experiment)]
        return [results for results in found if results is not None]
