"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metrix.core.compute.micro_batches import MicroBatched
from metrix.core.distributed.batch_norm import normalise_globally
from metrix.core.objective import Objective
from metrix.errors import InvalidInput
from metrix.model import Embedder
from metrix.train import checkpoint
from metrix.train.batches import Images, opened_data, source_for, training_part
from metrix.train.build import build_loss, build_objective, build_optimizer
from metrix.train.checkpoint import Progress, owned, under
from metrix.train.config import Config, Training
from metrix.train.distributed import (
    Launch,
    Team,
    is_first,
    load_shares,
    noticing_lost,
    put_together,
    started,
    whole_of,
)
from metrix.train.divide_and_conquer import Whole, scheme_for
from metrix.train.ema import Average
from metrix.train.interruption import Requests, end_requests
from metrix.train.measuring import measured, score
from metrix.train.run_folder import RunFolder, new_folder, opened
from metrix.train.watching import Watcher

SAVE_AFTER = 10.0  # seconds: epochs of a few steps would otherwise be spent on checkpoints


class Trained(nn.Module):
    """Network and loss in one module: one forward call for a step, and proxies train with the rest."""

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Loss, clean loss and mixed loss of one batch: (3,); the first is the one to call backward on."""
        out = self.objective.step(self.network, inputs, labels)
        return torch.stack([out.loss, out.clean.detach(), out.mixed.detach()])


def train(
    config: Config | None = None,
    folder: Path | None = None,
    *,
    resume: Path | None = None,
    watcher: Watcher | None = None,
    launch: Launch | None = None,
) -> RunFolder:
    """Train and measure a model; the run is a folder.

    A run that was interrupted goes on with `resume`, to the weights that it would have had without the
    interruption. Ctrl-C and SIGTERM end it after the step under way and raise `Interrupted`.

    Under torchrun, or with `launch`, several processes train on one global batch; each calls this function.
    A run may go on with another number of processes than it began with.
    """
    watcher = watcher or Watcher()
    if resume is not None:
        run = opened(resume)
        config = run.config
        if run.results is not None:
            if is_first():
                watcher.finished(run, run.results)
            return run
    config = config or Config()
    team = started(config.train, launch or Launch())
    watcher = watcher if team.first else Watcher()
    run = RunFolder(Path(team.text(str(resume or folder or new_folder(config)))))
    if team.largest(resume is None and run.path.exists() and any(run.path.iterdir())):
        raise InvalidInput(f"{run.path} is there already: choose another folder, or --resume {run.path}")
    try:
        with end_requests(run.path) as requests, noticing_lost(run.path, team):
            return _train(config, run, resume is not None, watcher, requests, team)
    finally:
        watcher.close()


def _train(
    config: Config, run: RunFolder, resumed: bool, watcher: Watcher, requests: Requests, team: Team
) -> RunFolder:
    settings, model, fabric = config.train, config.model, team.fabric
    requests.patient = team.size > 1
    with team.one_at_a_time("data"):
        dataset = opened_data(config, watcher.preparing)
    part = training_part(config, dataset)
    fingerprint = dataset.catalogue.fingerprint()
    if resumed:
        run.check_resumable(fingerprint)

    torch.manual_seed(settings.seed)
    embedder = Embedder(
        model.backbone,
        model.dim,
        model.pool,
        model.weights,
        model.freeze_to,
        frozen_bn=model.frozen_bn,
        image_size=config.data.image_size,
    )
    draws = torch.Generator().manual_seed(settings.seed)
    loss = build_loss(config.loss, part.num_classes, model.dim, draws)
    objective = build_objective(config, loss, draws)
    source = source_for(config, embedder, dataset, part, watcher.preparing, team)
    objective.explain(source.network)  # misfits of network and mixup are found before the first step
    scheme = scheme_for(config, source)
    network = scheme.network
    if settings.micro_batch is not None:
        network = MicroBatched(network, settings.micro_batch)
    if team.size > 1:
        objective.across_ranks(mix=config.mixing.mix)
        if model.sync_bn and settings.micro_batch is None:  # else statistics are those of each micro-batch
            normalise_globally(embedder, team.ranks)
    trained = fabric.setup_module(Trained(network, objective))
    optimizer = fabric.setup_optimizers(build_optimizer(config, embedder, loss))
    average = Average(embedder, settings.ema) if settings.ema > 0 else None

    progress = Progress()
    if resumed and run.last.exists():
        progress = _restore(run, embedder, objective, optimizer, average, draws, scheme, fabric)
    team.wait()
    if team.first:
        if not resumed:  # all that was given fits together, so the run begins
            run.start(config, fingerprint)
        run.forget_after(progress.step)
    total_steps = settings.epochs * source.sampler.batches_per_epoch
    total_steps = min(total_steps, settings.max_steps or total_steps)
    watcher.begin(run, config, part, total_steps, progress)
    begun = time.monotonic() - progress.seconds
    saved = time.monotonic()

    def save(path: Path) -> None:
        nonlocal saved
        saved = time.monotonic()
        progress.seconds = saved - begun
        if team.first or team.sharded:
            state = _state(embedder, objective, optimizer, average, draws, scheme)
        if team.first:
            checkpoint.write(path, state, _with_scaler(progress, fabric))

    with requests.noted(), _events(run, progress, team) as events:
        while not progress.done:
            scheme.begin(progress.epoch, progress.batch, lambda: _embedded(source, trained, team))
            trained.train()
            for images, labels in scheme.batches(progress.epoch, progress.batch):
                if progress.step >= total_steps:
                    break
                for group in optimizer.param_groups:
                    factor = _schedule(settings, progress.epoch, progress.step, total_steps)
                    group["lr"] = group["base_lr"] * factor
                losses = trained(fabric.to_device(images), fabric.to_device(labels))
                optimizer.zero_grad()
                fabric.backward(losses[0])
                if progress.epoch < settings.warmup_epochs:
                    for p in embedder.backbone.parameters():
                        p.grad = None  # AdamW passes over what has no gradient
                if settings.clip is not None:
                    fabric.clip_gradients(trained, optimizer, max_norm=settings.clip)
                optimizer.step()
                if average is not None:
                    average.update()
                progress.step += 1
                progress.batch += 1
                values = losses.tolist()  # loss, clean, mixed
                if not math.isfinite(values[0]):
                    raise InvalidInput(
                        f"the loss is {values[0]} at step {progress.step}: lower the learning rate "
                        f"(lr={settings.lr}), or clip gradients (clip); the last checkpoint is {run.last}"
                    )
                progress.sums = [total + value for total, value in zip(progress.sums, values, strict=True)]
                watcher.step(progress, values, source.sampler.batch_size)
                requests.share(team.largest)
                if requests.signum is not None or progress.batch % settings.checkpoint_steps == 0:
                    save(run.last)
                    team.wait()  # none ends before the checkpoint is there
                    requests.obey()

            lr = settings.lr * _schedule(settings, progress.epoch, progress.step - 1, total_steps)
            means = [total / max(1, progress.batch) for total in progress.sums]
            progress.epoch, progress.batch, progress.sums = progress.epoch + 1, 0, [0.0, 0.0, 0.0]
            progress.done = progress.epoch >= settings.epochs or progress.step >= total_steps
            if team.first:
                _log_losses(run, events, progress, lr, means)
            validated = config.data.holdout > 0 and (progress.done or progress.epoch % settings.validate_every == 0)
            if validated:
                found = _measured(source, "val", trained, average, team)
                better = progress.best is None or score(found) > progress.best
                if better:
                    progress.best, progress.best_epoch, progress.without_better = score(found), progress.epoch, 0
                    save(run.best)
                else:
                    progress.without_better += 1
                if team.first:
                    run.log(step=progress.step, epoch=progress.epoch, val=found)
                    events.add_scalar("val/recall@1", score(found), progress.step)
                watcher.validated(progress, means, found, better)
            if settings.patience is not None and progress.without_better >= settings.patience:
                progress.done = True
            requests.share(team.largest)
            if validated or progress.done or requests.signum or time.monotonic() - saved > SAVE_AFTER:
                save(run.last)
            team.wait()
            requests.obey()

    if run.best.exists():
        tensors, _ = checkpoint.read(run.best)
        load_shares(embedder, under("model", tensors))
        if average is not None:
            average.load(under("ema", tensors))
    if average is not None:
        average.copy_to_model()
    weights = whole_of(embedder.state_dict())
    if team.first:
        embedder.save(run.model, weights)
    results = {
        "test": _measured(source, "test", trained, None, team),
        "best_epoch": progress.best_epoch,
        "validation_recall@1": progress.best,
        "steps": progress.step,
        "seconds": round(time.monotonic() - begun, 1),
    }
    if team.first:
        run.write_json("results.json", results)
    team.wait()
    watcher.finished(run, results)
    return run


def _events(run: RunFolder, progress: Progress, team: Team) -> Any:
    """TensorBoard's writer; what a resumed run writes again replaces what is there."""
    if not team.first:
        return nullcontext()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run.path / "tensorboard"), purge_step=progress.step + 1 if progress.step else None)


def _log_losses(run: RunFolder, events: Any, progress: Progress, lr: float, means: list[float]) -> None:
    named = dict(zip(("loss", "clean", "mixed"), means, strict=True))
    run.log(step=progress.step, epoch=progress.epoch, lr=lr, **named)
    for name, value in named.items():
        events.add_scalar(f"train/{name}", value, progress.step)


def _schedule(settings: Training, epoch: int, step: int, total_steps: int) -> float:
    """What learning rates are multiplied with."""
    if settings.schedule == "step":
        return float(settings.decay_by ** (epoch // settings.decay_every))
    if settings.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))
    return 1.0


def _measured(source: Images, name: str, trained: nn.Module, average: Average | None, team: Team) -> dict[str, Any]:
    """The measures of a part, by the averaged weights if there are any."""
    trained.eval()
    weights = nullcontext() if average is None else average.in_place()
    with torch.no_grad(), team.fabric.autocast(), weights, put_together(trained, team.sharded):
        return measured(source, name, team)


def _embedded(source: Images, trained: nn.Module, team: Team) -> Tensor:
    """The training images under the test view, embedded by the weights that are being trained."""
    trained.eval()
    with torch.no_grad(), team.fabric.autocast(), put_together(trained, team.sharded):
        return source.embed(source.part, team.fabric.device)


def _state(
    embedder: Embedder,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    draws: torch.Generator,
    scheme: Whole,
) -> dict[str, Tensor]:
    """Every tensor of a run that its future depends on."""
    return {
        **owned("model", whole_of(embedder.state_dict())),
        **owned("loss", whole_of(objective.loss.state_dict())),
        **owned("memory", objective.memory.state_dict() if objective.memory is not None else {}),
        **owned("ema", whole_of(average.tensors if average is not None else {})),
        **owned("optimizer", whole_of(checkpoint.optimizer_tensors(optimizer))),
        **owned("scheme", scheme.tensors()),
        "random/torch": torch.get_rng_state(),
        "random/draws": draws.get_state(),
    }


def _restore(
    run: RunFolder,
    embedder: Embedder,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    draws: torch.Generator,
    scheme: Whole,
    fabric: Any,
) -> Progress:
    """The reverse of `_state`."""
    tensors, progress = checkpoint.read(run.last)
    load_shares(embedder, under("model", tensors))
    load_shares(objective.loss, under("loss", tensors))
    if objective.memory is not None:
        objective.memory.load_state_dict(under("memory", tensors))
    if average is not None:
        average.load(under("ema", tensors))
    checkpoint.load_optimizer(optimizer, under("optimizer", tensors))
    scheme.load(under("scheme", tensors))
    torch.set_rng_state(tensors["random/torch"])
    draws.set_state(tensors["random/draws"])
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and progress.scaler:
        scaler.load_state_dict(progress.scaler)
    return progress


def _with_scaler(progress: Progress, fabric: Any) -> Progress:
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    progress.scaler = scaler.state_dict() if scaler is not None else None
    return progress
