"""Train a run, from its settings to its results: prepare, restore, train and validate epoch by epoch, finish."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from metrix.data.class_relations import describe_relation
from metrix.data.training_parts import describe_few_test_classes
from metrix.errors import InvalidInput
from metrix.machine.allocation import keep_freed_memory
from metrix.machine.bfloat16 import prepare_bfloat16
from metrix.machine.devices import AUTO, choose_device, report_refused_operations, set_arithmetic
from metrix.train import checkpoint, distributed
from metrix.train.batches import fit_batch_size, open_data, select_training_part
from metrix.train.compiling import compile_step
from metrix.train.config import Config
from metrix.train.continuing import Continuation, describe_finish, plan_continuation
from metrix.train.data_place import with_absolute_paths
from metrix.train.distributed import Launch, Team, is_first, report_lost_process
from metrix.train.epochs import Epochs
from metrix.train.interruption import StopRequests, handle_signals, report_failed_writes
from metrix.train.network import count_parameters, describe_footprint, describe_start, fit_network
from metrix.train.precision import choose_precision, suggest_bfloat16
from metrix.train.run_folder import RunFolder, hold, hold_new, open_run_folder
from metrix.train.state import TrainingState, prepare
from metrix.train.teacher import describe_seen_by_teacher, describe_teacher, fit_teacher
from metrix.train.trackers import TrackedRun
from metrix.train.unlabelled import fingerprint_data, open_unlabelled
from metrix.train.watching import Watcher


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
        watcher: is called with the progress
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
    loop = Epochs(config.train, run, state, watcher, requests, team, began - state.progress.seconds, caution)
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
