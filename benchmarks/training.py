"""The overhead of the training loop over bare training steps, and a step of a whole network against plain PyTorch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.measuring import at_least, at_most, measured_alone
from metrix.train import Config, train
from metrix.train.batches import build_batches, open_data, select_training_part
from metrix.train.build import build_loss, build_objective, build_optimizer
from metrix.train.checkpoint import Progress
from metrix.train.presets import preset
from metrix.train.watching import Watcher

STEPS = 60
IMAGES, SIZE = 100, 96  # of a step of EfficientNet-Lite0: 20 classes of 5 images


def run() -> list[dict[str, Any]]:
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    for name, mixup in (("clean", []), ("embed mixup", ["embed"])):
        config = preset("glyphs").with_values({"max_steps": STEPS, "mixup": mixup})
        loop, bare = _together(config)
        note = f"{1000 * loop:.1f} ms per step in the loop, {1000 * bare:.1f} ms bare"
        rows.append(at_most(f"training loop on glyphs, {name}: overhead", 100 * (loop / bare - 1), 5, "%", note))
    torch.set_num_threads(threads)
    plain, ours = (measured_alone(step)[0] for step in (_plain_step, _own_step))
    note = (
        f"{IMAGES / ours:.0f} images/s, {IMAGES / plain:.0f} in the plain loop; one thread, {SIZE} px, batch {IMAGES}"
    )
    rows.append(
        at_least(
            "whole EfficientNet-Lite0, clean step: speed-up over a plain PyTorch loop", plain / ours, 1.5, note=note
        )
    )
    return rows


def _plain_step() -> Callable[[], None]:
    """Build a step as one would write it down: a timm model, a loss, AdamW."""
    import timm

    from metrix import PoolLinear, losses

    torch.set_num_threads(1)
    torch.manual_seed(0)
    backbone: Any = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    head, loss = PoolLinear(backbone.num_features, 128), losses.MultiSimilarity()
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=1e-4)
    images, labels = _batch()

    def step() -> None:
        optimizer.zero_grad()
        loss(head(backbone.forward_features(images)), labels).backward()
        optimizer.step()

    return step


def _own_step() -> Callable[[], None]:
    """Build the same step as `metrix train` does: memory kept, network in channels-last order."""
    from metrix import Clean, losses
    from metrix.machine.allocation import keep_freed_memory
    from metrix.train.build import build_embedder

    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    config = Config().with_values({"backbone": "efficientnet_lite0", "image_size": SIZE, "dim": 128, "lr": 1e-4})
    embedder, objective = build_embedder(config), Clean(losses.MultiSimilarity())
    optimizer = build_optimizer(config, embedder, objective.loss)
    images, labels = _batch()

    def step() -> None:
        optimizer.zero_grad()
        objective.step(embedder, images, labels).loss.backward()
        optimizer.step()

    return step


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(IMAGES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    return images, torch.arange(IMAGES) // 5


def _together(config: Config) -> tuple[float, float]:
    """Measure the seconds per step of the loop and of bare steps, which take turns.

    Times are processor time on one thread, so that neither other load nor waiting threads count. Those of the loop
    include loading, logging and the ends of epochs (here after every few steps).
    """
    bare = _Bare(config)
    watcher = _Beside(bare)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", watcher=watcher)
    warm = STEPS // 6
    return fmean(watcher.loop[warm:]), fmean(watcher.bare[warm:])


class _Bare:
    """A bare step: load a batch, forward, backward, optimizer."""

    def __init__(self, config: Config) -> None:
        from metrix.model import Embedder

        dataset = open_data(config, lambda *_: None)
        part = select_training_part(config, dataset)
        torch.manual_seed(0)
        self.embedder = Embedder(config.model.backbone, config.model.dim, config.model.pool)
        loss = build_loss(config.loss, part.num_classes, config.model.dim)
        self.objective = build_objective(config, loss, torch.Generator().manual_seed(0))
        self.optimizer = build_optimizer(config, self.embedder, loss)
        self.source = build_batches(config, self.embedder, dataset, part, lambda *_: None)
        self.batches, self.epoch = iter(()), -1

    def __call__(self) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.epoch += 1
            self.batches = iter(self.source.batches(self.epoch, 0))
            batch = next(self.batches)
        loss = self.objective.step(self.embedder, *batch).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class _Beside(Watcher):
    """Times each step of the loop, then takes and times a bare step."""

    def __init__(self, bare: _Bare) -> None:
        self.step_of_bare, self.loop, self.bare = bare, list[float](), list[float]()
        self.since = 0.0

    def begin(self, *_: Any) -> None:
        self.since = time.process_time()

    def step(self, progress: Progress, losses: list[float], images: int) -> None:
        now = time.process_time()
        self.loop.append(now - self.since)
        self.step_of_bare()
        self.since = time.process_time()
        self.bare.append(self.since - now)
