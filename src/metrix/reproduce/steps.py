"""Time training steps (forward, backward, optimizer) on random images."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from metrix.train.config import Config

ROUNDS, SECONDS = 3, 20.0  # at least this many rounds, and at least this long
CLASSES = 100  # classes with proxies, as on CUB200


def time_steps(configs: Mapping[str, Config], rounds: int = ROUNDS, seconds: float = SECONDS) -> dict[str, float]:
    """Measure the median duration of a step of each configuration, in milliseconds.

    The configurations take turns, so that other load on the machine affects all of them alike.
    """
    steps = {name: prepare_step(config) for name, config in configs.items()}
    for step in steps.values():
        step()  # warm-up
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


def prepare_step(config: Config) -> Callable[[], Any]:
    """Build network, loss and optimizer of a configuration and return a function that takes one step."""
    import torch

    from metrix.machine.devices import choose_device, seed_cpu, wait_for
    from metrix.train.build import build_embedder, build_loss, build_objective, build_optimizer

    model, train = config.model, config.train
    device = choose_device(train.device)
    with seed_cpu(0):
        whole = config.with_values({"weights": None, "freeze_to": None, "frozen_bn": False, "views": 0})
        embedder = build_embedder(whole).to(device)
        wanted = embedder.data_config
        size = config.data.image_size or wanted.size
        images = torch.randn(train.batch_size, wanted.channels, size, size).to(device)
    each = max(2, train.per_class)
    labels = torch.arange(train.batch_size) // each
    classes = max(CLASSES, int(labels.max()) + 1)
    loss = build_loss(config.loss, classes, model.dim).to(device)
    objective = build_objective(config, loss, torch.Generator().manual_seed(0))
    optimizer = build_optimizer(config, embedder, loss, device)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(objective.step(embedder, images, labels.to(device)).loss)
        optimizer.step()
        wait_for(device)

    return step
