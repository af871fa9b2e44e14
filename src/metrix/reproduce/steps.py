"""How long a training step takes here: forward, backward and the optimizer, on random images."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metrix.train.config import Config

ROUNDS, SECONDS = 3, 20.0  # at least so many, and for so long
CLASSES = 100  # proxies, as on CUB200
FEW = 8  # images of a calibration where a step is slow


def milliseconds(configs: Mapping[str, Config], rounds: int = ROUNDS, seconds: float = SECONDS) -> dict[str, float]:
    """The median step of each, in ms. They take turns, so that what else runs on the machine meets all of them."""
    steps = {name: prepared(config) for name, config in configs.items()}
    for step in steps.values():
        step()  # to warm up
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    number = 0
    while number < rounds or time.perf_counter() < end:
        number += 1
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            times[name].append(1000.0 * (time.perf_counter() - begun))
    return {name: statistics.median(found) for name, found in times.items()}


def prepared(config: Config) -> Callable[[], Any]:
    """A step of a configuration, ready to be timed."""
    import torch

    from metrix.model import Embedder
    from metrix.train.build import build_loss, build_objective, build_optimizer

    model, train = config.model, config.train
    device = torch.device("cuda" if train.device in ("auto", "cuda") and torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embedder = Embedder(model.backbone, model.dim, model.pool, image_size=config.data.image_size).to(device)
        wanted = embedder.data_config
        size = config.data.image_size or wanted.size
        images = torch.randn(train.batch_size, wanted.channels, size, size, device=device)
    each = max(2, train.per_class)
    labels = torch.arange(train.batch_size, device=device) // each
    classes = max(CLASSES, int(labels.max()) + 1)
    loss = build_loss(config.loss, classes, model.dim).to(device)
    objective = build_objective(config, loss, torch.Generator().manual_seed(0))
    optimizer = build_optimizer(config, embedder, loss)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(objective.step(embedder, images, labels).loss)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def seconds_by_kind(configs: Mapping[str, Config], slow: float = 2.0) -> dict[str, float]:
    """A short calibration: seconds of a step of each kind.

    Where a clean step takes longer than `slow` it is measured on few images and the rest follows by counting
    how many images each kind sends through the network.
    """
    few = {name: config.with_values({"batch_size": FEW}) for name, config in configs.items()}
    name = min(configs, key=lambda kind: kind != "clean")
    image = milliseconds({name: few[name]}, 1, 0.0)[name] / 1000.0 / FEW
    config = configs[name]
    if image * config.train.batch_size <= slow:
        return {kind: ms / 1000.0 for kind, ms in milliseconds(configs, 2, 0.0).items()}
    return {kind: image * passes(one) for kind, one in configs.items()}


def passes(config: Config) -> float:
    """Images through the network in a step: those of the batch, and k · positives for each with input mixup."""
    batch, types = config.train.batch_size, config.mixing.mixup
    k = _first(config.mixing.hard_negatives) or 3
    mixed = k * max(1, config.train.per_class - 1) * batch
    return batch + mixed * sum(kind == "input" for kind in types) / max(1, len(types))


def _first(values: Sequence[int | None] | None) -> int | None:
    return values[0] if values else None
