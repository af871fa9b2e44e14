"""The runs of a report: settings, logs and metrics of each, and the reason where something is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, MetrixError
from metrix.evaluate import Retrieval
from metrix.report.page.writing import number_duplicates
from metrix.runs.evaluation import Evaluation, Examples, embed_examples, evaluate_examples
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.train.batches import Report
from metrix.train.config import Config
from metrix.train.network import name_examples
from metrix.train.run_folder import RunFolder, open_run_folder

LONGEST_NAME = 24  # characters that fit beside a curve


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run with the embeddings and metrics of its test images."""

    name: str
    config: Config
    model: TrainedModel
    test: Examples
    evaluation: Evaluation
    untrained: dict[str, Any] | None = None  # the same before training, if no classes were held out to measure it on

    @property
    def retrieval(self) -> Retrieval:
        """The retrieval metrics."""
        return self.evaluation.retrieval

    @cached_property
    def train(self) -> Examples:
        """Embeddings of the training images, computed on first use."""
        return embed_examples(self.model, part="train")


@dataclass(eq=False)
class ReportedRun:
    """A run with its settings and logs, and with its model and metrics if they are available."""

    name: str
    folder: RunFolder
    config: Config
    results: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    model: TrainedModel | None = None
    measured: MeasuredRun | None = None
    why: str = ""  # why it could not be measured

    @property
    def steps(self) -> int:
        """The last step in its log."""
        return max((int(line["step"]) for line in self.metrics if "step" in line), default=0)


def read_runs(
    paths: Sequence[Path], names: Sequence[str] | None, report: Report, reading: Mapping[str, Any] | None = None
) -> list[ReportedRun]:
    """Read settings and logs of runs, and open their models.

    Args:
        paths: folders of runs; one that is not a run is an error.
        names: of the runs on the page; by default, those of the folders.
        report: called with the progress of embedding.
        reading: other values for settings of how images are read, as for `open_run`.
    """
    folders = [open_run_folder(Path(path)) for path in paths]
    if not folders:
        raise InvalidInput("runs: expected at least one folder written by metrix train, got none")
    if names is not None and len(names) != len(folders):
        raise InvalidInput(
            f"{len(names)} names for {len(folders)} runs: expected one name per run, separated by commas"
        )
    configs = [folder.config for folder in folders]
    given = list(names or shorten_names([folder.path for folder in folders], configs))
    runs = []
    for name, folder, config in zip(number_duplicates(given, "{} ({})"), folders, configs, strict=True):
        run = ReportedRun(name, folder, config, None, folder.metrics())
        runs.append(run)
        try:
            run.results = folder.results
            run.model = open_run(folder.path, report, reading=reading)
        except json.JSONDecodeError:
            run.why = f"{folder.path / 'results.json'} cannot be read"
        except MetrixError as error:
            run.why = str(error)
    return runs


def measure_run(
    run: ReportedRun, spec: str | None, ks: tuple[int, ...] | None, resamples: int, over: str = "classes"
) -> None:
    """Embed and measure the test images; if that fails, keep the reason in `run.why`, unless `spec` was given."""
    if run.model is None:
        return
    try:
        test = embed_examples(run.model, spec)
        found = evaluate_examples(test, ks, resamples=resamples, over=over, clustered=False, per_class=True)
        before = (run.results or {}).get("untrained_test") if spec is None else None  # of other data, it is unknown
        run.measured = MeasuredRun(run.name, run.config, run.model, test, found, before)
    except MetrixError as error:
        if spec is not None:  # an error in what was asked for, not in the run
            raise
        run.why = str(error)


def measured_runs(runs: Sequence[ReportedRun]) -> list[MeasuredRun]:
    """The runs that could be measured."""
    return [run.measured for run in runs if run.measured is not None]


def name_examples_of(runs: Sequence[ReportedRun]) -> str:
    """What the runs are trained on: images, vectors, or `examples` if some are trained on either."""
    names = {name_examples(run.config) for run in runs}
    return names.pop() if len(names) == 1 else "examples"


def group_comparable(runs: Sequence[ReportedRun]) -> list[list[MeasuredRun]]:
    """The measured runs, grouped by their test images: only runs of one group answer the same queries."""
    groups: dict[str, list[MeasuredRun]] = {}
    for one in measured_runs(runs):
        groups.setdefault((one.test.about or {})["fingerprint"], []).append(one)
    return list(groups.values())


def shorten_names(paths: Sequence[Path], configs: Sequence[Config]) -> list[str]:
    """The folders' names or, if one of them is too long for a figure, a letter with loss and mixup for each run.

    >>> shorten_names([Path("runs/a"), Path("runs/b")], [Config(), Config()])
    ['a', 'b']
    >>> shorten_names([Path("runs/2026-01-01-000000-birds-contrastive-embed")], [Config()])
    ['A feature']
    """
    folders = [path.resolve().name for path in paths]
    if all(len(folder) <= LONGEST_NAME for folder in folders):
        return folders
    several = len({config.objective_name for config in configs}) > 1
    return [
        " ".join([_letter(n), *([config.objective_name] if several else []), _mixing(config)])
        for n, config in enumerate(configs)
    ]


def _mixing(config: Config) -> str:
    return config.mixing.describe() if config.mixing.mixup else "clean"


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)
