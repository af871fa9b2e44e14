"""What a run tells whoever watches it."""

from __future__ import annotations

from typing import Any

from metrix.data import Part
from metrix.train.checkpoint import Progress
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder


class Watcher:
    """Hears of everything and says nothing; the command line has one that draws."""

    def preparing(self, what: str, done: int, of: int) -> None:
        """Images are checked, activations computed."""

    def begin(self, run: RunFolder, config: Config, part: Part, steps: int, progress: Progress) -> None:
        """Training of so many steps in all starts, or goes on from `progress`."""

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        """A step is done: loss, clean and mixed loss."""

    def validated(self, progress: Progress, losses: list[float], found: dict[str, Any], better: bool) -> None:
        """A validation is done: the epoch's mean losses, what was found, whether it is the best so far."""

    def finished(self, run: RunFolder, results: dict[str, Any]) -> None:
        """The run is complete."""

    def close(self) -> None:
        """Nothing more comes, whether the run is complete or not."""
