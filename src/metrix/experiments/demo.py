"""The demo: the same small model trained with and without Metrix from the same seeds, and compared.

Each run has a folder of its own, so an interrupted demo is resumed, and a finished one only read. Differences are
paired: between two runs with the same seed, which start from the same weights and see the same batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix import evaluate
from metrix.errors import InvalidInput, MetrixError
from metrix.evaluate.metrics import find_metric, metric_name
from metrix.evaluate.seeds import SeedDifferences
from metrix.experiments.train_once import train_once
from metrix.retrieve.encoder import fingerprint
from metrix.retrieve.indexing import index_images
from metrix.retrieve.queries import Queries, queries_by_id, search_queries
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.search import Index
from metrix.train.config import Config
from metrix.train.presets import preset
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher

SIDES = ("clean", "metrix")
SEEDS = 4  # three leave an interval as wide as the effect; more take longer than a demo should
KS = (1, 2, 4)
MEASURES = {
    metric_name(key): find_metric(key)
    for key in (*(f"recall@{k}" for k in KS), "alignment", "uniformity", "utilization")
}
_FILE = "demonstration.json"


@dataclass(frozen=True)
class Contrast:
    """One measure of the clean runs and of those with Metrix, seed by seed."""

    measure: str
    clean: tuple[float, ...]
    metrix: tuple[float, ...]

    @property
    def differences(self) -> SeedDifferences:
        """Metrix minus clean, seed by seed."""
        return SeedDifferences(tuple(after - before for before, after in zip(self.clean, self.metrix, strict=True)))

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.differences.mean

    @property
    def margin(self) -> float:
        """Half the 95 % confidence interval of the mean difference."""
        return self.differences.margin

    @property
    def outside(self) -> bool:
        """Whether the difference is larger than the spread of the seeds: the interval excludes zero."""
        return self.differences.decided

    @property
    def better(self) -> bool:
        """Whether the difference is an improvement."""
        return (self.mean > 0) == MEASURES[self.measure].higher_is_better

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "clean": list(self.clean),
            "metrix": list(self.metrix),
            "mean_difference": self.mean,
            "margin": self.margin,
            "outside_the_spread": self.outside,
            "better": self.better,
        }


@dataclass(frozen=True)
class Demonstration:
    """All measures of all runs of the demo."""

    folder: Path
    config: Config  # of the runs with Metrix
    seeds: int
    contrasts: tuple[Contrast, ...]

    @property
    def runs(self) -> Path:
        """The folder of the runs of this length."""
        return self.folder / f"{self.config.train.max_steps}-steps"

    @property
    def conclusion(self) -> str:
        """Whether Metrix helps here, in one sentence that claims no more than the seeds show."""
        first = self.contrasts[0]
        low, high = first.mean - first.margin, first.mean + first.margin
        interval = f"95 % interval {low:+.1f} to {high:+.1f} over {self.seeds} seeds"
        if not first.outside:
            return (
                f"No conclusion: {first.measure} {first.mean:+.1f} points ({interval}) is within the spread of the "
                "seeds; more seeds (--seeds) would narrow the interval."
            )
        effect = "helps" if first.better else "harms"
        return f"Metrix {effect} here: {first.measure} {first.mean:+.1f} points ({interval})."

    @property
    def conditions(self) -> str:
        """What was trained, and what the result does not say."""
        data, config = self.config.data, self.config
        return (
            f"Trained on {data.train_classes} characters {'without' if data.augment == 'none' else 'with'} "
            f"augmentation, {config.train.max_steps} steps, loss {config.loss.loss}; its parameters, learning rate and "
            "steps are the best found for the clean loss on held-out characters, where the weight of the mixed loss "
            "was chosen, too. Mixup is a regulariser: with more classes the gain shrinks. Other data and losses were "
            "not measured."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "folder": str(self.folder),
            "seeds": self.seeds,
            "conclusion": self.conclusion,
            "config": self.config.model_dump(mode="json"),
            "rule": "outside the spread: |mean paired difference| > t(0.975, n-1) · s / √n",
            "measures": {contrast.measure: contrast.to_dict() for contrast in self.contrasts},
        }


def run_demo(
    folder: Path = Path("runs/demo"),
    seeds: int = SEEDS,
    steps: int | None = None,
    watcher_of: Callable[[str, int], Watcher] = lambda side, seed: Watcher(),
    **changes: Any,
) -> Demonstration:
    """Train the runs of the demo, or resume or read them, and compare.

    Args:
        folder: where the runs are
        seeds: how many runs of each side
        steps: of each run; those of the preset `glyphs` by default
        watcher_of: gives the watcher of a run, from its side (clean or metrix) and seed
        changes: keys of the configuration with other values, for both sides
    """
    if seeds < 2:
        raise InvalidInput(f"seeds: expected at least 2, to measure their spread, got {seeds}")
    base = preset("glyphs").with_values({**changes, **({} if steps is None else {"max_steps": steps})})
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in range(seeds):
        for side in SIDES:
            mixup = base.mixing.mixup if side == "metrix" else ()
            config = base.with_values({"seed": seed, "mixup": mixup})
            path = folder / f"{config.train.max_steps}-steps" / f"{side}-seed-{seed}"
            found[side].append(_measure(train_once(config, path, watcher_of(side, seed))))
    contrasts = [Contrast(name, *(_values(found[side], name) for side in SIDES)) for name in MEASURES]
    return Demonstration(folder, base, seeds, tuple(contrasts))


@dataclass(frozen=True)
class DemoSearch:
    """Characters never seen in training, searched among all characters with the first model of the demo."""

    index: Index
    queries: Queries
    answers: list[list[dict[str, Any]]]  # the neighbours of each query

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = [
            {"query": name, "neighbours": neighbours}
            for name, neighbours in zip(self.queries.names, self.answers, strict=True)
        ]
        return {"index": str(self.index.folder), "queries": found}


def search_demo(found: Demonstration, k: int = 5, queries: int = 12) -> DemoSearch:
    """Index all characters with the first run with Metrix, unless that is done, and search with unseen ones.

    Args:
        found: the finished demo
        k: neighbours of each query
        queries: the number of queries, spread evenly over the unseen characters
    """
    model = open_run(found.runs / "metrix-seed-0")
    index = _index_characters(found.runs / "characters.index", model)
    part = model.open_data().test
    rows = [(2 * n + 1) * len(part) // (2 * queries) for n in range(queries)]
    asked = queries_by_id(index, [part.paths[row] for row in rows])
    return DemoSearch(index, asked, search_queries(index, asked, k))


def _index_characters(path: Path, model: TrainedModel) -> Index:
    data = model.config.data.data
    try:
        index = Index.open(path)
        if index.description.model == fingerprint(model, data):
            return index
    except MetrixError:
        pass  # there is none yet
    return index_images(model, [data], path).index


def _values(runs: Sequence[dict[str, float]], name: str) -> tuple[float, ...]:
    return tuple(run[name] for run in runs)


def _measure(run: RunFolder) -> dict[str, float]:
    """Retrieval and geometry of the unseen classes; kept in the run's folder."""
    file = run.path / _FILE
    if file.exists():
        kept: dict[str, float] = json.loads(file.read_text("utf-8"))
        return kept
    model = open_run(run.path)
    test, train = model.embed("test"), model.embed("train")
    recall = evaluate.recall_at_k(test.vectors, test.labels, ks=KS)
    measures = {
        **{f"Recall@{k}": 100.0 * float(recall[k]) for k in KS},
        "alignment": float(evaluate.alignment(test.vectors, test.labels)),
        "uniformity": float(evaluate.uniformity(test.vectors)),
        "utilization": float(evaluate.utilization(test.vectors, train.vectors)),
    }
    run.write_json(_FILE, measures)
    return measures
