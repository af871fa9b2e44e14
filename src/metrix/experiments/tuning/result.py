"""The result of a study: everything that its page, its table and `best.yaml` show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix.experiments.tuning.conclusion import Conclusion, conclude
from metrix.experiments.tuning.finals import FinalTable, Winner
from metrix.experiments.tuning.protocol import Protocol
from metrix.experiments.tuning.spaces import describe_range
from metrix.experiments.tuning.study import StudyFolder
from metrix.experiments.tuning.trials import FinishedTrial, TrialRunner, correlate_ranks, list_trials, retrieve
from metrix.files import lock, parse_stored, write_json
from metrix.messages import count
from metrix.train.watching import Watcher

IMPORTANCE_FROM = 8  # trials of a method with a whole training; fewer say little about single settings


@dataclass(frozen=True)
class StudyResult:
    """A finished study."""

    folder: Path
    protocol: Protocol
    trials: tuple[FinishedTrial, ...]
    untrained: tuple[float, ...]  # score of the untrained network on each fold, per cent: trial 0
    winners: tuple[Winner, ...]
    table: FinalTable
    conclusion: Conclusion
    importances: dict[str, dict[str, float]]  # share of the variance of the scores, by method and setting
    cheap_and_dear: dict[str, list[tuple[float, float]]]  # scores on the first fold, per cent, by method

    @property
    def best(self) -> Winner:
        """The winner with the best score on the folds; the test classes have no say in it."""
        return max(self.winners, key=lambda winner: winner.score)

    @property
    def correlations(self) -> dict[str, float | None]:
        """The rank correlation of cheap and whole trainings, by method."""
        return {name: correlate_ranks(pairs) for name, pairs in self.cheap_and_dear.items()}

    def usual_of(self, method: str) -> FinishedTrial | None:
        """The trial with the settings that the study began with, if it is finished."""
        found = (one for one in self.trials if one.usual and one.method == method and one.score is not None)
        return next(found, None)

    def to_yaml(self) -> str:
        """The best settings, for `metrix train --config`, and where they come from."""
        best = self.best
        lines = [
            f"# The best settings of {best.method.name} that metrix tune found: {self.protocol.metric} "
            f"{best.score:.1f} %",
            f"# on {count(self.protocol.folds, 'fold')} of the training classes of {self.protocol.data.name}, trial "
            f"{best.trial + 1} of {sum(one.method == best.method.name for one in self.trials)}.",
        ]
        return "\n".join(lines) + "\n" + best.config.to_yaml()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "folder": str(self.folder),
            "conclusion": self.conclusion.text,
            "metric": self.protocol.metric,
            "best": {
                "method": self.best.method.name,
                "score": self.best.score,
                "config": str(self.folder / "best.yaml"),
            },
            "untrained": {"folds": list(self.untrained)},
            "winners": [
                {
                    "method": one.method.name,
                    "folds": list(one.scores),
                    "usual_settings": one.usual,
                    "usual_folds": list(usual.scores) if (usual := self.usual_of(one.method.name)) else None,
                    "settings": one.config.differences_to(self.protocol.base),
                }
                for one in self.winners
            ],
            "test": {
                "classes": self.table.classes,
                "queries": self.table.queries,
                "looks": self.table.looks,
                "comparisons": self.table.comparisons,
                "untrained": self.table.untrained.mean,
                "recall@1": {one.method: list(one.recalls) for one in self.table.results},
                "contrasts": [one.to_dict() for one in self.table.contrasts],
            },
            "cheap_rank_correlation": self.correlations,
            "importances": self.importances,
            "trials": [
                {
                    **{key: getattr(one, key) for key in ("number", "method", "state", "usual", "settings", "cheap")},
                    **{"folds": list(one.scores), "seconds": one.seconds, "error": one.error},
                }
                for one in self.trials
            ],
            "spaces": {
                name: {key: describe_range(given) for key, given in space.items()}
                for name, space in self.protocol.spaces.items()
            },
        }


def build_result(study: StudyFolder, winners: Sequence[Winner], table: FinalTable) -> StudyResult:
    """Gather the result of a study whose winners are trained and compared."""
    protocol, trials = study.protocol, list_trials(study)
    runner = TrialRunner(study, lambda words: Watcher())
    pairs = {
        method.name: [(100 * cheap, 100 * dear) for cheap, dear in runner.cheap_and_dear(method)]
        for method in protocol.methods
    }
    return StudyResult(
        folder=study.path,
        protocol=protocol,
        trials=tuple(trials),
        untrained=tuple(measure_untrained(study) or ()),
        winners=tuple(winners),
        table=table,
        conclusion=conclude(winners, trials, table, protocol.metric),
        importances={method.name: find_importances(study, method.name) for method in protocol.methods},
        cheap_and_dear={name: found for name, found in pairs.items() if found},
    )


def find_importances(study: StudyFolder, method: str) -> dict[str, float]:
    """How much of the variance of a method's scores each setting explains; empty where there are too few trials.

    All trials with a whole training on the first fold count, those that were stopped later, too.
    """
    import optuna

    space = study.protocol.spaces[method]
    found = [
        trial
        for trial in study.studies[method].get_trials(deepcopy=False)
        if trial.user_attrs.get("scores") and set(trial.params) == set(space)
    ]
    scores = [trial.user_attrs["scores"][0] for trial in found]
    if len(found) < IMPORTANCE_FROM or len(set(scores)) < 2:
        return {}
    copy = optuna.create_study(direction="maximize")
    for trial, score in zip(found, scores, strict=True):
        copy.add_trial(optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=score))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return {
        key: float(share) for key, share in optuna.importance.get_param_importances(copy, evaluator=evaluator).items()
    }


def measure_untrained(study: StudyFolder, only_read: bool = False) -> list[float] | None:
    """The scores of the untrained network on the folds, per cent: trial 0. None before any usual trial is finished."""
    file = study.path / "untrained.json"
    with lock(study.path / "untrained.lock"):
        if file.is_file():
            return parse_stored(list[float], file.read_text("utf-8"), file)
        if only_read:
            return None
        runner, protocol = TrialRunner(study, lambda words: Watcher()), study.protocol
        for method in protocol.methods:
            usual = next((one for one in study.studies[method.name].get_trials(deepcopy=False)), None)
            if usual is None or len(usual.user_attrs.get("scores", ())) < protocol.folds:
                continue
            configs = [runner.configure(method, usual, {}, fold, 1.0) for fold in range(1, protocol.folds + 1)]
            cells = [study.make_cell(config) for config in configs]
            found = [100.0 * float(retrieve(study, cell, initial=True).means[protocol.metric]) for cell in cells]
            write_json(file, found)
            return found
    return None
