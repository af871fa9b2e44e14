"""The best setting of each method, trained on all training classes with several seeds, on the test classes."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metrix.errors import InvalidInput
from metrix.evaluate.seeds import SeedDifferences
from metrix.experiments.cells import Cell, train_cell
from metrix.experiments.tuning.methods import TunedMethod
from metrix.experiments.tuning.spaces import apply_settings, find_moved, suggest
from metrix.experiments.tuning.study import StudyFolder
from metrix.experiments.tuning.trials import retrieve
from metrix.files import parse_stored, write_json
from metrix.train.config import Config
from metrix.train.fit import average_fit
from metrix.train.watching import Watcher

if TYPE_CHECKING:
    from metrix.evaluate import Retrieval

UNTRAINED = "untrained"
CONFIDENCE = 0.95  # of all intervals of a study together
RESAMPLES = 4000


@dataclass(frozen=True)
class Winner:
    """The best finished trial of a method."""

    method: TunedMethod
    trial: int  # Optuna's number of it
    usual: bool
    config: Config  # of a run on all training classes, with the base's seed
    scores: tuple[float, ...]  # of the folds, per cent

    @property
    def score(self) -> float:
        """The mean over the folds, per cent."""
        return statistics.fmean(self.scores)


def find_winners(study: StudyFolder) -> list[Winner]:
    """The best finished trial of each method that has one, in the order of the methods."""
    from optuna.trial import FixedTrial, TrialState

    winners = []
    for method in study.protocol.methods:
        finished = study.studies[method.name].get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not finished:
            continue
        best = max(finished, key=lambda trial: (trial.value, -trial.number))
        usual = bool(best.user_attrs.get("usual"))
        base, space = method.configure(study.protocol.base), study.protocol.spaces[method.name]
        settings = find_moved(base, space) if usual else suggest(FixedTrial(best.params), space)
        config = apply_settings(base, settings).with_values({"holdout": 0.0})
        scores = tuple(100.0 * score for score in best.user_attrs["scores"])
        winners.append(Winner(method, best.number, usual, config, scores))
    return winners


def final_cells(study: StudyFolder, winner: Winner) -> list[Cell]:
    """The runs of a winner, one for each seed."""
    first = winner.config.train.seed
    return [
        study.make_cell(winner.config.with_values({"seed": first + number})) for number in range(study.protocol.seeds)
    ]


def train_winners(study: StudyFolder, winners: Sequence[Winner], watch: Callable[[str], Watcher]) -> None:
    """Train the final runs that no other process has trained or is training, then wait for those.

    Seeds are the outer loop: if time runs out, all methods have as many of them.
    """
    todo = [
        (f"{winner.method.name}, all training classes, seed {cell.config.train.seed}", cell)
        for cells in zip(*(final_cells(study, winner) for winner in winners), strict=True)
        for winner, cell in zip(winners, cells, strict=True)
    ]
    for wait in (False, True):
        for words, cell in todo:
            if study.store.results(cell.key) is None:
                study.store.write_record(cell)
                with contextlib.suppress(BlockingIOError):  # another process trains it
                    train_cell(study.store.cell_folder(cell.key), cell.config, watch(words), wait=wait)


@dataclass(frozen=True)
class Contrast:
    """A difference in Recall@1 on the test classes, in points.

    `low` and `high` are bounds over another draw of test classes, corrected for the number of differences looked at;
    `over_seeds` are those of the seeds, of which `seeds` is the mean.
    """

    name: str
    against: str
    difference: float
    low: float
    high: float
    over_seeds: tuple[float, ...]

    @property
    def seed_margin(self) -> float | None:
        """Half the 95 % interval over seeds; None with one seed."""
        return SeedDifferences(self.over_seeds).margin if len(self.over_seeds) > 1 else None

    @property
    def verdict(self) -> str:
        """`helps`, `harms`, or `open` where another draw of classes, or other seeds, could turn the sign."""
        if self.seed_margin is None or abs(self.difference) <= self.seed_margin:
            return "open"
        return "helps" if self.low > 0 else "harms" if self.high < 0 else "open"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "seed_margin": self.seed_margin, "verdict": self.verdict}


@dataclass(frozen=True)
class FinalResult:
    """Recall@1 of a winner on the test classes, per cent, one value for each seed."""

    method: str
    recalls: tuple[float, ...]
    interval: tuple[float, float]  # of their mean, over classes, corrected as the contrasts are
    seconds: float  # of a run, the mean
    folders: tuple[Path, ...]
    fit: dict[str, float] | None = None  # MAP@R of training and unseen classes, the mean over seeds

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.recalls)


@dataclass(frozen=True)
class FinalTable:
    """What the test classes say."""

    untrained: FinalResult
    results: tuple[FinalResult, ...]
    contrasts: tuple[Contrast, ...]
    comparisons: int  # that intervals are corrected for
    classes: int
    queries: int
    looks: int  # sets of winners that were measured on these test classes

    def find(self, method: str, against: str) -> Contrast | None:
        """The contrast of a method, if it was looked at."""
        return next((one for one in self.contrasts if (one.name, one.against) == (method, against)), None)


def reference_of(method: TunedMethod, methods: Sequence[TunedMethod]) -> TunedMethod | None:
    """What a method is compared with beside the untrained network: its own clean loss, else the first method."""
    if method.mixing and method.clean in methods:
        return method.clean
    return None if method == methods[0] else methods[0]


def count_looks(study: StudyFolder, winners: Sequence[Winner]) -> int:
    """The sets of winners that were measured on the test classes, these included; more than 1 if a study went on."""
    file = study.path / "looks.json"
    keys = sorted(cell.key for winner in winners for cell in final_cells(study, winner))
    looks = parse_stored(list[list[str]], file.read_text("utf-8"), file) if file.is_file() else []
    if keys not in looks:
        looks.append(keys)
        write_json(file, looks)
    return len(looks)


def compare_winners(study: StudyFolder, winners: Sequence[Winner]) -> FinalTable:
    """Measure the winners on the test classes and compare them, paired query by query."""
    from metrix import evaluate

    cells = {winner.method.name: final_cells(study, winner) for winner in winners}
    found = {name: [retrieve(study, cell) for cell in group] for name, group in cells.items()}
    found[UNTRAINED] = [retrieve(study, cell, initial=True) for cell in cells[winners[0].method.name]]
    looks = count_looks(study, winners)
    means = {name: _mean_of(several) for name, several in found.items()}
    methods = [winner.method for winner in winners]
    pairs = [(method.name, UNTRAINED) for method in methods]
    pairs += [(one.name, other.name) for one in methods if (other := reference_of(one, methods)) is not None]
    comparisons = len(pairs) * looks
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    contrasts = []
    for name, against in pairs:
        one = evaluate.compare(means[against], means[name], resamples=RESAMPLES, confidence=confidence)["recall@1"]
        seeds = tuple(100.0 * (b - a) for a, b in zip(_recalls(found[against]), _recalls(found[name]), strict=True))
        contrasts.append(Contrast(name, against, 100 * one.difference, 100 * one.low, 100 * one.high, seeds))
    results = {
        name: _summarise(study, name, found[name], means[name], cells.get(name, []), confidence) for name in found
    }
    first = means[UNTRAINED]
    return FinalTable(
        results.pop(UNTRAINED),
        tuple(results.values()),
        tuple(contrasts),
        comparisons,
        len(np.unique(first.query_labels)),
        first.queries,
        looks,
    )


def _recalls(several: Sequence[Retrieval]) -> list[float]:
    return [float(one.means["recall@1"]) for one in several]


def _mean_of(several: Sequence[Retrieval]) -> Retrieval:
    """The mean over seeds, query by query."""
    if any(not np.array_equal(one.query_rows, several[0].query_rows) for one in several):
        raise InvalidInput("the runs of a method answered different queries; were test images removed meanwhile?")
    mean = np.mean([one.per_query["recall@1"] for one in several], axis=0)
    return dataclasses.replace(several[0], per_query={"recall@1": mean})


def _summarise(
    study: StudyFolder,
    name: str,
    several: Sequence[Retrieval],
    mean: Retrieval,
    cells: Sequence[Cell],
    confidence: float,
) -> FinalResult:
    from metrix import evaluate

    nothing = dataclasses.replace(mean, per_query={"recall@1": np.zeros_like(mean.per_query["recall@1"])})
    bounds = evaluate.compare(nothing, mean, resamples=RESAMPLES, confidence=confidence)["recall@1"]
    results = [study.store.results(cell.key) or {} for cell in cells]
    seconds = [float(one.get("seconds", 0.0)) for one in results]
    return FinalResult(
        name,
        tuple(100.0 * value for value in _recalls(several)),
        (100.0 * bounds.low, 100.0 * bounds.high),
        statistics.fmean(seconds) if seconds else 0.0,
        tuple(study.store.run(cell.key).path for cell in cells),
        average_fit(results),
    )
