"""Time the parts of runs on their own data: `python -m metrix.reproduce.calibration`, as a process of its own.

Reads configurations as lines of JSON and answers each in a line: {"seconds": 5.1}, or null for a run that cannot be
trained. Before the first answer comes {"ready": true}, when everything is imported and the first dataset is open.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrix.data import Dataset, Part
from metrix.data.training_parts import can_select, has_test_part
from metrix.errors import MetrixError
from metrix.evaluate.retrieval import count_hits
from metrix.machine.allocation import keep_freed_memory
from metrix.machine.devices import choose_device, wait_for
from metrix.train.batches import (
    EMBEDDED_AT_ONCE,
    build_sampler,
    embed_batches,
    fit_batch_size,
    ignore_report,
    open_data,
    select_training_part,
)
from metrix.train.config import Config, parse_config
from metrix.train.data_place import with_absolute_paths
from metrix.train.distributed import Launch, launch
from metrix.train.names import MIXUP_TYPES
from metrix.train.network import fit_network
from metrix.train.precision import choose_precision
from metrix.train.state import TrainingState, prepare

STEPS, WARM_UP = 10, 2  # timed at most, and left out of the median
FEW, MANY = 16, 4 * EMBEDDED_AT_ONCE  # images that are embedded
LONG = 2.0  # seconds that steps, or images, are timed for
BACKWARD = 3  # a step on an image takes as long as embedding so many, where steps are too slow to be timed
PAIRS = 10**9  # of a query and a gallery image that are compared at most; above, a share of the queries is searched
# What takes no longer in a run, but would here: weights to download, passes over all images, which are counted instead.
UNTIMED = {"weights": None, "head_init": "random", "views": 0, "scheme": "none"}

clock = time.perf_counter


@dataclass(frozen=True)
class RunParts:
    """The parts of a run: the seconds that each takes once, or how often each is done."""

    building: float  # network, loss and optimizer
    step: float
    image: float  # embedded for a measurement
    pair: float  # of a query and a gallery image, compared
    checkpoint: float

    def sum_up(self, counts: RunParts) -> float:
        """The seconds of a run in which each part is done so many times."""
        return float(sum(each * times for each, times in zip(astuple(self), astuple(counts), strict=True)))


class Calibration:
    """Estimates the duration of runs; what several runs have in common is measured once."""

    def __init__(self) -> None:
        self.opened: dict[str, tuple[Dataset, float]] = {}
        self.timed: dict[tuple[object, ...], RunParts] = {}

    def open(self, config: Config) -> tuple[Dataset, float]:
        """The dataset of a configuration, and the seconds that each run of a process but the first takes to open it."""
        key = config.data.model_dump_json()
        if key not in self.opened:
            open_data(config)
            began = clock()
            dataset = open_data(config)
            dataset.catalogue.fingerprint()
            self.opened[key] = dataset, clock() - began
        return self.opened[key]

    def estimate(self, config: Config) -> float:
        """The seconds of a run.

        Raises:
            MetrixError: It cannot be trained.
        """
        dataset, opening = self.open(config)
        part = select_training_part(config, dataset)
        config, _ = fit_batch_size(fit_network(config, dataset)[0], part)
        mixing, model, data = config.mixing.model_dump_json(), config.model.model_dump_json(), config.data
        key = (mixing, model, data.data, data.image_size, config.train.batch_size)
        if key not in self.timed:
            self.timed[key] = time_parts(config, dataset, part)
        return opening + self.timed[key].sum_up(count_parts(config, dataset, part))


def count_parts(config: Config, dataset: Dataset, part: Part) -> RunParts:
    """How often a run does each of its parts."""
    train = config.train
    per_epoch = build_sampler(config, part).batches_per_epoch
    steps = min(train.epochs * per_epoch, train.max_steps or math.inf)
    epochs = math.ceil(steps / per_epoch)
    measured = [(len(dataset.query), len(dataset.gallery))] if has_test_part(dataset.catalogue) else []
    separate = dataset.separate_gallery
    validations = 0
    if can_select(dataset.catalogue, dataset.broken):
        validations = math.ceil(epochs / train.validate_every)
        held_out = len(dataset.part("val"))
        measured += [(held_out, 0)] * (1 + validations)  # the first one of the untrained network
    else:
        measured *= 2  # the untrained network, and the model
    images = sum(queries + (gallery if separate else 0) for queries, gallery in measured)
    if config.model.head_init == "whiten":
        images += len(part)
    if train.scheme == "divide-and-conquer":
        images += len(part) * math.ceil(epochs / train.recluster_every)
    pairs = sum(queries * (gallery or queries) for queries, gallery in measured)
    return RunParts(1, steps, images, pairs, 1 + 2 * validations)


def time_parts(config: Config, dataset: Dataset, part: Part) -> RunParts:
    """Measure the seconds of each part of a run, on its own data and with its own settings."""
    device = choose_device(config.train.device)
    config = choose_precision(with_absolute_paths(config.with_values(UNTIMED)), device)[0]
    team = launch(config.train, Launch())
    prepare(config, dataset, part, team, ignore_report)  # warm-up: the first one of a process imports more
    began = clock()
    state = prepare(config, dataset, part, team, ignore_report)
    building = clock() - began
    image = _time_image(state, dataset.query if has_test_part(dataset.catalogue) else part)
    step = BACKWARD * image * images_per_step(config)
    if step < LONG:
        step = _time_step(state)
    return RunParts(building, step, image, _time_pair(config, dataset), _time_checkpoint(state))


def _time_image(state: TrainingState, part: Part) -> float:
    """Seconds to read and embed an image under the test view; those to start the loader's processes cancel out."""
    still, few = part.with_transform(state.batches.test_view), min(FEW, len(part))

    def embed(number: int) -> float:
        began = clock()
        rows = [range(start, min(start + EMBEDDED_AT_ONCE, number)) for start in range(0, number, EMBEDDED_AT_ONCE)]
        for _ in embed_batches(state.embedder, still, rows, state.team.device, state.batches.workers):
            pass
        return clock() - began

    with state.team.evaluating(state.module):
        embed(few)  # warm-up
        short = embed(few)
        many = min(len(part), MANY, max(2 * FEW, int(LONG * few / max(1e-6, short))))
        long = embed(many)
    return (long - short) / (many - few) if many > few and long > short else long / many


def _time_step(state: TrainingState) -> float:
    """The median duration of a step of training: reading and augmenting a batch, forward, backward, optimizer."""
    batches = itertools.chain.from_iterable(state.scheme.batches(epoch, 0) for epoch in itertools.count())
    taken: list[float] = []
    state.module.train()
    while len(taken) < STEPS and (len(taken) <= WARM_UP or sum(taken) < LONG):
        began = clock()
        _take_step(state, batches)
        taken.append(clock() - began)
    return statistics.median(taken[WARM_UP:])


def _take_step(state: TrainingState, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    images, labels = next(batches)
    state.optimizer.zero_grad()
    state.team.fabric.backward(state.module(state.team.put(images), labels)[0])
    state.optimizer.step()
    wait_for(state.team.device)


def _time_pair(config: Config, dataset: Dataset) -> float:
    """Seconds to compare a query with a gallery image, from a share of the queries and random embeddings."""
    if not has_test_part(dataset.catalogue):
        return 0.0
    query, gallery = dataset.query, dataset.gallery
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(query), config.model.dim, generator=generator)
    searched: dict[str, Any] = {}
    if dataset.separate_gallery:
        searched = {"gallery": torch.randn(len(gallery), config.model.dim, generator=generator)}
        searched["gallery_labels"] = gallery.labels
    share = math.ceil(len(query) * len(gallery) / PAIRS)
    count_hits(vectors, query.labels, share=(0, len(query)), **searched)  # warm-up
    began = clock()
    count_hits(vectors, query.labels, share=(0, share), **searched)
    return (clock() - began) * share / (len(query) * len(gallery))


def _time_checkpoint(state: TrainingState) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = clock()
        state.save(Path(folder) / "last.safetensors")
        return clock() - began


def images_per_step(config: Config) -> float:
    """Count the images that pass through the network in a step: the batch, and with input mixup k per positive pair."""
    batch, types = config.train.batch_size, config.mixing.mixup
    k = (config.mixing.hard_negatives or (None,))[0] or 3
    mixed = k * max(1, config.train.per_class - 1) * batch
    return batch + mixed * sum(MIXUP_TYPES[name].mixes == "inputs" for name in types) / max(1, len(types))


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # print() must not write among the answers
    keep_freed_memory()
    calibration, ready = Calibration(), False
    for line in sys.stdin:
        config, seconds = parse_config(json.loads(line)), None
        try:
            calibration.open(config)
            if not ready:
                answers.write('{"ready": true}\n')
                answers.flush()
                ready = True
            seconds = calibration.estimate(config)
        except MetrixError:
            pass  # the run itself will say why
        answers.write(json.dumps({"seconds": seconds}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
