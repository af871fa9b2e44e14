"""Runs on few classes: which epoch is kept, and the batch size that is used and stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metrix.errors import DataError
from metrix.experiments.train_once import train_once
from metrix.train import Config, train
from metrix.train.watching import Watcher


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_lowered_batch_size_is_said_once_and_stored(small: Config, tmp_path: Path) -> None:
    heard = Notes()
    config = small.with_values({"batch_size": 100, "train_classes": 4, "max_steps": 1})
    run = train(config, tmp_path / "run", watcher=heard)
    assert run.config.train.batch_size == 12  # 4 classes of 3 images
    assert [note for note in heard.notes if "batch_size is 12 instead of 100" in note] == heard.notes[-1:]
    assert run.asked_config == config
    assert train_once(config, tmp_path / "run").results == run.results  # the settings that were asked for are known


def test_a_batch_size_that_fits_is_not_spoken_of(small: Config, tmp_path: Path) -> None:
    heard = Notes()
    run = train(small.with_values({"max_steps": 1}), tmp_path / "run", watcher=heard)
    assert heard.notes == []
    assert run.asked_config == small.with_values({"max_steps": 1})


def test_without_enough_classes_to_hold_out_the_last_epoch_is_kept(small: Config, tmp_path: Path) -> None:
    heard = Notes()
    config = small.with_values({"unseen": 0.95, "train_classes": None, "max_steps": 2})  # 6 training classes
    run = train(config, tmp_path / "run", watcher=heard)
    assert "no epoch is selected" in heard.notes[0]
    assert run.results is not None
    assert run.results["best_epoch"] is None
    assert not run.best.exists()


def test_where_nothing_is_held_out_the_untrained_network_is_measured_on_the_test_classes(
    small: Config, tmp_path: Path
) -> None:
    config = small.with_values({"holdout": 0.0, "max_steps": 2})
    still = train(config.with_values({"lr": 1e-12, "frozen_bn": True}), tmp_path / "still")
    assert still.results is not None
    assert still.results["untrained_test"] == still.results["test"]  # at this rate nothing was learned
    assert [(line["epoch"], line["step"]) for line in still.metrics() if "test" in line] == [(0, 0)]
    learned = train(config.with_values({"lr": 0.05, "max_steps": 12}), tmp_path / "learned")
    assert learned.results is not None
    assert learned.results["untrained_test"] == still.results["test"]
    assert learned.results["test"] != still.results["test"]
    assert learned.results["best_epoch"] is None  # it selects nothing


def test_where_classes_are_held_out_the_test_classes_are_measured_once(small: Config, tmp_path: Path) -> None:
    run = train(small.with_values({"max_steps": 1}), tmp_path / "run")
    assert run.results is not None
    assert "untrained_test" not in run.results
    assert not any("test" in line for line in run.metrics())


def test_measuring_the_untrained_network_changes_nothing_and_a_resumed_run_keeps_it(
    small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small.with_values({"holdout": 0.0, "max_steps": 4, "workers": 1})
    whole = train(config, tmp_path / "whole")
    first = train(config.with_values({"max_steps": 2}), tmp_path / "part")
    resumed = train(resume=first.path, max_steps=4)
    assert whole.results is not None
    assert resumed.results is not None
    assert resumed.results["untrained_test"] == whole.results["untrained_test"]
    monkeypatch.setattr("metrix.train.epochs.Epochs.measure_untrained", lambda self, part: None)
    without = train(config, tmp_path / "without")
    states = [load_file(run.last) for run in (whole, without)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_results_on_few_test_classes_carry_a_flag(small: Config, tmp_path: Path) -> None:
    heard = Notes()
    config = small.with_values({"unseen": 0.025, "max_steps": 1, "holdout": 0.0})  # 3 of 120 classes
    run = train(config, tmp_path / "run", watcher=heard)
    assert run.results is not None
    assert run.results["test"]["classes"] == 3
    assert run.results["test"]["few_classes"] is True
    assert any("the test part has 3 classes only" in note for note in heard.notes)
    many = train(small.with_values({"max_steps": 1}), tmp_path / "many")
    assert many.results is not None
    assert "few_classes" not in many.results["test"]


def test_a_single_test_class_is_refused_before_training(small: Config, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 2 classes to measure the model on, got 1"):
        train(small.with_values({"unseen": 0.001}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
