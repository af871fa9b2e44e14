"""The precision of a run: bfloat16 on GPUs that have it; on a CPU a measurement that says whether it would pay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from metrix.machine.bfloat16 import VARIABLE, WITHOUT_AMX
from metrix.machine.devices import AUTO, has_bfloat16, seed_cpu
from metrix.machine.environment import describe_processor
from metrix.messages import format_duration
from metrix.train.config import Config, parse_config

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from metrix.train.batches import Report

WORTH = 600.0  # seconds that a run must take before seconds are spent on a measurement
PAYS = 1.3  # times as fast, below which nothing is said
IMAGES = 8  # in the measurement
PATIENCE = 120  # seconds for it


def choose_precision(config: Config, device: torch.device) -> tuple[Config, str]:
    """The configuration with the precision that is used, and a sentence if it is not float32."""
    if config.train.precision != AUTO:
        return config, ""
    if has_bfloat16(device):
        return (
            config.with_values({"precision": "bf16-mixed"}),
            "the network computes in bfloat16, which this GPU has, the loss in float32; --precision 32-true computes "
            "all of it in float32",
        )
    return config.with_values({"precision": "32-true"}), ""


def suggest_bfloat16(config: Config, network: Any, example: Tensor, images: int, report: Report) -> str:
    """A sentence on bfloat16 if it would make training on this CPU much faster, by a measurement; else empty.

    Runs of less than ten minutes, and processors without bfloat16, are not measured.

    Args:
        config: the settings of the run
        network: has `features(x)` and `head(z)`
        example: one input of it, (1, …)
        images: how many the run trains on in all, those of an epoch counted in each
        report: called with the progress of the measurement
    """
    import torch

    if not any("bf16" in feature for feature in describe_processor()["features"]):
        return ""
    began = time.perf_counter()
    trained = network.training
    with torch.no_grad():
        network.eval()
        network.head(network.features(example))
        network.train(trained)
    estimate = 3 * (time.perf_counter() - began) * images  # a backward pass takes about two forward passes
    if estimate < WORTH:
        return ""
    for number, variables in enumerate(({}, {VARIABLE: WITHOUT_AMX})):
        report("measuring bfloat16", number, 2)
        found = _time_in_child(config, tuple(example.shape[1:]), variables)
        report("measuring bfloat16", 2, 2)
        if found is not None:
            full, half = found
            if half * PAYS > full:
                return ""
            return (
                f"--precision bf16 would train about {full / half:.1f} times as fast on this processor "
                f"({IMAGES} images: {format_duration(full)} in float32, {format_duration(half)} in bfloat16)"
            )
    return ""


def _time_in_child(config: Config, shape: tuple[int, ...], variables: dict[str, str]) -> tuple[float, float] | None:
    """Seconds of a training step in float32 and in bfloat16; None if a child process dies of it."""
    code = "import sys; from metrix.train.precision import _time_both; _time_both(sys.argv[1], sys.argv[2])"
    command = [sys.executable, "-c", code, config.to_yaml(), ",".join(map(str, shape))]
    try:
        ended = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode != 0:
        return None
    full, half = (float(word) for word in ended.stdout.split()[-2:])
    return full, half


def _time_both(settings: str, shape: str) -> None:
    """Print the seconds of a step of the trained part of a network in both precisions."""
    import torch
    import yaml

    from metrix.train.batches import FromActivations
    from metrix.train.build import build_embedder

    config = parse_config(yaml.safe_load(settings)).with_values({"weights": None})
    size = [int(number) for number in shape.split(",")]
    embedder = build_embedder(config, size[0] if len(size) == 1 else None)
    network: Any = FromActivations(embedder) if config.model.views else embedder
    with seed_cpu(0):
        x = torch.randn(IMAGES, *size)
    for precision in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            with precision:
                out = network.head(network.features(x))
            out.float().sum().backward()
            times.append(time.perf_counter() - began)
        print(min(times))
