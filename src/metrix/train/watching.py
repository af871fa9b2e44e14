"""The events of a training run, for progress displays."""

from __future__ import annotations

from typing import Any

from metrix.data import Part
from metrix.train.checkpoint import Progress
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder


class Watcher:
    """Receives the events of a run and ignores them; override the methods of interest."""

    def preparing(self, what: str, done: int, of: int) -> None:
        """Preparation, such as checking images: `done` of `of` items."""

    def note(self, text: str) -> None:
        """Something about the data or the settings that the user should know, before training starts."""

    def begin(self, run: RunFolder, config: Config, part: Part, steps: int, progress: Progress) -> None:
        """Training starts, or resumes from `progress`; it takes `steps` steps in all."""

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        """A step is done: its loss, clean and mixed loss, and the number of images in the batch."""

    def warn(self, text: str) -> None:
        """Something went wrong in training that the user should act on, such as a collapse of the embedding."""

    def skipped(self, progress: Progress, why: str) -> None:
        """A step was skipped because its loss or gradient is not finite."""

    def untrained(self, found: dict[str, Any], part: str) -> None:
        """The untrained network was measured, before the first step.

        Args:
            found: the measures
            part: `val`, the classes that select the epoch, or `test` where no classes are held out; then nothing is
                selected by it
        """

    def validated(self, progress: Progress, losses: list[float], found: dict[str, Any], better: bool) -> None:
        """A validation is done: the epoch's mean losses, the measures, and whether they are the best so far."""

    def finished(self, run: RunFolder, results: dict[str, Any]) -> None:
        """The run is complete."""

    def close(self) -> None:
        """No more events follow, whether the run is complete or not."""
