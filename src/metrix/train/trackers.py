"""Trackers of experiments beside TensorBoard: a CSV file, Weights & Biases, MLflow, through Fabric's loggers.

A tracker is called as a progress display is. A resumed run continues its entry, and a missing package or an
unknown tracker is an error before training. Nothing is sent where the trackers are set to work offline:
`WANDB_MODE=offline`, and `MLFLOW_TRACKING_URI` with a local path, which is the default here.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrix.extras import import_extra, require_extra
from metrix.files import write_text
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

    from metrix.data import Part
    from metrix.train.checkpoint import Progress

TRACKERS = ("csv", "wandb", "mlflow")
STEPS = 20  # training losses are the mean of so many steps
LOSSES = ("loss", "clean", "mixed")
PROJECT = "metrix"


def check_trackers(names: Sequence[str]) -> None:
    """Raise `MissingExtra` if the package of a tracker is missing."""
    require_extra(*(name for name in names if name != "csv"))


def flatten_settings(config: Config) -> dict[str, Any]:
    """The settings of a run by key, as trackers show them: numbers, texts and flags.

    >>> flatten_settings(Config())["pairs"]
    'pos-neg,anc-neg'
    """
    return {
        key: ",".join(map(str, value)) if isinstance(value, list) else value
        for part in config.model_dump(mode="json").values()
        for key, value in part.items()
    }


def flatten_results(results: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of results by path.

    >>> flatten_results({"test": {"recall": {"1": 0.5}}, "best_epoch": None})
    {'test/recall/1': 0.5}
    """
    found: dict[str, float] = {}
    for key, value in results.items():
        if isinstance(value, Mapping):
            found |= flatten_results(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{key}"] = value
    return found


class TrackedRun(Watcher):
    """Tells trackers about a run, and hands every event on to another watcher."""

    def __init__(self, names: Sequence[str], watcher: Watcher) -> None:
        check_trackers(names)
        self.names, self.watcher = names, watcher
        self.loggers: list[Logger] = []
        self.losses: list[list[float]] = []
        self.step_now = 0

    def preparing(self, what: str, done: int, of: int) -> None:
        """Hand on."""
        self.watcher.preparing(what, done, of)

    def note(self, text: str) -> None:
        """Hand on."""
        self.watcher.note(text)

    def begin(self, run: RunFolder, config: Config, part: Part, steps: int, progress: Progress) -> None:
        """Open the trackers and give them the settings."""
        self.step_now = progress.step
        self.loggers = [_open(name, run, progress.step) for name in self.names]
        for logger in self.loggers:
            logger.log_hyperparams(flatten_settings(config))
        self.watcher.begin(run, config, part, steps, progress)

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        """Track the mean losses of the last steps."""
        self.step_now = progress.step
        self.losses.append(losses)
        if progress.step % STEPS == 0:
            self._track_losses()
        self.watcher.step(progress, losses, images)

    def warn(self, text: str) -> None:
        """Hand on."""
        self.watcher.warn(text)

    def skipped(self, progress: Progress, why: str) -> None:
        """Hand on."""
        self.watcher.skipped(progress, why)

    def untrained(self, found: dict[str, Any], part: str) -> None:
        """Track the untrained network."""
        self._track(flatten_results(found["recall"], f"{part}/recall@"), 0)
        self.watcher.untrained(found, part)

    def validated(self, progress: Progress, losses: list[float], found: dict[str, Any], better: bool) -> None:
        """Track a validation."""
        self._track(flatten_results(found["recall"], "val/recall@"), progress.step)
        self.watcher.validated(progress, losses, found, better)

    def finished(self, run: RunFolder, results: dict[str, Any]) -> None:
        """Track the results."""
        self._track_losses()
        self._track(flatten_results({**results, "test": flatten_recall(results["test"] or {})}), self.step_now)
        for logger in self.loggers:
            logger.finalize("success")
        self.loggers = []
        self.watcher.finished(run, results)

    def close(self) -> None:
        """Close the trackers of a run that was interrupted or failed."""
        for logger in self.loggers:
            logger.finalize("failed")
        self.loggers = []
        self.watcher.close()

    def _track_losses(self) -> None:
        if self.losses:
            means = [sum(values) / len(self.losses) for values in zip(*self.losses, strict=True)]
            self._track({f"train/{name}": mean for name, mean in zip(LOSSES, means, strict=True)}, self.step_now)
        self.losses = []

    def _track(self, metrics: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step)
            logger.save()


def flatten_recall(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of a part with `recall@1` as names.

    >>> flatten_recall({"recall": {"1": 0.5}, "images": 3})
    {'images': 3, 'recall@1': 0.5}
    """
    rest = {key: value for key, value in measured.items() if key != "recall"}
    return {**rest, **{f"recall@{k}": value for k, value in measured.get("recall", {}).items()}}


def _open(name: str, run: RunFolder, step: int) -> Logger:
    makers = {"csv": _open_csv, "wandb": _open_wandb, "mlflow": _open_mlflow}
    return makers[name](run, step)


def _open_csv(run: RunFolder, step: int) -> Logger:
    """Fabric's CSV logger; a resumed run has a file of its own for each part, named after the step it begins at."""
    from lightning_fabric.loggers import csv_logs

    class CSVLogger(csv_logs.CSVLogger):
        """Leaves the settings to config.yaml, which is beside the file."""

        def log_hyperparams(self, params: dict[str, Any]) -> None:  # type: ignore[override]
            pass

    return CSVLogger(str(run.path), name="csv", version=f"from-step-{step}", flush_logs_every_n_steps=1)


def _open_wandb(run: RunFolder, step: int) -> Logger:
    wandb = import_extra("wandb")
    from lightning_fabric.loggers.logger import Logger

    class WandbLogger(Logger):
        """An entry of Weights & Biases, the same again when the run is resumed."""

        def __init__(self) -> None:
            self.entry = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run.path.name,
                id=_identify(run, "wandb", lambda: secrets.token_hex(4)),
                dir=str(run.path),
                resume="allow",
            )

        @property
        def name(self) -> str:
            return PROJECT

        @property
        def version(self) -> str:
            return str(self.entry.id)

        def log_hyperparams(self, params: dict[str, Any]) -> None:  # type: ignore[override]
            self.entry.config.update(params, allow_val_change=True)

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.entry.log({**metrics, "step": step})

        def finalize(self, status: str) -> None:
            self.entry.finish(exit_code=0 if status == "success" else 1)

    return WandbLogger()


def _open_mlflow(run: RunFolder, step: int) -> Logger:
    mlflow = import_extra("mlflow")
    from lightning_fabric.loggers.logger import Logger

    class MLflowLogger(Logger):
        """A run of MLflow, the same again when the run is resumed; in a folder unless a server is set."""

        def __init__(self) -> None:
            uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.path.parent / 'mlflow.db').absolute()}"
            self.client = mlflow.MlflowClient(uri)
            found = self.client.get_experiment_by_name(PROJECT)
            experiment = self.client.create_experiment(PROJECT) if found is None else found.experiment_id
            tags = {"mlflow.runName": run.path.name}
            self.id = _identify(run, "mlflow", lambda: self.client.create_run(experiment, tags=tags).info.run_id)
            self.client.update_run(self.id, "RUNNING")

        @property
        def name(self) -> str:
            return PROJECT

        @property
        def version(self) -> str:
            return self.id

        def log_hyperparams(self, params: dict[str, Any]) -> None:  # type: ignore[override]
            known = self.client.get_run(self.id).data.params  # a run that goes on for longer has other epochs
            for key, value in params.items():
                if key not in known:
                    self.client.log_param(self.id, key, value)

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            for key, value in metrics.items():
                self.client.log_metric(self.id, key.replace("@", "_at_"), value, step=step or 0)

        def finalize(self, status: str) -> None:
            self.client.set_terminated(self.id, "FINISHED" if status == "success" else "FAILED")

    return MLflowLogger()


def _identify(run: RunFolder, tracker: str, create: Any) -> str:
    """The id of a run in a tracker, kept in the run's folder, so that a resumed run continues its entry."""
    file: Path = run.path / f"{tracker}.id"
    if not file.is_file():
        write_text(file, str(create()))
    return file.read_text("utf-8").strip()
