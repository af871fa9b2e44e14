"""Runs that are there once: what is finished is read, what was interrupted goes on, the rest is trained.

A series of runs, each in a folder of its own, so becomes one command that can be given again.
"""

from __future__ import annotations

from pathlib import Path

from metrix.errors import InvalidInput
from metrix.train.config import Config
from metrix.train.loop import train
from metrix.train.run_folder import RunFolder, open_run_folder
from metrix.train.watching import Watcher


def finished(config: Config, path: Path, watcher: Watcher | None = None) -> RunFolder:
    """The run of a configuration, finished: as it is there, continued, or trained."""
    if not path.exists() or not any(path.iterdir()):
        return train(config, path, watcher=watcher)
    run = open_run_folder(path)
    if run.config != config:
        raise InvalidInput(f"{path} is a run with other settings: give another --output, or remove it")
    return train(resume=path, watcher=watcher)
