"""Losses outside the generic form, trained: their learnable parts learn, are saved and restored."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metrix.train import Config, Interrupted, train
from metrix.train.names import LOSSES
from tests.train.test_crash import Sends, _same

BASELINES = [name for name, entry in LOSSES.items() if not entry.takes_mixup]
LEARNT = {"margin": "loss/beta", "soft-triple": "loss/centers"}


def test_these_are_the_baselines() -> None:
    assert {"triplet", "margin", "epshn", "soft-triple"} <= set(BASELINES)


@pytest.mark.parametrize("name", BASELINES)
def test_an_interrupted_run_goes_on_to_the_same_end(name: str, small: Config, tmp_path: Path) -> None:
    config = small.with_values({"loss": name, "ema": 0.5})
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", watcher=Sends(3, signal.SIGINT))
    interrupted = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    _same(train(resume=tmp_path / "run"), whole)
    if name in LEARNT:
        learnt = load_file(whole.path / "checkpoints" / "last.safetensors")[LEARNT[name]]
        assert learnt.shape[0] == 8  # of each class
        assert not torch.equal(learnt, interrupted[LEARNT[name]])


@pytest.mark.parametrize("name", BASELINES)
def test_unseen_classes_are_found_better_after_training(name: str, small: Config, tmp_path: Path) -> None:
    values = {"loss": name, "epochs": 100, "holdout": 0.0, "lr": 3e-3, "train_classes": 30, "batch_size": 24}
    recall = []
    for steps in (1, 60):
        run = train(small.with_values({**values, "max_steps": steps}), tmp_path / str(steps))
        assert run.results is not None
        recall.append(run.results["test"]["recall"]["1"])
    assert recall[1] > 1.5 * recall[0]


@pytest.mark.parametrize("name", BASELINES)
def test_cached_views_and_half_precision(name: str, small: Config, tmp_path: Path) -> None:
    values = {"loss": name, "freeze_to": "stage2", "views": 2, "precision": "bf16-mixed", "max_steps": 3}
    run = train(small.with_values(values), tmp_path / "run")
    assert run.results is not None
    assert 0.0 < run.results["test"]["recall"]["1"] <= 1.0
