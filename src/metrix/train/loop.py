"""The training loop, from top to bottom."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from metrix.data.class_relations import describe_relation
from metrix.data.training_parts import can_select, describe_few_test_classes, has_test_part
from metrix.errors import EmbeddingError, InvalidInput
from metrix.extras import has_extra
from metrix.machine.allocation import keep_freed_memory, measure_peak_memory
from metrix.machine.bfloat16 import prepare_bfloat16
from metrix.machine.devices import AUTO, choose_device, report_refused_operations, set_arithmetic
from metrix.train import checkpoint, distributed
from metrix.train.batches import ActivationBatches, fit_batch_size, open_data, select_training_part
from metrix.train.build import learning_rate_factor
from metrix.train.compiling import compile_step
from metrix.train.config import Config, Training
from metrix.train.continuing import Continuation, describe_finish, plan_continuation
from metrix.train.data_place import with_absolute_paths
from metrix.train.distributed import Launch, Team, is_first, report_lost_process, unshard
from metrix.train.interruption import (
    LoadingFailed,
    StopRequests,
    describe_loading_failure,
    handle_signals,
    notice_dead_loaders_later,
    report_failed_writes,
)
from metrix.train.measuring import score
from metrix.train.mixing_schedule import (
    add_hits,
    begin_step,
    describe_missing_start,
    is_fitted,
    is_scheduled,
    waits_for_fit,
)
from metrix.train.network import count_parameters, describe_footprint, describe_start, fit_network
from metrix.train.nonfinite import IN_A_ROW, BrokenStep, NonFiniteStep, StepGuard
from metrix.train.precision import choose_precision, suggest_bfloat16
from metrix.train.run_folder import RunFolder, hold, hold_new, open_run_folder
from metrix.train.state import TrainingState, prepare
from metrix.train.teacher import describe_seen_by_teacher, describe_teacher, fit_teacher
from metrix.train.trackers import TrackedRun, flatten_settings
from metrix.train.unlabelled import fingerprint_data, open_unlabelled
from metrix.train.untrained import compare_with_untrained
from metrix.train.watching import Watcher

SAVE_AFTER = 10.0  # seconds between checkpoints at the end of epochs: short epochs would spend their time on them
LOSSES = ("loss", "clean", "mixed")


def train(
    config: Config | None = None,
    folder: Path | None = None,
    *,
    resume: Path | None = None,
    epochs: int | None = None,
    max_steps: int | None = None,
    finish: bool = False,
    watcher: Watcher | None = None,
    launch: Launch | None = None,
    on_nonfinite: str | None = None,
    measured: RunFolder | None = None,
) -> RunFolder:
    """Train a model and measure it on the test classes; the run is a folder.

    Ctrl-C and SIGTERM end the run after the current step, with a checkpoint, and raise `Interrupted`. A run that
    was interrupted or killed is resumed with `resume` and ends with the weights that it would have had otherwise.

    Under torchrun, or with `launch`, several processes train on one global batch; each of them calls this function.
    A run may be resumed with another number of processes than it began with.

    Args:
        config: the settings; `Config()` by default
        folder: where to write the run; a new folder in `runs` by default
        resume: the folder of a run to resume, with its own settings
        epochs: with `resume`, train until there are so many epochs in all, also if the run is finished already
        max_steps: the same in steps
        finish: with `resume`, train no more: the best checkpoint so far becomes the model
        watcher: hears of the progress
        launch: the number of processes, and how they share the work
        measured: a finished run with the same settings, whose figures stand in for those of a run on all classes
        on_nonfinite: with `resume`, what to do from now on when a loss or gradient is not finite: stop or skip

    Raises:
        NonFiniteStep: a loss or gradient was not finite; `metrix.train.replay` repeats the step

    Returns:
        The folder of the finished run; its `results` are the measures.
    """
    watcher, longer = watcher or Watcher(), None
    if resume is not None:
        run = open_run_folder(resume)
        config = run.config
        if epochs is not None or max_steps is not None:
            longer = plan_continuation(run, epochs, max_steps)
            config = longer.config
        elif run.results is not None:
            if is_first():
                watcher.finished(run, run.results)
            return run
        if on_nonfinite is not None:
            config = config.with_values({"on_nonfinite": on_nonfinite})
        if finish and not run.last.exists():
            raise InvalidInput(
                f"{resume} has nothing to finish: it has no checkpoint yet; resume it with --resume {resume}"
            )
    asked = with_absolute_paths(config or Config())
    watcher = watcher if is_first() else Watcher()
    if asked.train.log and is_first():
        watcher = TrackedRun(asked.train.log, watcher)
    device = choose_device(asked.train.device)
    config, said = choose_precision(asked, device)
    if said:
        watcher.note(said)
    if device.type == "cpu":
        keep_freed_memory()
        if config.train.precision == "bf16-mixed":
            watcher.note(prepare_bfloat16())
    team = distributed.launch(config.train, launch or Launch())
    watcher = watcher if team.first else Watcher()
    try:
        with (
            set_arithmetic(team.device, config.train.deterministic) as arithmetic,
            report_refused_operations(),
            report_lost_process(resume, team),  # before the folder of a new run is known
            _hold_folder(config, folder, resume, team) as run,
            handle_signals(run.path) as requests,
            report_lost_process(run.path, team),
            report_failed_writes(run.path),
        ):
            if arithmetic:
                watcher.note(arithmetic)
            return _train(config, asked, run, resume is not None, watcher, requests, team, longer, finish, measured)
    finally:
        watcher.close()


@contextmanager
def _hold_folder(config: Config, folder: Path | None, resume: Path | None, team: Team) -> Iterator[RunFolder]:
    """The folder of the run, which rank 0 creates or opens, and locks against other runs."""
    with ExitStack() as stack:
        path, refusal = "", ""
        if team.first:
            try:
                held = stack.enter_context(hold(resume) if resume is not None else hold_new(folder, config))
                path = str(held.path)
            except InvalidInput as error:
                refusal = str(error)
        path, refusal = json.loads(team.broadcast(json.dumps([path, refusal])))
        if refusal:
            raise InvalidInput(refusal)
        yield RunFolder(Path(path))


def _train(
    config: Config,
    asked: Config,
    run: RunFolder,
    resumed: bool,
    watcher: Watcher,
    requests: StopRequests,
    team: Team,
    longer: Continuation | None = None,
    finish: bool = False,
    measured: RunFolder | None = None,
) -> RunFolder:
    """Prepare, restore, train and validate epoch by epoch, and finish."""
    requests.sent_twice = team.size > 1
    with team.one_at_a_time("data"):
        dataset = open_data(config, watcher.preparing)
        unlabelled, joined = open_unlabelled(config, dataset, watcher.preparing)
    part = select_training_part(config, dataset)
    config, replaced = fit_network(fit_teacher(config), dataset)
    config, lowered = fit_batch_size(config, part)
    fingerprint = fingerprint_data(dataset, unlabelled)
    if resumed:
        run.check_data(config, fingerprint, asked)
        if longer is not None and team.first:
            run.reopen(longer.to_dict())
        run.store_config(config)
    restored = resumed and run.last.exists()
    began = time.monotonic()
    state = prepare(config, dataset, part, team, watcher.preparing, restored=restored, unlabelled=unlabelled)
    if state.influence is not None and (change := state.influence.old.describe_conversion()):
        watcher.note(f"images for the old model of {config.train.compatible_with}: {change}")
    if restored:
        state.restore(run.last)
        state.batches.activation_seconds += state.progress.activation_seconds
    if longer is not None:
        state.progress.done, state.progress.without_better = False, 0
    team.wait()
    if team.first:
        if not resumed:  # only now is it certain that the settings go together
            run.start(config, fingerprint, asked)
            if measured is not None:
                run.store_measured(measured)
        # before the first step, the untrained network is measured again
        run.drop_lines_after(state.progress.epoch if state.progress.step else -1)

    trained = describe_footprint(*count_parameters(state.embedder, state.objective.loss))
    degrees = "" if state.objective.relation is None else describe_relation(state.objective.relation)
    few = describe_few_test_classes(dataset.catalogue, dataset.broken)
    compiled = ""
    if config.train.compile:
        watcher.preparing("looking for a compiler", 0, 1)
        compiled = compile_step(config, state.embedder, state.objective, team.device)
        watcher.preparing("looking for a compiler", 1, 1)
    start = "" if restored else describe_start(config)
    faster = "" if restored or asked.train.precision != AUTO else _suggest_precision(config, state, watcher)
    own = [few, compiled, lowered, start, "" if longer is None else longer.describe(), faster]
    of_teacher = describe_teacher(config, state.objective)
    for note in (*dataset.catalogue.notes, replaced, *own, degrees, joined, *of_teacher, trained):
        if note:
            watcher.note(note)
    if caution := describe_seen_by_teacher(config, dataset):
        watcher.warn(caution)
    loop = _Loop(config.train, run, state, watcher, requests, team, began - state.progress.seconds, caution)
    if finish:
        if run.best.exists():  # it may be newer than the last checkpoint
            chosen = checkpoint.read_progress(run.best)
            state.progress.best, state.progress.best_epoch = chosen.best, chosen.best_epoch
        watcher.note(describe_finish(state.progress, config.train.epochs, run.best.exists()))
        results = loop.finish(early=not state.progress.done)
        watcher.finished(run, results)
        return run
    watcher.begin(run, config, part, loop.total_steps, state.progress)
    with requests.deferred(), loop.open_log():
        if state.progress.step == 0 and (loop.selects or loop.tests):
            loop.measure_untrained("val" if loop.selects else "test")
        if config.train.epochs == 0:
            state.progress.done = True
            loop.end_epoch(validated=True)
        while not state.progress.done:
            means = loop.train_epoch()
            validated = loop.selects and loop.validation_is_due
            if validated:
                loop.validate(means)
            loop.end_epoch(validated)
    results = loop.finish()
    watcher.finished(run, results)
    return run


def _suggest_precision(config: Config, state: TrainingState, watcher: Watcher) -> str:
    if state.team.device.type != "cpu" or state.team.size > 1 or config.train.precision != "32-true":
        return ""
    steps = config.train.epochs * state.batches.sampler.batches_per_epoch
    images = min(steps, config.train.max_steps or steps) * state.batches.sampler.batch_size
    return suggest_bfloat16(config, state.batches.network, state.batches.example(), images, watcher.preparing)


@dataclass
class _Loop:
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
