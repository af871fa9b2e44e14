"""Runs that train for longer than was planned, or end before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metrix.errors import InvalidInput
from metrix.messages import count
from metrix.train.checkpoint import Progress, read_progress
from metrix.train.config import Config
from metrix.train.run_folder import RunFolder


@dataclass(frozen=True)
class Continuation:
    """A run that goes on with another end: `config` has the new one, `before` is the configuration so far."""

    config: Config
    before: Config
    progress: Progress  # where the run stands

    def to_dict(self) -> dict[str, Any]:
        """What is stored in the run: the old and the new end, and when it was changed."""
        ends = ("epochs", "max_steps")
        changed = {key: [getattr(one.train, key) for one in (self.before, self.config)] for key in ends}
        return {"at_epoch": self.progress.epoch, "at_step": self.progress.step, **changed}

    def describe(self) -> str:
        """What happens to the run and to its learning rate, in a sentence or two."""
        train = self.config.train
        end = f"{train.epochs} epochs" + (f" or {train.max_steps:,} steps" if train.max_steps else "")
        said = f"the run goes on after {count(self.progress.epoch, 'epoch')}, to {end} in all"
        if train.schedule == "cosine":
            return (
                f"{said}; the cosine schedule is stretched: from the next step on, the learning rate is that of a run "
                "that was planned this long, so it jumps now and falls to 0 at the new end"
            )
        if train.schedule == "step":
            return f"{said}; the learning rate goes on falling every {count(train.decay_every, 'epoch')}"
        return said


def plan_continuation(run: RunFolder, epochs: int | None, max_steps: int | None) -> Continuation:
    """Let a run, finished or interrupted, go on to another end.

    Raises:
        InvalidInput: the run has trained as long already, or has nothing to continue from
    """
    if not run.last.exists():
        raise InvalidInput(
            f"{run.path} has no checkpoint to continue from; resume it with --resume {run.path} alone, or start it anew"
        )
    before, progress = run.config, read_progress(run.last)
    given = {"epochs": epochs, "max_steps": max_steps}
    config = before.with_values({key: value for key, value in given.items() if value is not None})
    train = config.train
    if train.epochs <= progress.epoch:
        raise InvalidInput(
            f"--epochs: expected more than {progress.epoch}, which {run.path} has trained already, got {train.epochs}; "
            "epochs are counted from the beginning of the run"
        )
    if train.max_steps is not None and train.max_steps <= progress.step:
        raise InvalidInput(
            f"--max-steps: expected more than {progress.step}, which {run.path} has trained already, got "
            f"{train.max_steps}; steps are counted from the beginning of the run"
        )
    return Continuation(config, before, progress)


def describe_finish(progress: Progress, planned: int, has_best: bool) -> str:
    """From which epoch the model of a run comes that ends early."""
    trained = f"{count(progress.epoch, 'whole epoch')} of {planned} planned"
    if has_best and progress.best_epoch is not None:
        return f"the run ends after {trained}; the model is that of epoch {progress.best_epoch}, the best validation"
    return f"the run ends after {trained}; no validation chose an epoch, so the model is that of step {progress.step:,}"
