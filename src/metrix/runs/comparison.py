"""Runs side by side: what differs in their settings, and whether their measures differ, query by query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix import evaluate
from metrix.errors import InvalidInput
from metrix.evaluate import Comparison
from metrix.runs.embedding import TrainedModel
from metrix.runs.evaluation import Evaluation, evaluation, examples_of_run
from metrix.train.batches import Report, ignore_report
from metrix.train.config import Config, sections


@dataclass(frozen=True, eq=False)
class Compared:
    """Evaluations of runs over the same queries; `differences[n]` is run n + 1 minus the first."""

    runs: tuple[str, ...]
    settings: dict[str, list[Any]]  # the keys that differ, with the value of each run
    evaluations: tuple[Evaluation, ...]
    differences: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "baseline": self.runs[0],
            "runs": [
                {
                    "run": run,
                    "settings": {key: values[n] for key, values in self.settings.items()},
                    "evaluation": self.evaluations[n].to_dict(),
                    "against_baseline": None if n == 0 else self.differences[n - 1].to_dict(),
                }
                for n, run in enumerate(self.runs)
            ],
        }


def compared(
    paths: list[Path],
    spec: str | None = None,
    ks: tuple[int, ...] | None = None,
    *,
    resamples: int = 1000,
    report: Report = ignore_report,
) -> Compared:
    """Measure each run on the test part and compare all with the first, by a paired bootstrap."""
    if len(paths) < 2:
        raise InvalidInput(f"{len(paths)} run was given: a comparison takes two or more, the first is the baseline")
    models = [TrainedModel(path, report) for path in paths]
    examples = [examples_of_run(model, spec) for model in models]
    first = examples[0].about or {}
    for other in examples[1:]:
        about = other.about or {}
        if about["fingerprint"] != first["fingerprint"]:
            raise InvalidInput(
                f"{first['run']} and {about['run']} have different test images (data {first['data']!r} and "
                f"{about['data']!r}): a paired comparison needs the same queries; give --data SPEC to measure all "
                "runs on the same data"
            )
    results = tuple(evaluation(one, ks, resamples=resamples, clustered=False) for one in examples)
    return Compared(
        runs=tuple(str(path) for path in paths),
        settings=differing([model.config for model in models]),
        evaluations=results,
        differences=tuple(
            evaluate.compare(results[0].retrieval, other.retrieval, resamples=resamples) for other in results[1:]
        ),
    )


def differing(configs: list[Config]) -> dict[str, list[Any]]:
    """The keys that are not the same in all, with the value of each.

    >>> differing([Config(), Config().with_values({"alpha": 1.0})])
    {'alpha': [2.0, 1.0]}
    """
    plain = [config.model_dump(mode="json") for config in configs]
    found = {}
    for key, section in sections().items():
        values = [one[section][key] for one in plain]
        if any(value != values[0] for value in values):
            found[key] = values
    return found


def setting(value: Any) -> str:
    """The value of a setting as text.

    >>> setting(["pos-neg", "anc-neg"]), setting([]), setting(None)
    ('pos-neg, anc-neg', 'none', '-')
    """
    if isinstance(value, list):
        return ", ".join("all" if one is None else str(one) for one in value) or "none"
    return "-" if value is None else str(value)
