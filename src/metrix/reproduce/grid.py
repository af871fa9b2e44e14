"""Which runs the asked-for tables and figures need, and what those that are finished measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.reproduce.cells import Cell, Store, cell
from metrix.reproduce.datasets import PAPER_DIM, Data, settings
from metrix.reproduce.paper import Recipe


@dataclass(frozen=True)
class Spread:
    """A measure over seeds; without values nothing was run."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean, if there is a value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation, from two values on."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def text(self, digits: int = 1, sign: bool = False) -> str:
        """Mean ± standard deviation; empty if nothing was run.

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
class Wanted:
    """A method on a dataset, with as many runs as there are seeds."""

    recipe: Recipe
    data: Data
    dim: int = PAPER_DIM


@dataclass(frozen=True)
class Grid:
    """Datasets, seeds and changed settings; and where the cells are."""

    datasets: tuple[Data, ...]
    seeds: tuple[int, ...]
    changes: Mapping[str, Any]
    store: Store
    quick: bool = False
    _known: dict[str, list[Cell]] = field(default_factory=dict)

    def check(self) -> None:
        """What was given fits together: every dataset can be read, and the changed settings are settings."""
        for data in self.datasets:
            self.cells(Wanted({"loss": "contrastive"}, data))

    def cells(self, wanted: Wanted) -> list[Cell]:
        """A cell for each seed; a method that cannot be trained here is an `InvalidInput`."""
        key = repr((sorted(wanted.recipe.items()), wanted.data.name, wanted.dim))
        if key not in self._known:
            self._known[key] = [
                cell(settings(wanted.data, wanted.recipe, seed, wanted.dim, dict(self.changes)), wanted.data)
                for seed in self.seeds
            ]
        return self._known[key]

    def every_cell(self, wanted: Iterable[Wanted]) -> list[Cell]:
        """The distinct cells of all that is wanted and can be trained: seed by seed, so that early tables are whole."""
        found: dict[str, Cell] = {}
        by_seed: list[list[Cell]] = [[] for _ in self.seeds]
        for one in wanted:
            if self.why_not(one) is None:
                for column, part in zip(by_seed, self.cells(one), strict=True):
                    column.append(part)
        for column in by_seed:
            found.update({one.key: one for one in column if one.key not in found})
        return list(found.values())

    def why_not(self, wanted: Wanted) -> str | None:
        """Why a method has no cells; None if it has."""
        try:
            self.cells(wanted)
        except InvalidInput as error:
            return str(error)
        return None

    def recall(self, wanted: Wanted) -> dict[int, Spread]:
        """Recall@K in percent over the finished cells."""
        found: dict[int, list[float]] = {}
        for results in self._results(wanted):
            for k, value in results["test"]["recall"].items():
                found.setdefault(int(k), []).append(100.0 * value)
        return {k: Spread(tuple(values)) for k, values in found.items()}

    def gain(self, wanted: Wanted, over: Wanted, k: int = 1) -> Spread:
        """Recall@K less that of another method, of cells with the same seed."""
        if self.why_not(wanted) or self.why_not(over):
            return Spread()
        pairs = zip(self.cells(wanted), self.cells(over), strict=True)
        both = [(self.store.results(a.key), self.store.results(b.key)) for a, b in pairs]
        return Spread(
            tuple(
                100.0 * (after["test"]["recall"][str(k)] - before["test"]["recall"][str(k)])
                for after, before in both
                if after is not None and before is not None
            )
        )

    def runs(self, wanted: Wanted) -> list[Path]:
        """The folders of the finished runs."""
        if self.why_not(wanted):
            return []
        return [self.store.run(one.key).path for one in self.cells(wanted) if self.store.results(one.key) is not None]

    def missing(self, wanted: Wanted) -> str | None:
        """Why a result is not there, or not of all seeds; None if it is."""
        reason = self.why_not(wanted)
        if reason is not None:
            return f"Not available: {reason.partition(';')[0]}."
        cells = self.cells(wanted)
        left = [one for one in cells if self.store.results(one.key) is None]
        if not left:
            return None
        errors = [noted["error"] for one in left if (noted := self.store.noted(one.key)).get("error")]
        if errors:
            return f"{len(left)} of {len(cells)} runs failed: {errors[0]}"
        return "Not run." if len(left) == len(cells) else f"{len(left)} of {len(cells)} runs are not finished."

    def _results(self, wanted: Wanted) -> list[dict[str, Any]]:
        if self.why_not(wanted):
            return []
        found = [self.store.results(one.key) for one in self.cells(wanted)]
        return [results for results in found if results is not None]
