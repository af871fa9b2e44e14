"""The epochs of a run: its steps, validations and checkpoints, and its results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from metrix.data.training_parts import can_select, has_test_part
from metrix.errors import EmbeddingError
from metrix.extras import has_extra
from metrix.machine.allocation import measure_peak_memory
from metrix.train import checkpoint
from metrix.train.batches import ActivationBatches
from metrix.train.build import learning_rate_factor
from metrix.train.distributed import Team, unshard
from metrix.train.interruption import LoadingFailed, StopRequests, describe_loading_failure, notice_dead_loaders_later
from metrix.train.measuring import score
from metrix.train.mixing_schedule import (
    add_hits,
    begin_step,
    describe_missing_start,
    is_fitted,
    is_scheduled,
    waits_for_fit,
)
from metrix.train.network import count_parameters
from metrix.train.nonfinite import IN_A_ROW, BrokenStep, NonFiniteStep, StepGuard
from metrix.train.run_folder import RunFolder
from metrix.train.sections import Training
from metrix.train.state import TrainingState
from metrix.train.trackers import flatten_settings
from metrix.train.untrained import compare_with_untrained
from metrix.train.watching import Watcher

SAVE_AFTER = 10.0  # seconds between checkpoints at the end of epochs: short epochs would spend their time on them
LOSSES = ("loss", "clean", "mixed")


@dataclass
class Epochs:
    """The steps, validations and checkpoints of one run."""

    settings: Training
    run: RunFolder
    state: TrainingState
    watcher: Watcher
    requests: StopRequests
    team: Team
    began: float  # by the monotonic clock, as if the run had never been interrupted
    caution: str = ""  # on the figures, to be stored with them
    events: Any = None  # TensorBoard's writer, on rank 0 and if TensorBoard is installed
    total_steps: int = field(init=False)
    saved: float = field(init=False)  # when the last checkpoint was written
    guard: StepGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = StepGuard(self.settings, self.run, self.state)
        steps = self.settings.epochs * self.state.batches.sampler.batches_per_epoch
        self.total_steps = min(steps, self.settings.max_steps or steps)
        self.saved = time.monotonic()

    @property
    def tests(self) -> bool:
        """Whether there are classes to measure the model on."""
        return has_test_part(self.state.batches.dataset.catalogue)

    @property
    def selects(self) -> bool:
        """Whether there are held-out classes to select an epoch by."""
        dataset = self.state.batches.dataset
        return can_select(dataset.catalogue, dataset.broken)

    def train_epoch(self) -> list[float]:
        """Train on the rest of the current epoch; returns the means of its losses."""
        state, progress = self.state, self.state.progress
        state.scheme.begin(progress.epoch, progress.batch, state.embed_training_images)
        state.module.train()
        state.train_backbone(progress.epoch >= self.settings.warmup_epochs)
        for images, labels in self._fetch(state.scheme.batches(progress.epoch, progress.batch)):
            if progress.step >= self.total_steps:
                break
            request = self._step(images, labels)
            self.requests.agree(request if self.team.size > 1 else self.requests.signum or 0)
            if self.requests.agreed is not None or progress.batch % self.settings.checkpoint_steps == 0:
                self._save(self.run.last)
                self.team.wait()  # no process ends before the checkpoint is written
                self.requests.raise_if_agreed()
        lr = self.settings.lr * learning_rate_factor(self.settings, progress.epoch, progress.step - 1, self.total_steps)
        skipped, means = progress.skipped_here, progress.end_epoch()
        progress.done = progress.epoch >= self.settings.epochs or progress.step >= self.total_steps
        if self.team.first:
            self._log_losses(lr, means, skipped)
        return means

    def _fetch(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches; if loading one fails, a checkpoint is written before the error is raised."""
        try:
            for batch in batches:
                notice_dead_loaders_later()
                yield batch
        except Exception as error:
            failure = describe_loading_failure(error)
            if failure is None:
                raise
            if self.team.size == 1:  # with several processes the last checkpoint stays: the others are within a step
                self._save(self.run.last)
            raise LoadingFailed(failure, self.run.path) from error

    def _step(self, images: Tensor, labels: Tensor) -> int:
        """Train on a batch; returns the signal that any process had received, or 0."""
        state, progress, settings, fabric = self.state, self.state.progress, self.settings, self.team.fabric
        factor = learning_rate_factor(settings, progress.epoch, progress.step, self.total_steps)
        for group in state.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        images = self.team.put(images)  # labels stay on the host, where pairs and shapes follow from them
        begin_step(state.objective, state.batches.config.mixing, progress, self.total_steps)
        self.guard.begin()
        values: Tensor | None = None
        refusal: EmbeddingError | None = None
        state.optimizer.zero_grad()
        try:
            values = state.module(images, labels)
        except EmbeddingError as error:
            refusal = error
        else:
            fabric.backward(values[0])  # also of a loss that is not finite: DDP expects it
        if progress.epoch < settings.warmup_epochs:
            for parameter in state.embedder.backbone.parameters():
                parameter.grad = None  # FSDP computes them all the same; AdamW skips parameters without a gradient
        reading = self.guard.read(values, self.requests.signum or 0)  # here, and only here, the host waits
        if reading.broken:
            self._handle_broken_step(*self.guard.describe(images, labels, reading.losses, refusal))
            return reading.request
        if settings.clip is not None:  # a gradient scaler (16-mixed) expects some steps to overflow
            limit = {"max_norm" if settings.clip_by == "norm" else "clip_val": settings.clip}
            fabric.clip_gradients(state.module, state.optimizer, **limit, error_if_nonfinite=False)
        state.optimizer.step()
        if state.average is not None:
            state.average.update()
        progress.count_step(reading.losses)
        self._watch_separation(reading.separation)
        self.watcher.step(progress, reading.losses, state.batches.sampler.batch_size)
        return reading.request

    def _watch_separation(self, measured: list[float] | None) -> None:
        """Warn, once in a run, that the embedding has collapsed; of several processes, the first looks at its part."""
        progress = self.state.progress
        if measured is None or not self.team.first:
            return
        *separation, hits = measured
        add_hits(progress, hits)
        warning = progress.separation.add(separation, progress.step, progress.epoch + 1)
        if warning is not None:
            self.watcher.warn(warning)

    def _handle_broken_step(self, found: BrokenStep, tensors: dict[str, Tensor]) -> None:
        """Save a step that is not finite, then stop the run or count the step as skipped; weights are unchanged."""
        progress, settings = self.state.progress, self.settings
        where = self.guard.save(found, tensors) if self.team.first else ""
        self.team.wait()  # no process ends before the step is saved
        said = "; ".join(part for part in (f"step {found.step}: {found.said}", where) if part)
        if settings.on_nonfinite == "stop":
            raise NonFiniteStep(
                f"{said}; lower the learning rate (lr={settings.lr:g}) or clip gradients (--clip) in a new run, or "
                f"leave such steps out with --resume {self.run.path} --on-nonfinite skip"
            )
        progress.count_skipped()
        if progress.skipped_last >= IN_A_ROW:
            raise NonFiniteStep(
                f"{IN_A_ROW} steps in a row were skipped, of which the last is {said}; the weights do not recover: "
                f"start a new run with a lower learning rate (lr={settings.lr:g}) or with --clip"
            )
        self.watcher.skipped(progress, said)

    def measure_untrained(self, part: str) -> None:
        """Measure a part before the first step, epoch 0: the held-out classes or, without such, the test classes."""
        found, progress = self.state.measure_untrained(part), self.state.progress
        if part == "val" and self.settings.select_from == 0:
            progress.best, progress.best_epoch = score(found), 0
            self._save(self.run.best)
        if self.team.first:
            self.run.log(step=0, epoch=0, **{part: found})
            self._log_event(f"{part}/recall@1", score(found), 0)
        self.watcher.untrained(found, part)

    @property
    def validation_is_due(self) -> bool:
        """Whether the epoch that just ended is one after which to validate."""
        return self.state.progress.done or self.state.progress.epoch % self.settings.validate_every == 0

    def validate(self, means: list[float]) -> None:
        """Measure the validation classes, and keep the model unless an earlier one was better."""
        progress = self.state.progress
        found = self.state.measure("val")
        open_to_choice = progress.epoch >= self.settings.select_from or progress.done
        better = progress.best is None or score(found) > progress.best
        # of trained epochs, a tie goes to the later one; the untrained network stays unless it is beaten
        kept = open_to_choice and (better or (score(found) == progress.best and progress.best_epoch != 0))
        progress.without_better = 0 if better else progress.without_better + 1
        if kept:
            progress.best, progress.best_epoch = score(found), progress.epoch
            self._save(self.run.best)
        if self.team.first:
            self.run.log(step=progress.step, epoch=progress.epoch, val=found)
            self._log_event("val/recall@1", score(found), progress.step)
        self.watcher.validated(progress, means, found, kept)

    def end_epoch(self, validated: bool) -> None:
        """Stop early if validations no longer improve, write a checkpoint if one is due, obey requests to stop."""
        progress, patience, mixing = self.state.progress, self.settings.patience, self.state.batches.config.mixing
        # the first process has measured its batches, and decides
        if waits_for_fit(mixing, progress) and self.team.max(int(is_fitted(progress))):
            progress.mixing_from = progress.step
            self.watcher.note(f"mixup begins after step {progress.step:,}: the training classes are fitted")
        if patience is not None and progress.without_better >= patience:
            progress.done = True
        self.requests.agree(self.team.max(self.requests.signum or 0))
        overdue = self.team.max(int(time.monotonic() - self.saved > SAVE_AFTER))
        if validated or progress.done or self.requests.agreed or overdue:
            self._save(self.run.last)
        self.team.wait()
        self.requests.raise_if_agreed()

    def finish(self, early: bool = False) -> dict[str, Any]:
        """Write the best model, measure it on the test classes and write the results; `early` is stored with them."""
        state, progress = self.state, self.state.progress
        state.train_backbone(True)
        if self.run.best.exists():
            state.load_weights(checkpoint.read(self.run.best)[0])
        if state.average is not None:
            state.average.copy_to_model()
        weights = unshard(state.embedder.state_dict())
        if self.team.first:
            state.embedder.save(self.run.model, weights)
        # the model has the averaged weights already
        test = state.measure("test", averaged=False, fit=True) if self.tests else None
        held = test or (state.measure("val", averaged=False, fit=True) if self.selects else {})
        fit = held.pop("fit", None)
        results: dict[str, Any] = {
            "test": test,
            "fit": fit,
            **({} if (before := self.run.untrained_test) is None else {"untrained_test": before}),
            "best_epoch": progress.best_epoch,
            "validation_recall@1": progress.best,
            "epochs": progress.epoch,
            "steps": progress.step,
            "skipped_steps": progress.skipped,
            **({"mixing_from": progress.mixing_from} if is_scheduled(self.run.config.mixing) else {}),
            "collapse": progress.separation.to_dict(),
            "trained_parameters": count_parameters(state.embedder, state.objective.loss)[0],
            "peak_memory": measure_peak_memory(self.team.device),
            **({"finished_early": True} if early else {}),
            **({"caution": self.caution} if self.caution else {}),
            "seconds": round(time.monotonic() - self.began, 1),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "settings": flatten_settings(self.run.config),
        }
        results |= compare_with_untrained(self.run.metrics(), results)
        if isinstance(state.batches, ActivationBatches):
            results["activation_seconds"] = round(state.batches.activation_seconds, 1)  # part of the seconds above
        if late := describe_missing_start(self.run.config.mixing, progress):
            self.watcher.warn(late)
        if self.team.first:
            self.run.write_json("results.json", results)
        self.team.wait()
        return results

    @contextmanager
    def open_log(self) -> Iterator[None]:
        """Open TensorBoard's writer on rank 0, if installed; a resumed run replaces the events that it writes again."""
        if not self.team.first or not has_extra("tensorboard"):
            yield
            return
        from torch.utils.tensorboard import SummaryWriter

        folder, progress = self.run.path / "tensorboard", self.state.progress
        # a checkpoint within an epoch may have been written at its last step, before the events of that step
        written_again = progress.step + (progress.batch == 0) if folder.exists() else None
        with SummaryWriter(str(folder), purge_step=written_again) as self.events:
            yield

    def _log_losses(self, lr: float, means: list[float], skipped: int) -> None:
        progress, named = self.state.progress, dict(zip(LOSSES, means, strict=True))
        also: dict[str, Any] = {"skipped": skipped} if skipped else {}
        collapse = progress.separation.noticed
        if collapse is not None and collapse["epoch"] == progress.epoch:
            also["collapse"] = collapse
        self.run.log(step=progress.step, epoch=progress.epoch, lr=lr, **named, **also)
        for name, value in named.items():
            self._log_event(f"train/{name}", value, progress.step)

    def _log_event(self, name: str, value: float, step: int) -> None:
        if self.events is not None:
            self.events.add_scalar(name, value, step)

    def _save(self, path: Path) -> None:
        self.saved = time.monotonic()
        self.state.progress.seconds = self.saved - self.began
        self.state.progress.activation_seconds = self.state.batches.activation_seconds
        self.state.save(path)
