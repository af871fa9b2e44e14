"""Runs on few classes: which epoch is kept, and the batch size that is used and stored."""

from __future__ import annotations

from pathlib import Path

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
    assert run.config == small.with_values({"max_steps": 1})


def test_without_enough_classes_to_hold_out_the_last_epoch_is_kept(small: Config, tmp_path: Path) -> None:
    heard = Notes()
    config = small.with_values({"unseen": 0.95, "train_classes": None, "max_steps": 2})  # 6 training classes
    run = train(config, tmp_path / "run", watcher=heard)
    assert "no epoch is selected" in heard.notes[0]
    assert run.results is not None
    assert run.results["best_epoch"] is None
    assert not run.best.exists()
