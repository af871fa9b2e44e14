"""Runs that train for longer than was planned, or end before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metrix.errors import InvalidInput
from metrix.model.saving import WEIGHTS_FILE
from metrix.train import Config, Interrupted, train
from metrix.train.run_folder import RunFolder
from metrix.train.watching import Watcher


class Notes(Watcher):
    """Keeps the notes of a run, and interrupts it after an epoch if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.stop_after = stop_after

    def note(self, text: str) -> None:
        self.notes.append(text)

    def validated(self, progress: Any, *_: Any) -> None:
        if progress.epoch == self.stop_after:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def settings(small: Config) -> Config:
    return small.with_values({"max_steps": None, "epochs": 2, "train_classes": 8, "holdout": 0.1, "validate_every": 1})


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(run.model / WEIGHTS_FILE)


def assert_equal_weights(one: RunFolder, other: RunFolder) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=0, atol=0)


@pytest.mark.parametrize("schedule", ["step", "constant"])
def test_a_finished_run_goes_on_as_if_it_had_been_planned_so(settings: Config, tmp_path: Path, schedule: str) -> None:
    settings = settings.with_values({"schedule": schedule, "decay_every": 1})
    whole = train(settings.with_values({"epochs": 4}), tmp_path / "whole")
    run = train(settings, tmp_path / "run")
    notes = Notes()
    longer = train(resume=run.path, epochs=4, watcher=notes)
    assert_equal_weights(longer, whole)
    assert longer.config.train.epochs == 4
    assert longer.results is not None
    assert whole.results is not None
    assert longer.results["test"] == whole.results["test"]
    assert longer.results["epochs"] == 4
    losses = [[line for line in one.metrics() if "loss" in line] for one in (longer, whole)]
    assert losses[0] == losses[1]
    assert any("goes on after 2 epochs, to 4 epochs in all" in note for note in notes.notes)
    assert (longer.path / "environment.json").read_text("utf-8").count('"at_epoch": 2') == 1


def test_a_cosine_schedule_is_stretched_and_that_is_said(settings: Config, tmp_path: Path) -> None:
    settings = settings.with_values({"schedule": "cosine"})
    run = train(settings, tmp_path / "run")
    at_the_end = [line["lr"] for line in run.metrics() if "lr" in line][-1]
    notes = Notes()
    longer = train(resume=run.path, epochs=4, watcher=notes)
    rates = [line["lr"] for line in longer.metrics() if "lr" in line]
    assert rates[2] > at_the_end
    assert rates[3] < rates[2]
    assert any("cosine schedule is stretched" in note for note in notes.notes)


def test_a_run_that_stopped_early_is_patient_again(settings: Config, tmp_path: Path) -> None:
    settings = settings.with_values({"patience": 1, "epochs": 9, "lr": 1e-9})
    run = train(settings, tmp_path / "run")
    assert run.results is not None
    stopped = run.results["epochs"]
    assert stopped < 9
    longer = train(resume=run.path, epochs=9)
    assert longer.results is not None
    assert longer.results["epochs"] > stopped


def test_an_interrupted_run_ends_with_its_best_epoch(settings: Config, tmp_path: Path) -> None:
    settings = settings.with_values({"epochs": 5})
    with pytest.raises(Interrupted, match="--finish"):
        train(settings, tmp_path / "run", watcher=Notes(stop_after=2))
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    notes = Notes()
    ended = train(resume=tmp_path / "run", finish=True, watcher=notes)
    assert ended.results is not None
    assert (ended.results["epochs"], ended.results["finished_early"]) == (2, True)
    best = ended.results["best_epoch"]
    assert any(f"ends after 2 whole epochs of 5 planned; the model is that of epoch {best}" in n for n in notes.notes)
    assert_equal_weights(ended, train(settings.with_values({"epochs": 2}), tmp_path / "short"))
    # it can still go on, to the end of a run that was never ended
    went_on = train(resume=ended.path, epochs=5)
    assert went_on.results is not None
    assert "finished_early" not in went_on.results
    assert_equal_weights(went_on, train(resume=copy))


def test_mistakes(settings: Config, tmp_path: Path) -> None:
    run = train(settings.with_values({"epochs": 1}), tmp_path / "run")
    before = (run.path / "config.yaml").read_bytes(), (run.path / "results.json").read_bytes()
    with pytest.raises(InvalidInput, match="--epochs: expected more than 1"):
        train(resume=run.path, epochs=1)
    with pytest.raises(InvalidInput, match="--max-steps: expected more than"):
        train(resume=run.path, epochs=2, max_steps=1)
    assert ((run.path / "config.yaml").read_bytes(), (run.path / "results.json").read_bytes()) == before
    (run.path / "results.json").unlink()
    run.last.unlink()
    with pytest.raises(InvalidInput, match="nothing to finish"):
        train(resume=run.path, finish=True)
    with pytest.raises(InvalidInput, match="no checkpoint to continue from"):
        train(resume=run.path, epochs=3)
