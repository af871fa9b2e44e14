"""The folder of a run and its files.

config.yaml         the resolved configuration
environment.json    versions, machine, fingerprint of the data
metrics.jsonl       one line per epoch and validation
tensorboard/        the same as events
checkpoints/        last.safetensors (everything), best.safetensors
model/              the trained model: Embedder.load(run)
nonfinite/          steps whose loss or gradient was not finite, if there were any
measured.json       figures of a measured run with the same settings, if this one was trained on all classes
results.json        measures on the unseen classes, written when the run is finished
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from metrix.errors import InvalidInput
from metrix.files import (
    describe_failure,
    is_temporary,
    lock,
    parse_stored,
    remove_temporaries,
    write_json,
    write_text,
)
from metrix.machine.environment import describe_environment
from metrix.train import config as configuration
from metrix.train.config import Config
from metrix.train.data_place import exists, path_of, replace_path

MEASURED = "measured.json"
LOCK = ".lock"  # in the folder of a run while a process trains it


class Environment(BaseModel):
    """What is read from environment.json; it has more, such as versions."""

    model_config = ConfigDict(extra="allow", strict=True)

    data_fingerprint: str = ""
    asked: dict[str, Any] = {}
    continued: list[dict[str, Any]] = []
    data_relative_to_run: str | None = None
    root_relative_to_run: str | None = None


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
    def nonfinite(self) -> Path:
        """The steps whose loss or gradient was not finite; missing if there were none."""
        return self.path / "nonfinite"

    @property
    def config(self) -> Config:
        """The configuration of the run; where its data has moved together with the run, the new place of the data."""
        config = configuration.read_config(self.path / "config.yaml")
        environment = self._environment()
        values: dict[str, Any] = {}
        if (relative := environment.data_relative_to_run) and not exists(config.data.data):
            beside = replace_path(config.data.data, self._resolve(relative))
            values |= {"data": beside} if exists(beside) else {}
        root = config.data.root
        if root is not None and (relative := environment.root_relative_to_run) and not Path(root).exists():
            values |= {"root": self._resolve(relative)} if Path(self._resolve(relative)).exists() else {}
        return config.with_values(values) if values else config

    def _resolve(self, relative: str) -> str:
        return os.path.normpath(self.path.absolute() / relative)

    @property
    def asked_config(self) -> Config:
        """The configuration as it was asked for, before the data limited it (see `start`)."""
        return self.config.with_values(self._environment().asked)

    @property
    def data_fingerprint(self) -> str:
        """The fingerprint of the data that it was trained on; empty if the run ended before it was written."""
        return self._environment().data_fingerprint

    def _environment(self) -> Environment:
        file = self.path / "environment.json"
        return (
            parse_stored(Environment, file.read_text("utf-8", errors="replace"), file)
            if file.exists()
            else Environment()
        )

    @property
    def results(self) -> dict[str, Any] | None:
        """The final measures; None if the run is not finished."""
        file = self.path / "results.json"
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise InvalidInput(f"{file} is damaged: expected JSON; delete it and resume the run") from error
        if not isinstance(found, dict):
            raise InvalidInput(f"{file} is damaged: expected measures by name; delete it and resume the run")
        return found

    def start(self, config: Config, fingerprint: str, asked: Config | None = None) -> None:
        """Write the configuration and the environment of a run that starts.

        Args:
            config: what is used
            fingerprint: of the data
            asked: what was asked for, if the data need another network or allow only a smaller batch; both are stored
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_text("config.yaml", config.to_yaml())
        self._write_environment(config, fingerprint, asked or config)

    def _write_environment(self, config: Config, fingerprint: str, asked: Config) -> None:
        differing = asked.differences_to(config)
        about = {**describe_environment(), "data_fingerprint": fingerprint, "asked": differing}
        if (path := path_of(config.data.data)) is not None:
            about["data_relative_to_run"] = Path(os.path.relpath(path, self.path.absolute())).as_posix()
        if config.data.root is not None:
            about["root_relative_to_run"] = Path(os.path.relpath(config.data.root, self.path.absolute())).as_posix()
        self.write_json("environment.json", about)

    def check_data(self, config: Config, fingerprint: str, asked: Config | None = None) -> None:
        """Raise `InvalidInput` unless the data is what the run began with.

        Args:
            config: what is used from now on
            fingerprint: of the data
            asked: what was asked for
        """
        if not (self.path / "environment.json").exists():  # the run ended before it wrote this file
            self._write_environment(config, fingerprint, asked or config)
        before = self._environment().data_fingerprint
        if before != fingerprint:
            raise InvalidInput(
                f"{self.path} was trained on other data: expected fingerprint {before[:12]}, got {fingerprint[:12]}; "
                "restore the data that it began with, or start a new run"
            )

    def store_measured(self, other: RunFolder) -> None:
        """Keep the figures of a run with the same settings that was measured, for a run that cannot be."""
        self.write_json(MEASURED, {"run": str(other.path), "test": (other.results or {}).get("test")})

    @property
    def measured(self) -> dict[str, Any] | None:
        """The figures of another run in place of this one's: `run`, and `test` as in results.json; None if none."""
        file = self.path / MEASURED
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise InvalidInput(f"{file} is damaged: expected JSON; delete it") from error
        return found if isinstance(found, dict) and isinstance(found.get("test"), dict) else None

    def store_config(self, config: Config) -> None:
        """Store the configuration if it has changed: the data has moved, or the run goes on for longer."""
        if configuration.read_config(self.path / "config.yaml") != config:
            self.write_text("config.yaml", config.to_yaml())

    def reopen(self, continuation: dict[str, Any]) -> None:
        """Let a run that may be finished go on: its results go, and what was changed is stored.

        The model of before stays until there is a new one. If this is interrupted, the run is resumed as it was.
        """
        (self.path / "results.json").unlink(missing_ok=True)
        environment = self._environment().model_dump(exclude_unset=True)
        earlier = environment.get("continued", [])
        self.write_json("environment.json", {**environment, "continued": [*earlier, continuation]})

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
        """The lines of metrics.jsonl; lines that are damaged, such as a last one cut short by a crash, are left out."""
        lines = []
        file = self.path / "metrics.jsonl"
        for line in file.read_text("utf-8", errors="replace").splitlines() if file.exists() else ():
            with suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict) and isinstance(line.get("epoch"), int)]

    @property
    def untrained_test(self) -> dict[str, Any] | None:
        """The measures of the untrained network on the test classes; None if classes were held out for epoch 0."""
        found = [line["test"] for line in self.metrics() if line["epoch"] == 0 and isinstance(line.get("test"), dict)]
        return found[-1] if found else None

    def drop_lines_after(self, epoch: int) -> None:
        """Remove the lines of metrics.jsonl that a run resumed after `epoch` whole epochs writes again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["epoch"] <= epoch]
        self.write_text("metrics.jsonl", "".join(kept))

    def remove_temporaries(self) -> None:
        """Delete what a process that was killed while writing a file left of it; the caller holds the run's lock."""
        for folder in (self.path, self.path / "checkpoints", self.model, self.nonfinite):
            remove_temporaries(folder)


def is_unstarted(path: Path) -> bool:
    """Whether there is nothing at a path, or only what a process left that was killed before its run began."""
    if not path.exists():
        return True
    return path.is_dir() and all(file.name == LOCK or is_temporary(file) for file in path.iterdir())


@contextmanager
def hold_new(path: Path | None, config: Config) -> Iterator[RunFolder]:
    """The folder of a new run, held by this process until the end of the block.

    Creating the folder is atomic, so that of several processes that ask for one path only one gets it. A folder in
    which no run began is removed at the end.

    Args:
        path: the folder; a new one in `runs`, named after the time, data, loss and mixup, if None
        config: the settings of the run

    Raises:
        InvalidInput: something is at this path already, or another process holds it
    """
    run = RunFolder(_claim(path) if path is not None else _claim_new_name(config))
    with _lock(run):
        if not is_unstarted(run.path):
            raise _taken(run.path)
        run.remove_temporaries()
        try:
            yield run
            _unlink(run.path / LOCK)
        finally:
            if is_unstarted(run.path):
                run.remove_temporaries()
                _unlink(run.path / LOCK)
                run.path.rmdir()


@contextmanager
def hold(path: Path) -> Iterator[RunFolder]:
    """The folder of a run to resume, held by this process until the end of the block; `InvalidInput` if it is held."""
    run = open_run_folder(path)
    with _lock(run):
        run.remove_temporaries()
        yield run
        _unlink(run.path / LOCK)


@contextmanager
def _lock(run: RunFolder) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(run.path / LOCK, wait=False))
        except BlockingIOError:
            raise InvalidInput(
                f"{run.path} is in use: another process trains this run; wait for it, or choose another folder"
            ) from None
        except NotImplementedError:  # a file system without locks
            pass
        except OSError as error:
            raise InvalidInput(f"{run.path} cannot be written: {describe_failure(error)}") from error
        yield


def _claim(path: Path) -> Path:
    if not _create(path) and not is_unstarted(path):
        raise _taken(path)
    return path


def _claim_new_name(config: Config, parent: Path = Path("runs")) -> Path:
    name, number = name_run(config), 1
    path = parent / name
    while not _create(path):
        number += 1
        path = parent / f"{name}-{number}"
    return path


def _create(path: Path) -> bool:
    """Create a folder; False if there is something at its path already, also if another process was faster."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return False
        path.mkdir()
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            return False
        raise InvalidInput(
            f"the folder {path} cannot be created: {describe_failure(error)}; choose another with --output"
        ) from error
    return True


def _taken(path: Path) -> InvalidInput:
    hint = f", or resume it with --resume {path}" if (path / "config.yaml").is_file() else ""
    return InvalidInput(f"{path} already exists: choose another folder{hint}")


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def name_run(config: Config) -> str:
    """A name for a new run, after the time, data, loss and mixup."""
    data = re.sub(r"\W+", "-", Path(config.data.data.split(":")[-1]).stem).strip("-") or "data"
    mixup, objective = (re.sub(r"[^\w+]+", "-", text) for text in (config.mixing.describe(), config.objective_name))
    return f"{time.strftime('%Y-%m-%d-%H%M%S')}-{data}-{objective}-{'clean' if mixup == 'none' else mixup}"


def open_run_folder(path: Path) -> RunFolder:
    """The folder of an existing run, finished or not; `InvalidInput` if there is no run at this path."""
    if not (path / "config.yaml").is_file():
        if path.is_dir() and any(path.iterdir()) and is_unstarted(path):
            raise InvalidInput(
                f"{path} has nothing to resume: its run was killed before it began; start it again with --output {path}"
            )
        found = "it has no config.yaml" if path.exists() else "nothing is there"
        raise InvalidInput(f"{path} is no run: {found}; expected a folder that metrix train wrote")
    return RunFolder(path)
