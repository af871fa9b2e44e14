"""`--compile`: network and objective through torch.compile, where there is a compiler."""

from __future__ import annotations

from typing import Any

import torch

from metrix.core.objective import Objective
from metrix.model import Embedder
from metrix.train.config import Config
from metrix.train.names import MIXUP_TYPES


def compile_step(config: Config, embedder: Embedder, objective: Objective, device: torch.device) -> str:
    """Compile what a step computes, in place, and say in one line what was compiled and what stays as it is.

    With embedding mixup or none, the whole step is compiled: network, clean and mixed loss. Features and inputs are
    mixed in chunks whose number follows from measured memory, which a compiler cannot see; there only the network is.
    """
    missing = find_missing_compiler(device)
    if missing:
        return f"nothing is compiled: there is no compiler for {device.type} here ({missing})"
    step: Any = objective
    if (
        all(MIXUP_TYPES[name].mixes == "embeddings" for name in config.mixing.mixup)
        and config.train.micro_batch is None
    ):
        step.step = torch.compile(objective.step)
        return "network and objective are compiled; the first steps take longer"
    network: Any = embedder
    network.features_from = torch.compile(embedder.features_from)
    why = "micro-batches" if config.train.micro_batch is not None else f"{config.mixing.describe()} mixup"
    return f"the network is compiled, the objective is not ({why}); the first steps take longer"


def find_missing_compiler(device: torch.device) -> str:
    """Why nothing can be compiled for a device, from a trial; empty if it can."""
    try:
        torch.compile(_twice)(torch.ones(2, device=device))
    except Exception as error:  # torch's own errors, a compiler's, or those of the system
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0] if lines else type(error).__name__
    return ""


def _twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x
