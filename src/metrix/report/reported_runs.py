"""The runs that a report is about: what is known of each, and why something is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput, MetrixError
from metrix.evaluate import Retrieval
from metrix.report.page.writing import distinct
from metrix.runs.evaluation import Evaluation, Examples, embed_examples, evaluate_examples
from metrix.runs.trained_model import TrainedModel, open_run
from metrix.train.batches import Report
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder, open_run_folder

LONGEST_NAME = 24  # that fits beside a curve


@dataclass(frozen=True, eq=False)
class Measured:
    """A run whose model was measured on the test images."""

    name: str
    config: Config
    model: TrainedModel
    test: Examples
    evaluation: Evaluation

    @property
    def retrieval(self) -> Retrieval:
        """What was found of each query."""
        return self.evaluation.retrieval

    @cached_property
    def train(self) -> Examples:
        """Embeddings of the training images."""
        return embed_examples(self.model, part="train")


@dataclass(eq=False)
class Subject:
    """A run: always its settings and logs; its model and what that finds only where there is one."""

    name: str
    run: RunFolder
    config: Config
    results: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    model: TrainedModel | None = None
    measured: Measured | None = None
    why: str = ""  # it could not be measured

    @property
    def steps(self) -> int:
        """How far it was trained."""
        return max((int(line["step"]) for line in self.metrics if "step" in line), default=0)


def read_subjects(paths: Sequence[Path], names: Sequence[str] | None, report: Report) -> list[Subject]:
    """Settings and logs of runs; a path that is no run is an error."""
    runs = [open_run_folder(Path(path)) for path in paths]
    if not runs:
        raise InvalidInput("no run was given: accepted are one or more folders that metrix train wrote")
    if names is not None and len(names) != len(runs):
        raise InvalidInput(f"{len(names)} names for {len(runs)} runs: give one for each, with commas")
    configs = [run.config for run in runs]
    given = list(names or short_names([run.path for run in runs], configs))
    found = []
    for name, run, config in zip(distinct(given, "{} ({})"), runs, configs, strict=True):
        subject = Subject(name, run, config, None, run.metrics())
        found.append(subject)
        try:
            subject.results = run.results
            subject.model = open_run(run.path, report)
        except json.JSONDecodeError:
            subject.why = f"{run.path / 'results.json'} cannot be read"
        except MetrixError as error:
            subject.why = str(error)
    return found


def measure(subject: Subject, spec: str | None, ks: tuple[int, ...] | None, resamples: int) -> None:
    """Embed and measure the test part; what stands in the way is kept in `why`, unless it is in `spec`."""
    if subject.model is None:
        return
    try:
        test = embed_examples(subject.model, spec)
        found = evaluate_examples(test, ks, resamples=resamples, clustered=False)
        subject.measured = Measured(subject.name, subject.config, subject.model, test, found)
    except MetrixError as error:
        if spec is not None:  # a mistake in what was given, not a run that lost its images
            raise
        subject.why = str(error)


def measured(subjects: Sequence[Subject]) -> list[Measured]:
    """Those that could be measured."""
    return [subject.measured for subject in subjects if subject.measured is not None]


def comparable(subjects: Sequence[Subject]) -> list[list[Measured]]:
    """Runs that were measured, grouped by their test images; only within a group are queries the same."""
    groups: dict[str, list[Measured]] = {}
    for one in measured(subjects):
        groups.setdefault((one.test.about or {})["fingerprint"], []).append(one)
    return list(groups.values())


def short_names(paths: Sequence[Path], configs: Sequence[Config]) -> list[str]:
    """The folders' names; where one is too long for a figure, a letter with loss and mixup for each.

    >>> short_names([Path("runs/a"), Path("runs/b")], [Config(), Config()])
    ['a', 'b']
    >>> short_names([Path("runs/2026-01-01-000000-birds-contrastive-embed")], [Config()])
    ['A feature']
    """
    folders = [path.resolve().name for path in paths]
    if all(len(folder) <= LONGEST_NAME for folder in folders):
        return folders
    several = len({config.loss.loss for config in configs}) > 1
    return [
        " ".join([_letter(n), *([config.loss.loss] if several else []), _mixing(config)])
        for n, config in enumerate(configs)
    ]


def _mixing(config: Config) -> str:
    return config.mixing.describe() if config.mixing.mixup else "clean"


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number + 1)
