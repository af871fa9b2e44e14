"""The folder of a run and its files.

config.yaml         the resolved configuration
environment.json    versions, machine, fingerprint of the data
metrics.jsonl       one line per epoch and validation
tensorboard/        the same as events
checkpoints/        last.safetensors (everything), best.safetensors
model/              the trained model: Embedder.load(run)
results.json        measures on the unseen classes, written when the run is finished
"""

from __future__ import annotations

import json
import platform
import re
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from metrix.errors import InvalidInput
from metrix.files import write_json, write_text
from metrix.train import config as configuration
from metrix.train.config import Config


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, finished or not."""

    path: Path

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoints" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The checkpoint with the best validation."""
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model"

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return configuration.read_config(self.path / "config.yaml")

    @property
    def results(self) -> dict[str, Any] | None:
        """The final measures; None if the run is not finished."""
        file = self.path / "results.json"
        found: dict[str, Any] | None = json.loads(file.read_text("utf-8")) if file.exists() else None
        return found

    def start(self, config: Config, fingerprint: str) -> None:
        """Write the configuration and the environment of a run that starts."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_text("config.yaml", config.to_yaml())
        self.write_json("environment.json", {**describe_environment(), "data_fingerprint": fingerprint})

    def check_resumable(self, fingerprint: str) -> None:
        """Raise `InvalidInput` unless the data is what the run began with."""
        file = self.path / "environment.json"
        if not file.exists():  # the run ended before it wrote this file
            self.write_json(file.name, {**describe_environment(), "data_fingerprint": fingerprint})
        before = json.loads(file.read_text("utf-8"))["data_fingerprint"]
        if before != fingerprint:
            raise InvalidInput(
                f"{self.path} was trained on other data: expected fingerprint {before[:12]}, got {fingerprint[:12]}; "
                "restore the images that it began with, or start a new run"
            )

    def write_text(self, name: str, text: str) -> None:
        """Write a file atomically."""
        write_text(self.path / name, text)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file atomically."""
        write_json(self.path / name, content)

    def log(self, **values: Any) -> None:
        """Add a line to metrics.jsonl."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line cut short by a crash is left out."""
        lines = []
        file = self.path / "metrics.jsonl"
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return lines

    def drop_lines_after(self, step: int) -> None:
        """Remove the lines of metrics.jsonl that a run resumed at `step` writes again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        self.write_text("metrics.jsonl", "".join(kept))


def new_run_path(config: Config, parent: Path = Path("runs")) -> Path:
    """A path for a new run, named after the time, data, loss and mixup; nothing exists there yet."""
    data = re.sub(r"\W+", "-", Path(config.data.data.split(":")[-1]).stem).strip("-") or "data"
    mixup = re.sub(r"\W+", "-", config.mixing.describe())
    name = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{data}-{config.loss.loss}-{'clean' if mixup == 'none' else mixup}"
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}-{number}"
    return path


def open_run_folder(path: Path) -> RunFolder:
    """The folder of an existing run, finished or not; `InvalidInput` if there is no run at this path."""
    if not (path / "config.yaml").is_file():
        raise InvalidInput(f"{path} is no run: it has no config.yaml; expected a folder that metrix train wrote")
    return RunFolder(path)


def describe_environment() -> dict[str, Any]:
    """Versions of Python and packages, and the platform."""
    packages = ("metrix", "torch", "torchvision", "timm", "numpy", "lightning-fabric", "faiss-cpu", "numba")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], "platform": platform.platform(), "versions": versions}
