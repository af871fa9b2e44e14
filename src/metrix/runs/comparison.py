"""Comparison of runs: which settings differ, and whether their measures do, query by query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrix import evaluate
from metrix.errors import InvalidInput
from metrix.evaluate import Comparison
from metrix.runs.evaluation import Evaluation, embed_examples, evaluate_examples
from metrix.runs.trained_model import open_run
from metrix.train.batches import Report, ignore_report
from metrix.train.config import Config, sections


@dataclass(frozen=True, eq=False)
class RunComparison:
    """Evaluations of runs on the same queries; `differences[n]` is that of run n + 1 to the first run."""

    runs: tuple[str, ...]
    settings: dict[str, list[Any]]  # the keys whose values differ, with the value of each run
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


def compare_runs(
    paths: list[Path],
    spec: str | None = None,
    ks: tuple[int, ...] | None = None,
    *,
    resamples: int = 1000,
    over: str = "classes",
    report: Report = ignore_report,
    reading: Mapping[str, Any] | None = None,
) -> RunComparison:
    """Measure runs on the test part and compare each with the first, by a paired bootstrap.

    Args:
        paths: the folders of two or more finished runs; the first is the baseline
        spec: data to measure all runs on; each run's own by default, which must then be the same images
        ks: the K of Recall@K
        resamples: bootstrap resamples
        over: what they draw: classes, each with all its queries, or queries
        report: is called with the progress
        reading: other values for settings of how images are read, as for `open_run`

    Raises:
        InvalidInput: fewer than two runs, or runs with different test images
    """
    if len(paths) < 2:
        raise InvalidInput(f"runs: expected two or more, the first of which is the baseline, got {len(paths)}")
    models = [open_run(path, report, reading=reading) for path in paths]
    examples = [embed_examples(model, spec) for model in models]
    first = examples[0].about or {}
    for other in examples[1:]:
        about = other.about or {}
        if about["fingerprint"] != first["fingerprint"]:
            raise InvalidInput(
                f"{first['run']} and {about['run']} have different test data (data {first['data']!r} and "
                f"{about['data']!r}), but a paired comparison needs the same queries; give --data SPEC to measure "
                "all runs on the same data"
            )
    results = tuple(evaluate_examples(one, ks, resamples=resamples, over=over, clustered=False) for one in examples)
    return RunComparison(
        runs=tuple(str(path) for path in paths),
        settings=find_differing_settings([model.config for model in models]),
        evaluations=results,
        differences=tuple(
            evaluate.compare(results[0].retrieval, other.retrieval, resamples=resamples, over=over)
            for other in results[1:]
        ),
    )


def find_differing_settings(configs: list[Config]) -> dict[str, list[Any]]:
    """The keys whose values are not the same in all configurations, with the value in each.

    >>> find_differing_settings([Config(), Config().with_values({"alpha": 1.0})])
    {'alpha': [2.0, 1.0]}
    """
    plain = [config.model_dump(mode="json") for config in configs]
    found = {}
    for key, section in sections().items():
        values = [one[section][key] for one in plain]
        if any(value != values[0] for value in values):
            found[key] = values
    return found


def format_setting(value: Any) -> str:
    """The value of a setting as text, for tables.

    >>> format_setting(["pos-neg", "anc-neg"]), format_setting([]), format_setting(None)
    ('pos-neg, anc-neg', 'none', '-')
    """
    if isinstance(value, list):
        return ", ".join("all" if one is None else str(one) for one in value) or "none"
    return "-" if value is None else str(value)
