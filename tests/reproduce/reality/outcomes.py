"""Outcomes of studies that were never trained, with given numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrix.experiments.tuning.finals import Contrast
from metrix.experiments.tuning.methods import parse_method
from metrix.reproduce.reality.outcome import DatasetOutcome, FinalRun, MethodOutcome
from metrix.reproduce.reality.summary import CheckResult

METHODS = ("contrastive", "contrastive+feature", "supcon")


def make_method(name: str, recall: float, **changes: Any) -> MethodOutcome:
    fit = {"training_map@r": 99.0, "unseen_map@r": 80.0, "gap": 19.0}
    runs = tuple(FinalRun(seed, recall + shift, 2.0, fit, f"x/{name}-{seed}") for seed, shift in ((0, -0.5), (1, 0.5)))
    values: dict[str, Any] = {
        "method": name,
        "runs": runs,
        "interval": (recall - 2.0, recall + 2.0),
        "folds": (recall + 1.0, recall + 3.0),
        "usual_folds": (recall - 1.0, recall + 1.0),
        "settings": {"lr": 0.01},
        "trials": 5,
        "stopped": 2,
        "failed": 0,
        "trial_seconds": 60.0,
    }
    return MethodOutcome(**{**values, **changes})


def make_contrast(name: str, against: str, difference: float, half: float = 1.0) -> Contrast:
    seeds = (difference - 0.01, difference + 0.01)
    return Contrast(name, against, difference, difference - half, difference + half, seeds)


def make_outcome(name: str, recalls: Mapping[str, float], **changes: Any) -> DatasetOutcome:
    """A dataset with these Recall@1; differences of two points or more are decided."""
    first = next(iter(recalls))
    contrasts = [make_contrast(one, "untrained", recall - 40.0) for one, recall in recalls.items()]
    for one, recall in recalls.items():
        method = parse_method(one)
        against = method.clean.name if method.mixing else first
        if one != against and against in recalls:
            contrasts.append(make_contrast(one, against, recall - recalls[against]))
    values: dict[str, Any] = {
        "name": name,
        "fingerprint": f"images of {name}",
        "code": "c",
        "classes": 60,
        "queries": 700,
        "comparisons": len(contrasts),
        "looks": 1,
        "untrained": 40.0,
        "methods": tuple(make_method(one, recall) for one, recall in recalls.items()),
        "contrasts": tuple(contrasts),
        "failed": {},
    }
    return DatasetOutcome(**{**values, **changes})


def make_result(outcomes: Sequence[DatasetOutcome], methods: Sequence[str] = METHODS) -> CheckResult:
    return CheckResult(tuple(parse_method(name) for name in methods), 5, 2, 2, tuple(outcomes))
