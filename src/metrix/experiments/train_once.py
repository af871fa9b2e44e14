"""Train a run unless an identical one exists.

A series of runs, each in a folder of its own, thus becomes one command that can be repeated: finished runs are read,
interrupted ones resumed.
"""

from __future__ import annotations

from pathlib import Path

from metrix.errors import InvalidInput
from metrix.machine.devices import choose_device
from metrix.train.config import Config
from metrix.train.data_place import with_absolute_paths
from metrix.train.loop import train
from metrix.train.precision import choose_precision
from metrix.train.run_folder import RunFolder, is_unstarted, open_run_folder
from metrix.train.watching import Watcher


def train_once(config: Config, path: Path, watcher: Watcher | None = None) -> RunFolder:
    """The finished run of a configuration at a path: trained, resumed, or already there.

    Raises:
        InvalidInput: there is a run with other settings at this path
    """
    if is_unstarted(path):
        return train(config, path, watcher=watcher)
    run = open_run_folder(path)
    if _settle(run.asked_config) != _settle(config):
        raise InvalidInput(f"{path} is a run with other settings: give another --output, or remove it")
    return train(resume=path, watcher=watcher)


def _settle(config: Config) -> Config:
    """The configuration with absolute paths, and the precision that `auto` stands for on this machine."""
    return choose_precision(with_absolute_paths(config), choose_device(config.train.device))[0]
