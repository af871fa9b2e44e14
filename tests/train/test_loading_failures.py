"""Signals to loader processes, loader processes that are killed, and images that disappear during training."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix import data
from metrix.errors import MetrixError
from metrix.train import Config, checkpoint, train
from metrix.train.checkpoint import Progress
from metrix.train.watching import Watcher
from tests.photos import write_photos


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_loader_processes_leave_signals_to_the_main_process(signum: signal.Signals) -> None:
    part = data.open("glyphs-mini").test.with_transform(data.GlyphTransform.still())
    loader = data.loader(part, batch_size=100, workers=1)
    batches = iter(loader)
    next(batches)
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signum)
    time.sleep(0.1)
    assert sum(len(labels) for _, labels in batches) == len(part) - 100


class AtStep(Watcher):
    """Does something once, after a step."""

    def __init__(self, step: int, act: Any) -> None:
        self.at, self.act = step, act

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        if progress.step == self.at:
            self.act()


def kill_loader_processes() -> None:
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)


def resumes_as_if_nothing_happened(config: Config, watcher: Watcher, tmp_path: Path, words: str, mend: Any) -> None:
    whole = train(config, tmp_path / "whole")
    with pytest.raises(MetrixError, match=f"(?s){words}.*resume with --resume {tmp_path}/run"):
        train(config, tmp_path / "run", watcher=watcher)
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.safetensors")[1].step >= 1
    mend()
    resumed = train(resume=tmp_path / "run")
    a, b = (load_file(run.path / "model" / "model.safetensors") for run in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_loader_process_is_killed(small: Config, tmp_path: Path) -> None:
    config = small.with_values({"workers": 1, "epochs": 1, "max_steps": 8, "checkpoint_steps": 500, "holdout": 0.0})
    watcher = AtStep(1, kill_loader_processes)
    resumes_as_if_nothing_happened(config, watcher, tmp_path, "process that loads the data was killed", lambda: None)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_disappears(workers: int, small: Config, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", classes=4, per_class=4)
    away = tmp_path / "away"
    values = {"data": str(photos), "workers": workers, "train_classes": None, "batch_size": 4, "per_class": 2}
    config = small.with_values({**values, "image_size": 28, "epochs": 20, "max_steps": 20, "checkpoint_steps": 500})
    watcher = AtStep(1, lambda: photos.rename(away))
    words = "cannot read the image .*no such file; it was moved or deleted"
    resumes_as_if_nothing_happened(config, watcher, tmp_path, words, lambda: away.rename(photos))
