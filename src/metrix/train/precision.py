"""The precision of a run: bfloat16 on GPUs that have it; on a CPU a measurement that says whether it would pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrix.machine.devices import AUTO, has_bfloat16
from metrix.train.config import Config

if TYPE_CHECKING:
    import torch


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
